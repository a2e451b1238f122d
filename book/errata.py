"""The exhibits of the page `errata`, besides their text.

`check` makes sure that the sections of the book, the tests and the grader's mistakes that an
exhibit names exist. A page calls `look` on an exhibit, which remembers what it saw.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from classroom.exercise.answers import load_answers
from classroom.exercise.run import load_checks

BOOK = Path(__file__).parent
ROOT = BOOK.parent

WAYS = {
    "twice": "compute the same result another way",
    "perturb": "change one input, and see which outputs change",
    "limit": "try an extreme input, or a trivial one",
    "count": "count parameters, operations or months",
    "size": "measure the mean or standard deviation of outputs",
    "run": "run it",
}
"""How an exhibit is exposed."""

KINDS = {
    "shape": "have a wrong shape",
    "error": "stop with an error",
    "NaN": "have the right shape, and NaN or infinite values",
    "numbers": "have the right shape, and finite numbers",
}
"""What a wrong result looks like."""


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
            "A softmax over the queries",
            "limit",
            "sec-01-weights",
            "groundup/core/test_attention.py::test_weights_of_a_query_sum_to_one",
            "scaled_dot_product_attention.NormalisedOverQueries "
            "SelfAttentionHead.SoftmaxOverQueries CrossAttention.SoftmaxOverQueries",
        ),
        "exchanged": Exhibit(
            "Two indices swapped in a derivation",
            "perturb",
            "sec-03-traps",
            "groundup/core/test_models.py::test_future_tokens_do_not_change_the_past",
            "mended_derivation.AsPublished scaled_dot_product_attention.QueryAndKeyExchanged",
        ),
        "norm-axis": Exhibit(
            "LayerNorm over the tokens",
            "perturb",
            "sec-04-axes",
            "groundup/core/test_layers.py::test_a_token_does_not_depend_on_its_neighbours",
            "layer_norm.StatisticsOverTokens mended_block.NormStillOverTokens",
        ),
        "rank": Exhibit(
            "An OV product that cannot be formed",
            "run",
            "sec-03-sum",
            "groundup/looking/test_probes.py::test_scores_and_outputs_go_through_two_circuits",
        ),
        "unsplit": Exhibit(
            "Heads of full width",
            "count",
            "sec-03-cost",
            "groundup/looking/test_accounting.py::test_every_parameter_is_listed_with_its_shape",
        ),
    },
    "Masks that do something else": {
        "triangle": Exhibit(
            "The causal triangle of the other layout",
            "perturb",
            "sec-02-layout",
            "groundup/core/test_masks.py::test_causal_mask_by_hand "
            "groundup/core/test_models.py::test_no_gradient_reaches_a_later_token",
            "causal_mask.TriangleFlipped mended_columns.LeftAsItWas",
        ),
        "one-row": Exhibit(
            "A mask that cancels",
            "twice",
            "sec-02-does",
            "groundup/core/test_multihead.py::test_a_hidden_key_is_invisible",
            "mended_masks.LeftAsPublished",
        ),
        "bracket": Exhibit(
            "A bracket that closes too early",
            "limit",
            "sec-02-before",
            "groundup/core/test_attention.py::test_outputs_lie_in_the_convex_hull_of_the_values",
        ),
        "after": Exhibit(
            "Masking after the softmax",
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
            "Source padding that the decoder sees",
            "perturb",
            "sec-06-batch",
            "groundup/core/test_models.py::test_source_padding_is_seen_by_neither_encoder_nor_decoder",
            "CrossAttention.SourceMaskMissing mended_decoder.PaddingStillVisible",
        ),
        "swapped": Exhibit(
            "Queries and memory swapped",
            "perturb",
            "sec-06-leak",
            "groundup/looking/test_audit.py::"
            "test_every_part_lets_an_encoder_and_a_decoder_see_the_whole_source "
            "groundup/core/test_blocks.py::test_decoder_block_equals_torch_s_decoder_layer",
            "CrossAttention.ArgumentsSwapped mended_decoder.SourceAndTargetStillSwapped",
        ),
    },
    "Wiring": {
        "third": Exhibit(
            "A norm on the residual stream",
            "limit",
            "sec-04-places",
            "groundup/core/test_blocks.py::test_pre_norm_adds_to_the_stream_and_never_replaces_it",
            "TransformerBlock.ResidualFromTheNormOutput "
            "mended_block.ResidualStillFromTheNormOutput",
        ),
        "shift": Exhibit(
            "Targets that are not shifted",
            "limit",
            "sec-06-decoder",
            "groundup/data/test_batches.py::test_targets_are_the_tokens_that_come_next "
            "groundup/data/test_batches.py::test_pairs_are_padded_and_targets_shifted_right",
            "shifted_loss.NotShifted get_batch.TargetsNotShifted",
        ),
        "memory": Exhibit(
            "A feed-forward network that skips cross-attention",
            "perturb",
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
            "One layer six times",
            "count",
            "ch-blocks",
            "groundup/looking/test_accounting.py::test_every_parameter_is_listed_with_its_shape",
            "decoder_only_logits.FirstBlockRepeated",
        ),
        "rectified": Exhibit(
            "A ReLU on the output",
            "size",
            "sec-04-forward",
            "groundup/core/test_layers.py::test_feed_forward_equals_torch_s",
            "feed_forward.SingleLayer feed_forward.ActivationOnTheOutput",
        ),
        "final-norm": Exhibit(
            "No final LayerNorm",
            "size",
            "sec-04-places",
            "groundup/core/test_models.py::test_only_the_pre_norm_stream_is_normalised_at_the_end",
            "stack_with_final_norm.FinalNormForgotten decoder_only_logits.FinalNormMissing",
        ),
        "dropout-place": Exhibit(
            "Dropout after the norm",
            "count",
            "sec-04-dropout",
            "groundup/core/test_blocks.py::test_dropout_acts_on_a_sub_layer_s_output_before_it_is_added",
            "dropout_block.AppliedAfterTheSum",
        ),
    },
    "Numbers": {
        "unimportant": Exhibit(
            "Scores without the square root",
            "size",
            "sec-01-scale",
            "groundup/core/test_attention.py::"
            "test_scaled_scores_of_unit_normal_vectors_have_variance_one",
            "scaled_dot_product_attention.NoScale SelfAttentionHead.NoScale",
        ),
        "model-width": Exhibit(
            "The square root of the wrong width",
            "size",
            "sec-03-traps",
            "groundup/core/test_multihead.py::test_self_attention_equals_torch_s",
            "scaled_dot_product_attention.ScaledByModelWidth MultiHeadAttention.ScaledByModelWidth",
        ),
        "printed": Exhibit(
            "A printed row without the scale",
            "twice",
            "sec-01-example",
            "groundup/core/test_attention.py::test_attention_by_hand",
            "worked_row.ScaleLeftOut",
        ),
        "thousand": Exhibit(
            "A softmax that overflows",
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
            "Initial weights without fan-in",
            "size",
            "sec-04-depth",
            "groundup/core/test_initialisation.py::test_weights_start_at_the_size_that_was_chosen "
            "groundup/core/test_initialisation.py::test_the_stream_of_a_deep_pre_norm_stack_stays_calm",
            "init_std.BoundWithoutFanIn",
        ),
        "rate": Exhibit(
            "Dropout with a rate of 0.8",
            "count",
            "sec-00-layers",
            "groundup/core/test_attention.py::test_each_weight_is_dropped_or_scaled_up",
            "mended_dropout.RateTakenForTheKeepProbability",
        ),
        "tanh": Exhibit(
            "Half a hyperbolic tangent",
            "twice",
            "sec-00-layers",
            "exercises/test_checks.py::test_a_mistake_is_caught_and_named_and_no_other_is",
            "activations.HalfTheArgument",
        ),
        "epsilon": Exhibit(
            "LayerNorm without epsilon",
            "limit",
            "sec-04-norm",
            "groundup/core/test_layers.py::test_a_constant_token_gives_the_bias "
            "groundup/core/test_layers.py::test_eps_is_inside_the_root_by_hand",
            "layer_norm.EpsilonForgotten layer_norm.EpsilonOutsideTheRoot "
            "layer_norm.DividedByOneLess",
        ),
    },
    "Positions": {
        "entry": Exhibit(
            "One index in an exponent",
            "twice",
            "sec-05-exponent",
            "groundup/core/test_positions.py::test_products_of_table_rows_depend_on_distance_alone",
            "sinusoidal_positions.ExponentPerEntry mended_positions.ExponentStillPerEntry",
        ),
        "strangers": Exhibit(
            "Positions that should be orthogonal",
            "twice",
            "sec-05-correlated",
            "groundup/core/test_positions.py::test_products_of_table_rows_depend_on_distance_alone",
        ),
        "order": Exhibit(
            "Which models need positions",
            "perturb",
            "sec-05-set",
            "groundup/core/test_models.py::test_an_encoder_without_positions_reads_a_set",
        ),
        "whole-table": Exhibit(
            "The whole position table",
            "run",
            "sec-05-learned",
            "groundup/core/test_positions.py::test_sinusoidal_positions_are_rows_of_the_table",
            "learned_positions.WholeTableAdded",
        ),
    },
    "Claims": {
        "linear": Exhibit(
            "A value projection that lifts no limit",
            "twice",
            "sec-01-values",
            "groundup/core/test_attention.py::test_values_can_be_projected_before_or_after_the_average",
        ),
        "normal": Exhibit(
            "A dot product that is not normal",
            "size",
            "sec-01-scale",
            "groundup/core/test_attention.py::"
            "test_scaled_scores_of_unit_normal_vectors_have_variance_one",
            "logit_std.TakenForANormalDistribution",
        ),
        "invented": Exhibit(
            "Numbers that no layer could have made",
            "twice",
            "sec-01-example",
            "groundup/core/test_multihead.py::test_two_heads_by_hand",
        ),
        "roles": Exhibit(
            "What a value is worth",
            "perturb",
            "sec-01-dictionary",
            "groundup/core/test_attention.py::test_values_can_be_projected_before_or_after_the_average",
        ),
        "apple": Exhibit(
            "A projection that cannot see the context",
            "perturb",
            "sec-01-formula",
            "groundup/core/test_layers.py::test_a_token_does_not_depend_on_its_neighbours",
        ),
        "shares": Exhibit(
            "A gradient split between two branches",
            "twice",
            "sec-00-shortcuts",
            "book/test_errata.py::test_a_shortcut_passes_on_its_whole_gradient",
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
            "perturb",
            "sec-06-split",
            "groundup/core/test_models.py::test_cached_logits_equal_uncached",
        ),
        "history": Exhibit(
            "A few months earlier",
            "count",
            "ch-attention",
            "book/test_errata.py::test_the_dates_of_the_papers_are_those_of_the_bibliography",
        ),
        "never-run": Exhibit(
            "Code that nobody ran",
            "run",
            "sec-00-layers",
            "book/test_errata.py::test_the_snippets_that_were_never_run_fail_where_the_page_says",
        ),
    },
}

EXHIBITS = {slug: exhibit for room in ROOMS.values() for slug, exhibit in room.items()}

SEEN: dict[str, str] = {}
"""What `look` found, one of `KINDS`, by exhibit, in the order of the page."""


def look(slug: str, right: Tensor, wrong: Tensor | Exception) -> None:
    """Compare a wrong result with the right one, print how they differ, and remember it.

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
        SEEN[slug] = "NaN"
        fraction = 1 - wrong.isfinite().double().mean()
        print(f"same shape, {fraction:.0%} of the values are NaN or infinite")
    else:
        SEEN[slug] = "numbers"
        print(f"same shape, values differ by up to {(wrong - right).abs().max():.3g}")


