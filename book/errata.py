"""The exhibits of the page `errata`, besides their text: what is known of each, and what is found.

`check` holds every name against what there is: sections of the book, tests, mistakes that the
grader knows. `look` is what a page calls on an exhibit, and remembers what it saw.
"""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from plotstyle import BLUE, INK, MUTED, ORANGE
from torch import Tensor

from classroom.author.kill_matrix import RECORD, Kills, read
from classroom.exercise.answers import load_answers
from classroom.exercise.run import load_checks

BOOK = Path(__file__).parent
ROOT = BOOK.parent

WAYS = {
    "twice": "compute the same in a second way",
    "poke": "change one input, and see which outputs move",
    "limit": "try an extreme input, or a trivial one",
    "count": "count parameters, operations or months",
    "spread": "measure how far random numbers spread",
    "run": "run it",
}
"""How an exhibit gives itself away."""


@dataclass(frozen=True)
class Exhibit:
    """One mistake."""

    title: str
    way: str
    """Which of `WAYS` exposes it."""
    label: str
    """Of the section that explains it."""
    tests: str
    """Of the course, by spaces: `groundup/core/test_masks.py::test_causal_mask_by_hand`."""
    mistakes: str = ""
    """That the grader knows, by spaces: `causal_mask.TriangleFlipped`."""


