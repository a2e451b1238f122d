"""Every honest style earns all its points, in the sandbox as in its author's Jupyter kernel."""

import gc

import pytest
from draws import draw
from honest_notebooks import CELLS, EDITS, LOSSES
from parity import measure
from warm_kernels import WarmKernels

pytestmark = [
    pytest.mark.slow,
    # nbclient leaves its event loop to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Let kernels be forks of one process, which spares each the two seconds of its start."""
    with WarmKernels():
        yield
    gc.collect()


def drawn(style):
    return draw(style, 2**64, "calls", "exercise", "grader", "sandbox", "student")


@pytest.mark.parametrize("style", sorted([*CELLS, *EDITS], key=drawn)[:60])
def test_an_honest_style_earns_everything_here_and_there(style, launcher, tmp_path):
    earned = measure(launcher, style, tmp_path)
    assert (earned.in_kernel, earned.in_sandbox) == (earned.points, earned.points), earned.said


@pytest.mark.parametrize("style", LOSSES)
def test_a_style_that_cannot_work_says_why(style, launcher, tmp_path):
    *_, why = LOSSES[style]
    earned = measure(launcher, style, tmp_path)
    assert earned.in_kernel == earned.points > earned.in_sandbox
    assert why in earned.said


def test_the_table_spans_the_course():
    chapters = {style[0] for style in (*CELLS.values(), *EDITS.values())}
    assert len(chapters) == 10 and len(CELLS) + len(EDITS) >= 120
