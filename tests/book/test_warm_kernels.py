import gc
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
from jupyter_client.provisioning import KernelProvisionerFactory
from nbclient.exceptions import DeadKernelError
from parallel_pages import execute
from warm_kernels import IMPORTED, Kernel, WarmKernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, where torch forks"),
    # nbclient leaves its event loop to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ABOUT = """
import os, sys
print(*sys.argv[:2], sep="|")
print(*sys.path, sep="|")
print(__name__, os.getcwd(), os.environ["MPLBACKEND"], os.environ.get("COURSE"))
"""
PARENT = "parent = os.getppid()\nprint(parent, len(os.listdir(f'/proc/{parent}/task')))"


@pytest.fixture(autouse=True)
def collected(request, monkeypatch):
    """What a test leaves to the garbage collector must not warn in another one.

    Where a kernel need not have torch, it is not imported.
    """
    if "torch" not in request.node.name and "figure" not in request.node.name:
        monkeypatch.setenv("WARM_KERNELS_IMPORT", "ipykernel.kernelapp ipykernel.ipkernel")
    yield
    gc.collect()


def run(*cells, cwd="."):
    """Give what each cell prints, or the data of what it shows."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    result = execute(notebook, str(cwd), timeout=60)
    assert result.err is None, result.exc_string
    outputs = [output for cell in result.nb.cells for output in cell.outputs]
    return [output.get("text") or output.data for output in outputs]


def test_a_kernel_finds_what_it_finds_when_it_starts_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE", "seven")
    monkeypatch.delenv("MPLBACKEND", raising=False)
    alone = run(ABOUT, cwd=tmp_path)
    with WarmKernels():
        assert run(ABOUT, cwd=tmp_path) == alone
    assert f"__main__ {tmp_path}" in alone[0]


def test_a_kernel_has_torch_already_and_nothing_of_ours():
    asked = f"import sys\nprint([name in sys.modules for name in {IMPORTED!r}])"
    ours = "print([n for n in sys.modules if n.split('.')[0] in {'groundup', 'plotstyle', 'quiz'}])"
    with WarmKernels():
        imported, own = (printed.strip() for printed in run(asked, ours))
    assert imported == str([True] * len(IMPORTED))
    assert own == "[]"


def test_kernels_are_forks_of_one_process_with_one_thread():
    with WarmKernels(), ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, [f"import os\n{PARENT}"] * 2)
        parent, threads = first[0].split()
        assert first == second
        assert threads == "1"
        assert int(parent) != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(parent), 0)


def test_pages_share_neither_modules_nor_variables(tmp_path):
    (tmp_path / "numbers_of_mine.py").write_text("value = 7")
    with WarmKernels():
        cell = "import numbers_of_mine\nnumbers_of_mine.value *= 11\nprint(numbers_of_mine.value)"
        assert run(cell, cwd=tmp_path) == run(cell, cwd=tmp_path) == ["77\n"]


def test_a_kernel_needs_no_port_that_another_program_may_take_first():
    asked = """
import json
from ipykernel.connect import get_connection_file
print(json.load(open(get_connection_file()))["transport"])
"""
    with WarmKernels():
        assert run(asked) == ["ipc\n"]
    assert run(asked) == ["ipc\n"]


def test_a_figure_is_the_same_from_a_warm_kernel():
    draw = "import matplotlib.pyplot as plt\nplt.plot([3, 5, 2]);"
    alone = run("import torch", draw)
    with WarmKernels():
        warm = run("import torch", draw)
    assert alone[-1]["image/png"] == warm[-1]["image/png"]


def test_a_kernel_that_ends_by_itself_is_missed_and_the_next_one_starts():
    with WarmKernels():
        with pytest.raises(DeadKernelError):
            run("import os\nos._exit(3)")
        assert run("print(7 * 11)") == ["77\n"]


def test_afterwards_kernels_start_as_they_did():
    before = KernelProvisionerFactory.instance().default_provisioner_name
    with WarmKernels():
        assert KernelProvisionerFactory.instance().default_provisioner_name != before
    assert KernelProvisionerFactory.instance().default_provisioner_name == before
    assert run("print(7 * 11)") == ["77\n"]


def test_a_process_that_nobody_asks_for_a_kernel_is_ended_while_it_imports():
    kernels = WarmKernels()
    kernels.end()
    kernels.end()
    assert kernels._process.returncode == -signal.SIGKILL


def test_a_process_can_be_ended_and_waited_for_by_who_did_not_start_it():
    process = subprocess.Popen(["sleep", "60"])
    kernel = Kernel(process.pid)
    assert kernel.poll() is None
    kernel.kill()
    assert kernel.wait() == kernel.poll() == 0
    kernel.terminate()  # of one that has ended: nothing
    process.wait()
    assert Kernel(process.pid).poll() == 0