ROOMS: dict[str, dict[str, Exhibit]] = {
    "The wrong axis": {
        "features": Exhibit(
            "Features that attend to features",
            "twice",
            "sec-01-formula",
            "groundup/core/test_attention.py::test_attention_equals_torch_s",
            "scaled_dot_product_attention.FeaturesAttendToFeatures "
            "mended_decoder.FeaturesStillCompared",
        ),
        "columns": Exhibit(
            "Every key gives away a total of 1",
            "limit",
            "sec-01-weights",
            "groundup/core/test_attention.py::test_weights_of_a_query_sum_to_one",
            "scaled_dot_product_attention.NormalisedOverQueries "
            "SelfAttentionHead.SoftmaxOverQueries CrossAttention.SoftmaxOverQueries",
        ),
        "exchanged": Exhibit(
            "Two letters exchanged in a derivation",
            "poke",
            "sec-03-traps",
            "groundup/core/test_models.py::test_future_tokens_do_not_change_the_past",
            "mended_derivation.AsPublished scaled_dot_product_attention.QueryAndKeyExchanged",
        ),
        "norm-axis": Exhibit(
            "A norm that reads ahead",
            "poke",
            "sec-04-axes",
            "groundup/core/test_layers.py::test_a_token_does_not_feel_its_neighbours",
            "layer_norm.StatisticsOverTokens mended_block.NormStillOverTokens",
        ),
        "rank": Exhibit(
            "A product that cannot be formed",
            "run",
            "sec-03-sum",
            "groundup/looking/test_probes.py::test_scores_and_outputs_go_through_two_circuits",
            "head_circuits.OutputBeforeValue head_circuits.InTheSpaceOfAHead",
        ),
        "unsplit": Exhibit(
            "Heads that nobody split",
            "count",
            "sec-03-cost",
            "groundup/looking/test_accounting.py::test_every_parameter_is_listed_with_its_shape",
            "count_attention.HeadsCountedTwice",
        ),
    },
    "Masks that do something else": {
        "triangle": Exhibit(
            "The right triangle in the wrong table",
            "poke",
            "sec-02-layout",
            "groundup/core/test_masks.py::test_causal_mask_by_hand "
            "groundup/core/test_models.py::test_no_gradient_reaches_a_later_token",
            "causal_mask.TriangleFlipped mended_columns.LeftAsItWas",
        ),
        "one-row": Exhibit(
            "A mask that does nothing",
            "twice",
            "sec-02-does",
            "groundup/core/test_multihead.py::test_a_hidden_key_is_invisible",
            "mended_masks.LeftAsPublished mended_masks.OneRowForAllQueries",
        ),
        "bracket": Exhibit(
            "A bracket that closes too early",
            "limit",
            "sec-02-before",
            "groundup/core/test_attention.py::test_outputs_lie_in_the_convex_hull_of_the_values",
            "scaled_dot_product_attention.ScaledAfterSoftmax masked_softmax.DividedAfterwards",
        ),
        "after": Exhibit(
            "Zeros where the future was",
            "limit",
            "sec-02-before",
            "groundup/core/test_masks.py::test_rows_sum_to_one_over_the_allowed_keys",
            "masked_softmax.ZeroedAfterwards SelfAttentionHead.MaskAfterSoftmax",
        ),
        "values": Exhibit(
            "Minus infinity in the values",
            "run",
            "sec-02-fill",
            "groundup/core/test_attention.py::test_attention_equals_torch_s",
        ),
        "source": Exhibit(
            "Padding that the decoder reads",
            "poke",
            "sec-06-batch",
            ""
            "groundup/core/test_models.py::test_source_padding_is_seen_by_neither_encoder_nor_decoder",
            "CrossAttention.SourceMaskMissing mended_decoder.PaddingStillSeen",
        ),
        "swapped": Exhibit(
            "The answer on the side of the question",
            "poke",
            "sec-06-swaps",
            "groundup/looking/test_audit.py::"
            "test_every_part_lets_an_encoder_and_a_decoder_see_the_whole_source "
            "groundup/core/test_blocks.py::test_decoder_block_equals_torch_s_decoder_layer",
            "CrossAttention.ArgumentsSwapped mended_decoder.SidesStillSwapped",
        ),
    },
    "Wires": {
        "third": Exhibit(
            "A norm in front of everything",
            "limit",
            "sec-04-places",
            "groundup/core/test_blocks.py::test_pre_norm_adds_to_the_stream_and_never_replaces_it",
            "TransformerBlock.ResidualFromTheNorm mended_block.ResidualStillFromTheNorm",
        ),
        "shift": Exhibit(
            "A model that is asked what it was told",
            "limit",
            "sec-06-decoder",
            "groundup/data/test_batches.py::test_targets_are_the_tokens_that_come_next "
            "groundup/data/test_batches.py::test_pairs_are_filled_up_and_targets_shifted_right",
            "shifted_loss.NotShifted get_batch.TargetsNotShifted",
        ),
        "memory": Exhibit(
            "A network that skips the source",
            "poke",
            "sec-04-silent",
            "groundup/core/test_blocks.py::test_decoder_block_equals_torch_s_decoder_layer",
            "mended_block.FeedForwardStillSkipsTheMemory "
            "TransformerBlock.FeedForwardNeverSeesAttention",
        ),
        "same-norm": Exhibit(
            "One norm used twice, one never",
            "count",
            "sec-04-silent",
            "groundup/core/test_blocks.py::test_every_part_is_trained",
            "TransformerBlock.OneNormForBoth mended_block.NormStillUsedTwice",
        ),
        "six-times": Exhibit(
            "Six layers, of which five are the first",
            "count",
            "sec-06-decoder",
            "groundup/looking/test_accounting.py::test_every_parameter_is_listed_with_its_shape",
            "decoder_only_logits.FirstBlockAgainAndAgain",
        ),
        "rectified": Exhibit(
            "A stream that only rises",
            "spread",
            "sec-04-forward",
            "groundup/core/test_layers.py::test_feed_forward_equals_torch_s",
            "feed_forward.SingleLayer feed_forward.ActivationOnTheOutput",
        ),
        "final-norm": Exhibit(
            "No norm at the end",
            "spread",
            "sec-04-places",
            "groundup/core/test_models.py::test_only_the_pre_norm_stream_is_normalised_at_the_end",
            "stack_with_final_norm.FinalNormForgotten decoder_only_logits.FinalNormMissing",
        ),
        "dropout-place": Exhibit(
            "Dropout behind the norm",
            "count",
            "sec-04-dropout",
            ""
            "groundup/core/test_blocks.py::test_dropout_acts_on_a_sub_layer_s_output_before_it_is_added",
            "dropout_block.DroppedBehindTheSum",
        ),
    },
    "Numbers": {
        "unimportant": Exhibit(
            "The factor that is said not to matter",
            "spread",
            "sec-01-scale",
            "groundup/core/test_attention.py::"
            "test_scaled_scores_of_unit_normal_vectors_have_variance_one",
            "scaled_dot_product_attention.NoScale SelfAttentionHead.NoScale",
        ),
        "model-width": Exhibit(
            "The root of the wrong width",
            "spread",
            "sec-03-traps",
            "groundup/core/test_multihead.py::test_self_attention_equals_torch_s",
            "scaled_dot_product_attention.ScaledByModelWidth MultiHeadAttention.ScaledByAllHeads",
        ),
        "printed": Exhibit(
            "A row of numbers that skipped a line",
            "twice",
            "sec-01-example",
            "groundup/core/test_attention.py::test_attention_by_hand",
            "worked_row.ScaleLeftOut worked_row.ScoresPrintedUnscaled "
            "worked_row.DistanceForDirection",
        ),
        "thousand": Exhibit(
            "A softmax that cannot count to a hundred",
            "limit",
            "sec-00-softmax",
            "groundup/variants/test_online_softmax.py::"
            "test_block_by_block_scores_may_rise_and_fall_as_far_as_they_like",
            "stable_softmax.NoShift scaled_dot_product_attention.ExponentialsOverflow",
        ),
        "ceiling": Exhibit(
            "A loss with a ceiling",
            "limit",
            "sec-00-surprise",
            "groundup/training/test_loop.py::test_the_loss_is_that_of_torch",
            "cross_entropy.EpsilonInTheLogarithm",
        ),
        "loud": Exhibit(
            "A very loud beginning",
            "spread",
            "sec-04-depth",
            "groundup/core/test_initialisation.py::test_weights_start_at_the_size_that_was_chosen "
            ""
            "groundup/core/test_initialisation.py::test_the_stream_of_a_deep_pre_norm_stack_stays_calm",
            "init_std.EvenlyAndWithoutFanIn",
        ),
        "rate": Exhibit(
            "Four fifths thrown away",
            "count",
            "sec-00-layers",
            "groundup/core/test_attention.py::test_each_weight_is_dropped_or_scaled_up",
            "mended_dropout.RateIsTheShareKept dropout_block.KeptWhatShouldGo",
        ),
        "tanh": Exhibit(
            "Half a hyperbolic tangent",
            "twice",
            "sec-00-layers",
            "exercises/test_checks.py::test_a_mistake_is_caught_and_named_and_no_other_is",
            "activations.HalfTheArgument activations.SiluForSoftplus",
        ),
        "epsilon": Exhibit(
            "A token that is all the same",
            "limit",
            "sec-04-norm",
            "groundup/core/test_layers.py::test_a_constant_token_gives_the_bias "
            "groundup/core/test_layers.py::test_eps_stands_inside_the_root_by_hand",
            "layer_norm.EpsilonForgotten layer_norm.EpsilonOutsideTheRoot "
            "layer_norm.DividedByOneLess",
        ),
    },
    "Places": {
        "entry": Exhibit(
            "One letter in an exponent",
            "twice",
            "sec-05-exponent",
            "groundup/core/test_positions.py::test_products_of_table_rows_depend_on_distance_alone",
            "sinusoidal_positions.ExponentOfTheEntry mended_positions.ExponentStillOfTheEntry",
        ),
        "strangers": Exhibit(
            "Places that should be strangers",
            "twice",
            "sec-05-correlated",
            "groundup/core/test_positions.py::test_products_of_table_rows_depend_on_distance_alone",
        ),
        "order": Exhibit(
            "It works without positions, they say",
            "poke",
            "sec-05-set",
            "groundup/core/test_models.py::test_an_encoder_without_positions_reads_a_set",
            "check_order_blindness.NothingAsserted",
        ),
        "whole-table": Exhibit(
            "One length for every sentence",
            "run",
            "sec-05-learned",
            "groundup/core/test_positions.py::test_sinusoidal_positions_are_rows_of_the_table",
            "learned_positions.WholeTableAdded",
        ),
    },
    "Sentences": {
        "linear": Exhibit(
            "The map that was to lift a limit",
            "twice",
            "sec-01-values",
            ""
            "groundup/core/test_attention.py::test_values_can_be_mapped_before_or_after_the_average",
            "project_after_mixing.BiasMixedFirst",
        ),
        "normal": Exhibit(
            "A sum that is called normal",
            "spread",
            "sec-01-scale",
            "groundup/core/test_attention.py::"
            "test_scaled_scores_of_unit_normal_vectors_have_variance_one",
            "logit_std.CalledNormal logit_std.KurtosisWithoutExcess",
        ),
        "invented": Exhibit(
            "Numbers that no layer could have made",
            "twice",
            "sec-01-example",
            "groundup/core/test_multihead.py::test_two_heads_by_hand",
        ),
        "roles": Exhibit(
            "What a value is worth",
            "poke",
            "sec-01-dictionary",
            ""
            "groundup/core/test_attention.py::test_values_can_be_mapped_before_or_after_the_average",
            "scaled_dot_product_attention.KeysAveraged MultiHeadAttention.ContextAsks",
        ),
        "apple": Exhibit(
            "A map that is to know its neighbours",
            "poke",
            "sec-01-formula",
            "groundup/core/test_layers.py::test_a_token_does_not_feel_its_neighbours",
        ),
        "shares": Exhibit(
            "How a sum divides a gradient",
            "twice",
            "sec-00-shortcuts",
            "book/test_errata.py::test_a_shortcut_hands_on_its_whole_gradient",
        ),
        "ratios": Exhibit(
            "What a softmax preserves",
            "limit",
            "sec-01-weights",
            "groundup/core/test_masks.py::test_masked_softmax_by_hand",
        ),
        "steps": Exhibit(
            "Steps are not work",
            "count",
            "sec-08-cache",
            "groundup/looking/test_accounting.py::"
            "test_operations_of_one_more_token_are_those_that_torch_counts",
        ),
        "split": Exhibit(
            "Where the prompt ends",
            "poke",
            "sec-06-split",
            "groundup/core/test_models.py::test_cached_logits_equal_uncached",
            "check_prompt_split.NothingRejected",
        ),
        "history": Exhibit(
            "A few months earlier",
            "count",
            "ch-attention",
            "book/test_errata.py::test_the_dates_of_the_papers_are_those_of_the_bibliography",
        ),
        "never-run": Exhibit(
            "A line that nobody ran",
            "run",
            "sec-00-layers",
            "book/test_errata.py::test_the_snippets_that_were_never_run_fail_where_the_page_says",
        ),
    },
}