def attempt(function, *args) -> Tensor | Exception:
    """Return the result of a function, or the exception that it raises."""
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
    """Return the box below an exhibit, as Markdown: what catches it, and where to read on."""
    exhibit = EXHIBITS[slug]
    parts = []
    for test in exhibit.tests.split():
        file, name = test.split("::")
        parts.append(f"*{_in_words(name)}* (`{Path(file).name}`)")
    is_claim = slug in ROOMS["Claims"] or slug in ("strangers", "order")
    verb = "What holds is tested" if is_claim else "Caught by the test"
    caught = f"**{verb}:** {' and '.join(parts)}"
    names = []
    for mistake in exhibit.mistakes.split():
        names.append("*{}* ({})".format(*_answers()[mistake]))
    if names:
        caught += f"; the grader calls the mistake {_listed(names)}"
    return f"> {caught}. **More** in {{ref}}`{exhibit.label}`."


def _in_words(test: str) -> str:
    return re.sub(r"_s(?=_|$)", "’s", test.removeprefix("test_")).replace("_", " ")


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
    return frozenset(re.findall(r"(?m)^ *def (\w+)", path.read_text(encoding="utf-8")))


def check() -> None:
    """Check that every name in the exhibits exists.

    Raises:
        ValueError: If a section, a test or a mistake does not exist, or a way is not in `WAYS`.

    """
    labels = set()
    for page in BOOK.glob("*.md"):
        labels |= set(re.findall(r"^\(([\w-]+)\)=", page.read_text(encoding="utf-8"), re.MULTILINE))
    for slug, exhibit in EXHIBITS.items():
        if exhibit.way not in WAYS:
            raise ValueError(f"{slug}: an exhibit must be exposed in one of WAYS")
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
    """Return how the exhibits are exposed, most frequent first."""
    counts = Counter(exhibit.way for exhibit in EXHIBITS.values())
    return [(WAYS[way], count) for way, count in counts.most_common()]


# What some exhibits need

SNIPPETS = {
    "an open bracket": "weights = softmax(scores + mask",
    "a missing comma": "layer(d_model 8)",
    "a misspelt return": "def f(x):\n    retrun x",
    "a name never defined": "def f(x):\n    return norm(x)\nf(1.0)",
    "one argument too many": "def f(x, y):\n    return x\nf(1.0, 2.0, 3.0)",
    "a bias of the wrong length": "torch.zeros(3, 2) @ torch.zeros(2, 1) + torch.zeros(2, 1)",
    "a branch that is never taken": "def f(x, d=False):\n    return norm(x) if d else x\nf(1.0)",
    "single precision by name only": "sample32 = lambda: 2.0 * torch.ones(2, dtype=torch.float64)\n"
    "sample32()",
}
"""Slips of the kind found in code that was never run."""


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