EXHIBITS = {slug: exhibit for room in ROOMS.values() for slug, exhibit in room.items()}

SEEN: dict[str, str] = {}
"""What `look` found, by exhibit, in the order of the page."""


def look(slug: str, right: Tensor, wrong: Tensor | Exception) -> None:
    """Compare what a mistake gives with what is right, print it, and remember it.

    Raises:
        ValueError: If there is no such exhibit.

    """
    if slug not in EXHIBITS:
        raise ValueError(f"an exhibit must be in ROOMS, got {slug!r}")
    if isinstance(wrong, Exception):
        SEEN[slug] = "error"
        print(f"it stops with a {type(wrong).__name__}")
    elif wrong.shape != right.shape:
        SEEN[slug] = "shape"
        print(f"shape {tuple(wrong.shape)} instead of {tuple(right.shape)}")
    elif not wrong.isfinite().all():
        SEEN[slug] = "no number"
        share = 1 - wrong.isfinite().double().mean()
        print(f"same shape, {share:.0%} of the values are NaN or infinite")
    else:
        SEEN[slug] = "numbers"
        print(f"same shape, values differ by up to {(wrong - right).abs().max():.3g}")


def attempt(function, *args) -> Tensor | Exception:
    """Return what a function gives, or the exception that it ends with."""
    try:
        return function(*args)
    except Exception as error:
        return error


def contents() -> str:
    """Return the list of all exhibits, room by room, as Markdown."""
    lines = []
    for room, exhibits in ROOMS.items():
        links = [f"{{ref}}`{e.title} <errata-{slug}>`" for slug, e in exhibits.items()]
        lines.append(f"{room}\n: {' · '.join(links)}")
    return "\n\n".join(lines)


def card(slug: str) -> str:
    """Return what hangs beside an exhibit, as Markdown: what would catch it, and where to read."""
    exhibit = EXHIBITS[slug]
    parts = []
    for test in exhibit.tests.split():
        file, name = test.split("::")
        parts.append(f"*{_in_words(name)}* (`{Path(file).name}`)")
    verb = "What holds is tested" if slug in ROOMS["Sentences"] else "Caught by the test"
    caught = f"**{verb}:** {' and '.join(parts)}"
    names = []
    for mistake in exhibit.mistakes.split():
        names.append("*{}* ({})".format(*_answers()[mistake]))
    if names:
        caught += f"; graders call it {_listed(names)}"
    return f"> {caught}. **More** in {{ref}}`{exhibit.label}`."


def _in_words(test: str) -> str:
    return test.removeprefix("test_").replace("_s_", "’s ").replace("_", " ").removesuffix(" s")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


@cache
def _answers() -> dict[str, tuple[str, str]]:
    """Read every mistake that the graders know: its title and the number of its exercise."""
    found = {}
    for folder in sorted(ROOT.glob("solutions/[0-9]*")):
        numbers = {name: about.number for name, (about, _) in load_checks(folder).items()}
        for answer in load_answers(folder / "mistakes.py"):
            found[f"{answer.exercise}.{answer.name}"] = answer.title, numbers[answer.exercise]
    return found


@cache
def _tests(file: str) -> frozenset[str]:
    path = ROOT / "tests" / file
    if not path.exists():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def check() -> None:
    """Hold every name of the exhibits against what there is.

    Raises:
        ValueError: If a section, a test or a mistake does not exist, or an unknown way is named.

    """
    labels = set()
    for page in BOOK.glob("*.md"):
        labels |= set(re.findall(r"^\(([\w-]+)\)=", page.read_text(encoding="utf-8"), re.MULTILINE))
    for slug, exhibit in EXHIBITS.items():
        if exhibit.way not in WAYS:
            raise ValueError(f"{slug}: an exhibit must give itself away in one of WAYS")
        if exhibit.label not in labels:
            raise ValueError(f"{slug}: the book must have the label {exhibit.label}")
        for test in exhibit.tests.split():
            file, name = test.split("::")
            if name not in _tests(file):
                raise ValueError(f"{slug}: tests/{file} must have {name}")
        for mistake in exhibit.mistakes.split():
            if mistake not in _answers():
                raise ValueError(f"{slug}: the graders must know the mistake {mistake}")


def ways() -> list[tuple[str, int]]:
    """Return how the exhibits gave themselves away, most frequent first."""
    counts = Counter(exhibit.way for exhibit in EXHIBITS.values())
    return [(WAYS[way], count) for way, count in counts.most_common()]


# The kill matrix


def kills() -> list[Kills]:
    """Read the record of which check catches which mistake."""
    return read(ROOT / RECORD)


@dataclass(frozen=True)
class _Block:
    row: Kills
    left: int
    top: float

    @property
    def width(self) -> int:
        return len(self.row.failures)


WIDTH, GAP, LABEL = 84, 2, 2.6
"""Of a picture: cells across, between blocks, and above a block for its number."""


def _packed(rows: Sequence[Kills]) -> tuple[list[_Block], dict[str, float], float]:
    """Give each exercise a place, chapter by chapter: blocks, chapters' heights, whole height."""
    blocks: list[_Block] = []
    headings: dict[str, float] = {}
    top = 0.0
    for chapter in dict.fromkeys(row.assignment for row in rows):
        headings[chapter] = top
        top += 3.4
        left, tallest = 0, 0
        for row in (row for row in rows if row.assignment == chapter):
            if left and left + len(row.failures) > WIDTH:
                top, left, tallest = top + tallest + LABEL, 0, 0
            blocks.append(_Block(row, left, top + LABEL))
            left += len(row.failures) + GAP
            tallest = max(tallest, len(row.checks))
        top += tallest + LABEL + 1.5
    return blocks, headings, top


def matrix_height(rows: Sequence[Kills], width: float) -> float:
    """Return how high a picture of some inches of width has to be."""
    return _packed(rows)[2] * width / WIDTH


def draw_matrix(ax: Axes, rows: Sequence[Kills], titles: dict[str, str]) -> None:
    """Draw a block for each exercise: a column per mistake, a row per check, filled if it catches.

    Args:
        ax: As wide as the picture, and as high as `matrix_height` says.
        rows: The matrix.
        titles: What is written above a chapter, by the name of its assignment.

    """
    blocks, headings, height = _packed(rows)
    caught, alone, missed = [], [], []
    for block in blocks:
        # Mistakes with the same fate side by side: what is alike makes one shape.
        names = sorted(block.row.failures, key=lambda name, row=block.row: row.killers(name))
        for x, name in enumerate(names):
            killers = block.row.killers(name)
            for y in range(len(block.row.checks)):
                cell = (block.left + x, block.top + y)
                is_caught = y in killers
                (alone if killers == [y] else caught if is_caught else missed).append(cell)
        ax.text(
            block.left,
            block.top - 0.5,
            block.row.number.split(".")[1],
            fontsize=7.5,
            color=MUTED,
            va="baseline",
        )
    for name, top in headings.items():
        ax.text(0, top + 2.6, titles[name], fontsize=10, color=INK, va="baseline")
    for cells, color, opacity in ((missed, MUTED, 0.14), (caught, BLUE, 1), (alone, ORANGE, 1)):
        ax.add_patch(PathPatch(_squares(cells), facecolor=color, alpha=opacity, linewidth=0))
    ax.set(xlim=(0, WIDTH), ylim=(height, 0), aspect="equal")
    ax.set_axis_off()


def _squares(cells: Sequence[tuple[float, float]], size: float = 0.86) -> Outline:
    """Make one outline of many squares, neighbours in a row joined to one box."""
    boxes: list[list[float]] = []
    for x, y in sorted(cells, key=lambda cell: (cell[1], cell[0])):
        if boxes and boxes[-1][2] == y and boxes[-1][1] == x:
            boxes[-1][1] = x + 1
        else:
            boxes.append([x, x + 1, y])
    corners, codes = [], []
    for left, right, y in boxes:
        right -= 1 - size
        corners += [(left, y), (right, y), (right, y + size), (left, y + size), (left, y)]
        codes += [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY]
    return Outline(corners or [(0, 0)], codes or [Outline.MOVETO])


def matrix_tables(rows: Sequence[Kills], titles: dict[str, str]) -> str:
    """Return a folded table for each chapter, as Markdown: what each check catches."""
    parts = []
    for chapter, title in titles.items():
        own = [row for row in rows if row.assignment == chapter]
        needed = sum(bool(row.caught_only_by(c)) for row in own for c in range(len(row.checks)))
        checks = sum(len(row.checks) for row in own)
        parts += [f":::{{dropdown}} {title}: {needed} of {checks} checks are needed", ""]
        parts += ["| check | catches | and nothing else does |", "|---|---|---|"]
        for row in own:
            for place, check_in_words in enumerate(row.checks):
                names = [f"{row.exercise}.{name}" for name in row.caught_only_by(place)]
                only = [_answers()[name][0] for name in names]
                caught = f"{len(row.caught_by(place))}/{len(row.failures)}"
                parts.append(
                    f"| {row.number} {check_in_words} | {caught} | {', '.join(only) or '–'} |"
                )
        parts += [":::", ""]
    return "\n".join(parts)


def summary(rows: Sequence[Kills]) -> dict[str, int]:
    """Count what the sentences around the picture say."""
    fates = [(row, place) for row in rows for place in range(len(row.checks))]
    return {
        "exercises": len(rows),
        "mistakes": sum(len(row.failures) for row in rows),
        "checks": len(fates),
        "cells": sum(len(row.failures) * len(row.checks) for row in rows),
        "by_one": sum(len(row.killers(name)) == 1 for row in rows for name in row.failures),
        "needed": sum(bool(row.caught_only_by(place)) for row, place in fates),
        "idle": sum(not row.caught_by(place) for row, place in fates),
    }


# What some exhibits need

SNIPPETS = {
    "an open bracket": "weights = softmax(scores + mask",
    "a missing comma": "layer(d_model 8)",
    "a misspelt return": "def f(x):\n    retrun x",
    "a name never defined": "def f(x):\n    return norm(x)\nf(1.0)",
    "one argument too many": "def f(x, y):\n    return x\nf(1.0, 2.0, 3.0)",
    "a bias of the other length": "torch.zeros(3, 2) @ torch.zeros(2, 1) + torch.zeros(2, 1)",
    "a step that is never taken": "def f(x, d=False):\n    return norm(x) if d else x\nf(1.0)",
    "single precision by name only": "sample32 = lambda: 2.0 * torch.ones(2, dtype=torch.float64)\n"
    "sample32()",
}
"""Slips of the kind that code has which was written down and never run."""


def stage_of(source: str) -> str:
    """Say what finds a slip: reading the code, running it, or neither."""
    try:
        code = compile(source, "<snippet>", "exec")
    except SyntaxError:
        return "Python, reading it"
    try:
        exec(code, {"torch": torch})
    except Exception as error:
        return f"the first run ({type(error).__name__})"
    return "neither"


@cache
def month_of(paper: str) -> int:
    """Return when a paper of the bibliography came to arXiv, in months since 2000.

    The number of a paper there begins with the year and the month of its first version.
    """
    entries = (BOOK / "references.bib").read_text(encoding="utf-8")
    entry = entries[entries.index(f"{{{paper},") :].split("\n}")[0]
    year, month = re.search(r"arxiv\.org/abs/(\d\d)(\d\d)\.", entry).groups()
    return int(year) * 12 + int(month)
