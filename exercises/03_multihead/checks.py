"""What is graded in chapter 03, multi-head attention.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F

from classroom.calls.lending import Refused
from classroom.exercise.comparing import describe, differs, wrong_form
from classroom.exercise.diagnosis import answering_alike, asking, asks_for
from classroom.exercise.expect import (
    CheckFailed,
    exercise,
    expect_agrees,
    expect_answer,
    expect_gradients,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import handed_out, packed


def random_mask(case, *shape):
    """Allow half of the keys: in each row at least one, and not all if there are several."""
    allowed = case.uniform(*shape) < 0.5
    queries, k_len = torch.arange(shape[-2]), shape[-1]
    allowed[..., queries, (queries + 1) % k_len] = False
    allowed[..., queries, queries % k_len] = True
    return allowed


def with_equal_sizes(inputs, *axes, is_shared=True):
    """Draw inputs of which these sizes are equal, so that no size tells what the mask belongs to.

    A mask that is shared is that of the first sequence, with one axis fewer.
    """

    def draw(case):
        size = case.size(" = ".join(axes), 3, smallest=2)
        others, case.sizes = case.sizes, {**case.sizes, **dict.fromkeys(axes, size)}
        *args, mask = inputs(case)
        case.sizes = others
        mask[:, 0, -1] = torch.arange(size) % 2 == 0  # or all might be equal by chance
        return *args, mask[0] if is_shared else mask

    return draw


def with_any_mask(inputs):
    """Return inputs of different sizes, and of equal ones with a mask for all or for each."""
    axes = "batch", "length", "heads"
    return inputs, with_equal_sizes(inputs, *axes), with_equal_sizes(inputs, *axes, is_shared=False)


LARGE = 20_000.0
"""So large are scores that nothing but minus infinity hides them."""


def hide_the_largest(mask, scores):
    """Mask the key of the highest score in each row, and allow that of the lowest one.

    In the last row it is the only one.
    """
    mask[..., -1, :] = False
    mask.scatter_(-1, scores.argmax(dim=-1, keepdim=True), False)
    mask.scatter_(-1, scores.argmin(dim=-1, keepdim=True), True)


# 3.1 ------------------------------------------------------------------------------------------


def head_inputs(case):
    batch, length = case.size("batch", 2), case.size("length", 5)
    d_model, d_head = case.size("d_model", 10), case.size("d_head", 6)
    weights = {f"{name}.weight": case.normal(d_head, d_model, std=0.4) for name in ("query", "key")}
    weights["value.weight"] = case.normal(d_head, d_model)
    settings = {"d_model": d_model, "d_head": d_head}
    return settings, weights, case.normal(batch, length, d_model)


def masked_head_inputs(case):
    settings, weights, x = head_inputs(case)
    return settings, weights, x, random_mask(case, *x.shape[:2], x.shape[1])


def large_head_inputs(case):
    """The scores of the first query are 0, those of the others lie in the tens of thousands."""
    settings, weights, x, mask = masked_head_inputs(case)
    x[:, 0], weights["query.weight"] = 0.0, LARGE * weights["query.weight"]
    query, key = (F.linear(x, weights[f"{name}.weight"]) for name in ("query", "key"))
    hide_the_largest(mask, query @ key.mT)
    return settings, weights, x, mask


@handed_out
def head_oracle(settings, weights, x, mask=None):
    ...


HEAD = {"output": "batch length d_head"}


@exercise(
    "SelfAttentionHead",
    number="3.1",
    title="One head",
    asks="A module with the parameters `query.weight`, `key.weight` and `value.weight`; `forward` "
    "returns the output of the head for each token, (batch, length, d_head).",
    difficulty=2,
    importance=5,
    minutes=20,
)
class TestSelfAttentionHead:
    @points(2)
    def test_each_token_gets_a_weighted_average_of_all_values(self, subject, case):
        expect_agrees(subject, case, "SelfAttentionHead", head_inputs, head_oracle, HEAD)

    @points(2)
    def test_masked_keys_have_no_effect(self, subject, case):
        shared = with_equal_sizes(masked_head_inputs, "batch", "length")
        for inputs in (masked_head_inputs, shared, large_head_inputs):
            expect_agrees(subject, case, "SelfAttentionHead", inputs, head_oracle, HEAD)

    @points(1)
    def test_gradients_flow_back_to_the_inputs(self, subject, case):
        expect_gradients(
            subject, case, "SelfAttentionHead", masked_head_inputs, head_oracle, wrt=["x"]
        )


# 3.2 ------------------------------------------------------------------------------------------


def loop_inputs(case):
    batch, length, heads = case.size("batch", 2), case.size("length", 5), case.size("heads", 3)
    d_model, d_head, d_value = (
        case.size("d_model", 11),
        case.size("d_head", 7),
        case.size("d_value", 6),
    )
    return (
        case.normal(batch, length, d_model),
        case.normal(heads, d_model, d_head, std=0.4),
        case.normal(heads, d_model, d_head, std=0.4),
        case.normal(heads, d_model, d_value, std=0.4),
        case.normal(heads * d_value, d_model),
    )


def masked_loop_inputs(case):
    x, *maps = loop_inputs(case)
    return x, *maps, random_mask(case, *x.shape[:2], x.shape[1])


def large_loop_inputs(case):
    """As `large_head_inputs`; which keys are masked depends on the first head."""
    x, w_query, w_key, *maps, mask = masked_loop_inputs(case)
    x[:, 0], w_query = 0.0, LARGE * w_query
    hide_the_largest(mask, (x @ w_query[0]) @ (x @ w_key[0]).mT)
    return x, w_query, w_key, *maps, mask


@handed_out
def loop_oracle(x, w_query, w_key, w_value, w_output, mask=None):
    ...


MODEL = {"output": "batch length d_model"}


@exercise(
    "loop_of_heads",
    number="3.2",
    title="A loop of heads",
    asks="Run every head on the tokens, concatenate the outputs in the order of the heads, and "
    "multiply by the output projection.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestLoopOfHeads:
    @points(2)
    def test_the_output_projection_mixes_the_concatenated_heads(self, subject, case):
        expect_agrees(subject, case, "loop_of_heads", loop_inputs, loop_oracle, MODEL)

    @points(2)
    def test_the_mask_applies_to_every_head(self, subject, case):
        for inputs in (*with_any_mask(masked_loop_inputs), large_loop_inputs):
            expect_agrees(subject, case, "loop_of_heads", inputs, loop_oracle, MODEL)

    @points(1, only_with="test_the_mask_applies_to_every_head")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "loop_of_heads", masked_loop_inputs)


# 3.3 ------------------------------------------------------------------------------------------

INPUT_MAPS = ("query", "key", "value")
MAPS = (*INPUT_MAPS, "output")


def layer_weights(case, d_model):
    """Draw weights that give scores of about 1, and biases that are not zero."""
    weights = {}
    for name in MAPS:
        weights[f"{name}.weight"] = case.normal(d_model, d_model, std=1.2 / math.sqrt(d_model))
        weights[f"{name}.bias"] = case.normal(d_model, std=0.5)
    return weights


def layer_inputs(case):
    heads, d_head = case.size("heads", 3, smallest=2), case.size("d_head", 4)
    d_model, q_len = heads * d_head, case.size("q_len", 5)
    settings = {"d_model": d_model, "num_heads": heads}
    x = case.normal(case.size("batch", 2), q_len, d_model)
    return settings, layer_weights(case, d_model), x


def cross_inputs(case):
    settings, weights, x = layer_inputs(case)
    return settings, weights, x, case.normal(len(x), case.size("k_len", 7), x.shape[2])


def own_mask_inputs(case):
    settings, weights, x, context = cross_inputs(case)
    mask = random_mask(case, len(x), x.shape[1], context.shape[1])
    return settings, weights, x, context, mask


def large_mask_inputs(case):
    """As `large_loop_inputs`, with biases; that of the queries is 0."""
    settings, weights, x, context, mask = own_mask_inputs(case)
    x[:, 0], weights["query.bias"] = 0.0, torch.zeros_like(weights["query.bias"])
    weights["query.weight"] = LARGE * weights["query.weight"]
    d_head = settings["d_model"] // settings["num_heads"]
    key = F.linear(context, weights["key.weight"], weights["key.bias"])
    query = F.linear(x, weights["query.weight"])
    hide_the_largest(mask, query[..., :d_head] @ key[..., :d_head].mT)
    return settings, weights, x, context, mask


exec(packed(__file__, 0), globals())


@handed_out
def layer_oracle(settings, weights, x, context=None, mask=None):
    ...


LAYER = {"output": "batch q_len d_model"}
ALIKE = ("batch", "heads", "q_len")  # with which of them a mask begins


@exercise(
    "MultiHeadAttention",
    number="3.3",
    title="All heads at once",
    asks="A module with four linear layers `query`, `key`, `value` and `output`; `forward` "
    "projects the tokens once, splits the features into heads, attends, and merges the heads "
    "again.",
    difficulty=3,
    importance=5,
    minutes=35,
)
class TestMultiHeadAttention:
    @points(3)
    def test_the_output_equals_that_of_a_loop_over_heads(self, subject, case):
        self.compare(subject, case, layer_inputs)

    @points(2)
    def test_keys_and_values_come_from_a_context_of_another_length(self, subject, case):
        self.compare(subject, case, cross_inputs)

    @points(1)
    def test_one_mask_applies_to_all_sequences_and_heads(self, subject, case):
        def inputs(case):
            settings, weights, x, context = cross_inputs(case)
            mask = random_mask(case, x.shape[1], context.shape[1])
            return settings, weights, x, context, mask

        self.compare(subject, case, inputs)
        self.compare_equal(subject, case, with_equal_sizes(own_mask_inputs, *ALIKE), inputs)

    @points(1)
    def test_a_mask_per_sequence_applies_to_all_of_its_heads(self, subject, case):
        self.compare(subject, case, own_mask_inputs)
        # Without the mask it shows whether all of the scores, or only masked ones, are too large.
        self.compare(subject, case, large_mask_inputs, also=[lambda c: large_mask_inputs(c)[:-1]])

    @points(1)
    def test_a_mask_per_sequence_works_when_batch_equals_num_heads(self, subject, case):
        inputs = with_equal_sizes(own_mask_inputs, *ALIKE, is_shared=False)
        self.compare_equal(subject, case, inputs, own_mask_inputs)

    def compare_equal(self, subject, case, inputs, unequal):
        """Compare on equal sizes; with different ones it shows which of two mistakes is made."""
        try:
            self.compare(subject, case, inputs)
        except CheckFailed as failed:
            request = asks_for("MultiHeadAttention", unequal(case.fresh(3)))

            def explain(problem, mistakes, example):
                alike = mistakes and answering_alike([request], subject, mistakes)
                return problem, alike, example

            failed.further(explain)
            raise

    def compare(self, subject, case, inputs, also=()):
        name, right = "MultiHeadAttention", layer_oracle
        expect_agrees(subject, case, name, inputs, right, LAYER, also=also)


# 3.6 ------------------------------------------------------------------------------------------


def circuit_inputs(case, d_model=None):
    heads, d_head = case.size("heads", 3, smallest=2), case.size("d_head", 4)
    d_model = heads * d_head if d_model is None else case.size("d_model", d_model, smallest=9)
    maps = (case.normal(d_model, heads * d_head) for _ in INPUT_MAPS)
    return *maps, case.normal(heads * d_head, d_model), heads


@handed_out
def circuit_oracle(w_query, w_key, w_value, w_output, num_heads):
    ...


def found_inputs(case):
    batch, length, heads = case.size("batch", 2), case.size("length", 5), case.size("heads", 3)
    d_head, d_model = case.size("d_head", 4), case.size("d_model", 10)
    return case.normal(batch, heads, length, d_head), case.normal(heads * d_head, d_model)


@handed_out
def contributions_oracle(found, w_output):
    ...


CIRCUITS = {"qk_circuits": "num_heads d_model d_model", "ov_circuits": "num_heads d_model d_model"}


@exercise(
    "head_circuits",
    number="3.6",
    title="Take the heads apart",
    asks="`head_circuits` returns, for each head, the matrix behind its scores and the matrix "
    "behind its output; `head_contributions` returns what each head adds to the output of the "
    "layer.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestHeadCircuits:
    @points(2)
    def test_one_matrix_per_head_gives_its_scores(self, subject, case):
        self.compare(subject, case, "qk_circuits")

    @points(2)
    def test_one_matrix_per_head_gives_its_output(self, subject, case):
        self.compare(subject, case, "ov_circuits")

    @points(
        1,
        only_with=(
            "test_one_matrix_per_head_gives_its_scores",
            "test_one_matrix_per_head_gives_its_output",
        ),
    )
    def test_the_rank_of_each_matrix_is_d_head(self, subject, case):
        def law(circuits, w_query, w_key, w_value, w_output, num_heads):
            d_head = w_query.shape[1] // num_heads
            for label, found in zip(CIRCUITS, circuits, strict=True):
                expected = (num_heads, len(w_query), len(w_query))
                if not isinstance(found, torch.Tensor):
                    return f"{label} should be a tensor; it is {describe(found)}"
                if found.shape != expected:
                    return f"{label} has shape {tuple(found.shape)}, expected {expected}"
                ranks = torch.linalg.matrix_rank(found).tolist()
                if set(ranks) != {d_head}:
                    return f"{label}: the ranks of its matrices are {ranks}, expected {d_head} each"
            return None

        inputs = partial(circuit_inputs, d_model=17)
        expect_law(subject, case, "head_circuits", inputs, law)

    @points(2)
    def test_the_output_is_the_sum_of_the_contributions_of_the_heads(self, subject, case):
        returns = {"contributions": "batch num_heads length d_model"}
        expect_agrees(
            subject, case, "head_contributions", found_inputs, contributions_oracle, returns
        )

    def compare(self, subject, case, circuit):
        expect_agrees(
            subject,
            case,
            "head_circuits",
            circuit_inputs,
            circuit_oracle,
            CIRCUITS,
            compare=[circuit],
        )


# 3.8 ------------------------------------------------------------------------------------------


def bias_inputs(case):
    batch, q_len, k_len = case.size("batch", 2), case.size("q_len", 5), case.size("k_len", 7)
    d_head = case.size("d_head", 6)
    return (
        case.normal(batch, q_len, d_head),
        case.normal(batch, k_len, d_head),
        case.normal(d_head),
        case.normal(d_head),
    )


@handed_out
def bias_oracle(query, key, query_bias, key_bias):
    ...


def surgery_inputs(case):
    return (layer_weights(case, 2 * case.size("d_head", 5)),)


def same_function(zero):
    """Judge new weights: one bias is zero, and torch's attention does the same with them."""

    def law(new, weights):
        if not isinstance(new, dict):
            return f"the result should be a dictionary of weights; it is {describe(new)}"
        if missing := [name for name in weights if name not in new]:
            return f"the new weights have no {', '.join(missing)}: a bias may be zero, not absent"
        for name, weight in weights.items():
            if not isinstance(new[name], torch.Tensor):
                kind = type(new[name]).__name__
                return f"{name} should be a tensor of shape {tuple(weight.shape)}, not a {kind}"
            if new[name].shape != weight.shape:
                return f"{name} has shape {tuple(new[name].shape)}, expected {tuple(weight.shape)}"
        if new[zero].any():
            return f"{zero} should be zero; its largest entry is {new[zero].abs().max():.4g}"
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randn(2, 12, len(weights[zero]), generator=generator, dtype=torch.float64)
        x, context = tokens.split([5, 7], dim=1)
        before, after = (torch_layer(w, 2, x, context) for w in (weights, new))
        return differs("output with the new weights", after, before)

    return law


@exercise(
    "drop_key_bias",
    number="3.8",
    title="The bias that does nothing",
    asks="`split_score_bias` returns what the biases add to the scores, per query and per key; "
    "`drop_key_bias` and `move_value_bias` return weights that compute the same function with the "
    "key bias, or the value bias, at zero.",
    difficulty=3,
    importance=3,
    minutes=25,
    deeper=True,
)
class TestDropKeyBias:
    @points(1)
    def test_the_key_bias_adds_one_number_per_query(self, subject, case):
        self.compare(subject, case, "per_query")

    @points(1)
    def test_the_query_bias_adds_one_number_per_key(self, subject, case):
        self.compare(subject, case, "per_key")

    @points(2)
    def test_without_the_key_bias_the_output_is_the_same(self, subject, case):
        law = same_function("key.bias")
        expect_law(subject, case, "drop_key_bias", surgery_inputs, law)

    @points(2)
    def test_without_the_value_bias_the_output_is_the_same(self, subject, case):
        law = same_function("value.bias")
        expect_law(subject, case, "move_value_bias", surgery_inputs, law)

    @points(
        1,
        only_with=(
            "test_without_the_key_bias_the_output_is_the_same",
            "test_without_the_value_bias_the_output_is_the_same",
        ),
    )
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "drop_key_bias", surgery_inputs)
        expect_inputs_unchanged(subject, case, "move_value_bias", surgery_inputs)

    def compare(self, subject, case, part):
        returns = {"per_query": "batch q_len", "per_key": "batch k_len"}
        expect_agrees(
            subject, case, "split_score_bias", bias_inputs, bias_oracle, returns, compare=[part]
        )


# 3.5 ------------------------------------------------------------------------------------------


def grouped_inputs(case):
    batch, q_len, k_len = case.size("batch", 2), case.size("q_len", 5), case.size("k_len", 7)
    kv_heads, sharing = case.size("num_kv_heads", 3), case.size("query heads for each", 4)
    d_head, d_value = case.size("d_head", 6), case.size("d_value", 9)
    return (
        case.normal(batch, kv_heads * sharing, q_len, d_head, std=1.5),
        case.normal(batch, kv_heads, k_len, d_head),
        case.normal(batch, kv_heads, k_len, d_value),
    )


@handed_out
def grouped_oracle(query, key, value):
    ...


def pool_inputs(case):
    kv_heads, sharing = case.size("num_kv_heads", 3), case.size("query heads for each", 2)
    d_model, d_head = case.size("d_model", 11), case.size("d_head", 4)
    return case.normal(d_model, kv_heads * sharing * d_head), kv_heads * sharing, kv_heads


@handed_out
def pool_oracle(w, num_heads, num_kv_heads):
    ...


GROUPED = {"output": "batch num_heads q_len d_value"}


@exercise(
    "grouped_query_attention",
    number="3.5",
    title="Grouped-query attention: heads that share keys",
    asks="`grouped_query_attention` lets neighbouring query heads share a key and value head; "
    "`pool_heads` makes shared heads by averaging.",
    difficulty=2,
    importance=4,
    minutes=20,
    deeper=True,
)
class TestGroupedQueryAttention:
    @points(3)
    def test_adjacent_query_heads_share_a_key_and_value_head(self, subject, case):
        def as_many(case):
            query, key, value = grouped_inputs(case)
            return query[:, : key.shape[1]], key, value

        def large(case):
            query, key, value = grouped_inputs(case)
            query[:, :, 1:] *= LARGE
            return query, key, value

        for inputs in (grouped_inputs, as_many, large):
            expect_agrees(subject, case, "grouped_query_attention", inputs, grouped_oracle, GROUPED)

    @points(1)
    def test_a_single_key_head_serves_all_query_heads(self, subject, case):
        def inputs(case):
            query, key, value = grouped_inputs(case)
            return query, key[:, :1], value[:, :1]

        expect_agrees(subject, case, "grouped_query_attention", inputs, grouped_oracle, GROUPED)

    @points(2)
    def test_a_shared_head_is_initialised_to_the_mean_of_its_group(self, subject, case):
        def as_many(case):
            w, num_heads, _ = pool_inputs(case)
            return w, num_heads, num_heads

        returns = {"pooled": "d_model num_kv_heads*d_head"}
        for inputs in (pool_inputs, as_many):
            expect_agrees(subject, case, "pool_heads", inputs, pool_oracle, returns)


# 3.7 ------------------------------------------------------------------------------------------


def layer_sizes(case):
    """Draw sizes of a layer that can be made: it has at most 900 features."""
    kv_heads, sharing = case.integer(1, 15), case.integer(2, 15)
    heads = kv_heads * sharing
    return heads * case.integer(2, 900 // heads), heads, kv_heads


@handed_out
def count_oracle(d_model, num_heads, num_kv_heads, has_bias):
    ...


@handed_out
def flops_oracle(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
    ...


@exercise(
    "count_attention",
    number="3.7",
    title="Parameters and operations",
    asks="`count_attention` counts parameters, `attention_flops` the operations of the projections "
    "and of the products; `break_even_length` returns the length at which they cost the same.",
    difficulty=2,
    importance=3,
    minutes=20,
    deeper=True,
)
class TestCountAttention:
    @points(2)
    def test_the_parameter_count_matches_torch(self, subject, case):
        for has_bias in (True, False):

            def inputs(case, has_bias=has_bias):
                return *layer_sizes(case), has_bias

            returns = {"parameters": ""}
            expect_agrees(subject, case, "count_attention", inputs, count_oracle, returns)

    @points(1)
    def test_the_operation_count_of_the_projections_matches_torch(self, subject, case):
        self.compare(subject, case, "projections")

    @points(2)
    def test_the_operation_count_of_the_products_matches_torch(self, subject, case):
        self.compare(subject, case, "products")

    @points(1)
    def test_at_break_even_projections_and_products_cost_the_same(self, subject, case):
        @handed_out
        def right(d_model, num_heads, num_kv_heads):
            # Projections grow with the length, products with its square: length 1 gives the ratio.
            ...

        returns = {"length": ""}
        expect_agrees(subject, case, "break_even_length", layer_sizes, right, returns, draws=4)

    def compare(self, subject, case, part):
        def inputs(case):
            lengths = case.integer(21, 40), case.integer(2, 20)
            return case.integer(2, 6), *lengths, *layer_sizes(case)

        returns = {"projections": "", "products": ""}
        expect_agrees(
            subject, case, "attention_flops", inputs, flops_oracle, returns, compare=[part]
        )


# 3.9 ------------------------------------------------------------------------------------------


exec(packed(__file__, 1), globals())


@exercise(
    "check_multi_head",
    number="3.9",
    title="Write the missing test",
    asks="`check_multi_head` calls the attention that it is given on inputs of your choice, and "
    "`assert`s that the results are correct.",
    difficulty=4,
    importance=4,
    minutes=45,
    deeper=True,
)
class TestCheckMultiHead:
    @points(1)
    def test_heads_split_across_tokens_are_caught(self, subject, case):
        self.judge(subject, case, "the heads are split across tokens")

    @points(1)
    def test_scores_scaled_by_d_model_instead_of_d_head_are_caught(self, subject, case):
        self.judge(subject, case, "the scores are divided by the square root of d_model")

    @points(1)
    def test_a_missing_output_projection_is_caught(self, subject, case):
        self.judge(subject, case, "the output projection is left out")

    @points(1)
    def test_missing_biases_are_caught(self, subject, case):
        self.judge(subject, case, "the biases are left out")

    @points(1)
    def test_an_ignored_context_is_caught(self, subject, case):
        self.judge(subject, case, "keys and values come from x even if there is a context")

    @points(1)
    def test_a_mask_applied_to_the_first_head_only_is_caught(self, subject, case):
        self.judge(subject, case, "the mask is applied to the first head only")

    @points(1)
    def test_masks_per_sequence_repeated_in_the_wrong_order_are_caught(self, subject, case):
        self.judge(subject, case, "the masks of the sequences are repeated in the wrong order")

    @points(1)
    def test_a_mask_per_sequence_used_as_a_mask_per_head_is_caught(self, subject, case):
        bug = "masks per sequence are taken for masks per head if their numbers are equal"
        self.judge(subject, case, bug)

    @points(1)
    def test_results_returned_for_the_wrong_sequence_are_caught(self, subject, case):
        self.judge(subject, case, "each sequence gets the result of another one")

    def judge(self, subject, case, bug):
        expect_test_judges(subject, case, "check_multi_head", RIGHT, NOT_RIGHT, bug)


# 3.4 ------------------------------------------------------------------------------------------


def derivation_inputs(case, is_causal=False):
    length, d_model = case.size("length", 6, smallest=2), case.size("d_model", 8)
    d_head, d_value = case.size("d_head", 3), case.size("d_value", 5)
    return (
        case.normal(length, d_model),
        case.normal(d_model, d_head, std=0.6),
        case.normal(d_model, d_head, std=0.6),
        case.normal(d_model, d_value),
        is_causal,
    )


def large_derivation_inputs(case):
    """The last key has scores of about 10 million, the others of minus that, and the first query 0."""
    tokens, w_query, w_key, w_value, _ = derivation_inputs(case)
    case.size("d_model", tokens.shape[1], smallest=3)
    # The first feature makes a query large, the second a key, and no value.
    tokens[0], tokens[1:, 0] = 0.0, 1.0
    tokens[:-1, 1], tokens[-1, 1] = -500 * LARGE, 500 * LARGE
    w_query[1], w_query[:, 0], w_query[0, 0] = 0.0, 0.0, math.sqrt(w_query.shape[1])
    w_key[1], w_key[:, 0], w_key[1, 0] = 0.0, 0.0, 1.0
    w_value[1] = 0.0
    return tokens, w_query, w_key, w_value, True


@handed_out
def derivation_oracle(tokens, w_query, w_key, w_value, is_causal):
    ...


DERIVED = {"output": "length d_value", "weights": "length length"}


@exercise(
    "mended_derivation",
    number="3.4",
    title="Bug hunt: which index is the query?",
    asks="Return (output, weights) of attention in which each token is a query: the derivation "
    "with query and key in the correct roles, and causal if `is_causal` is true.",
    difficulty=3,
    importance=4,
    minutes=20,
)
class TestMendedDerivation:
    @points(2)
    def test_with_causal_masking_no_token_attends_to_a_later_one(self, subject, case):
        self.compare(subject, case, True, ["output", "weights"])
        returns, inputs = DERIVED, large_derivation_inputs
        expect_agrees(subject, case, "mended_derivation", inputs, derivation_oracle, returns)

    @points(2)
    def test_each_output_row_belongs_to_its_query(self, subject, case):
        self.compare(subject, case, False, ["output"])

    @points(1)
    def test_each_row_of_weights_belongs_to_its_query(self, subject, case):
        self.compare(subject, case, False, ["weights"])

    def compare(self, subject, case, is_causal, parts):
        inputs = partial(derivation_inputs, is_causal=is_causal)
        expect_agrees(
            subject, case, "mended_derivation", inputs, derivation_oracle, DERIVED, compare=parts
        )


# 3.10 -----------------------------------------------------------------------------------------


@handed_out
def toeplitz_oracle(kernel, length):
    ...


def convolution_inputs(case, length=5, width=3):
    batch, length, width = (
        case.size("batch", 2),
        case.size("length", length),
        case.size("width", width),
    )
    d_in, d_out = case.size("d_in", 4), case.size("d_out", 6)
    return case.normal(batch, length, d_in), case.normal(width, d_in, d_out)


@handed_out
def convolution_oracle(x, kernel):
    ...


CONVOLVED = {"output": "batch length d_out", "weights": "width length length"}


@exercise(
    "convolution_as_heads",
    number="3.10",
    title="A convolution is attention with fixed weights",
    may_cut=("toeplitz_weights",),
    asks="`toeplitz_weights` returns the matrix of weights of a causal convolution; "
    "`convolution_as_heads` computes a convolution with one head for each step back.",
    difficulty=3,
    importance=2,
    minutes=25,
    deeper=True,
)
class TestConvolutionAsHeads:
    @points(1)
    def test_weights_depend_only_on_the_distance_to_the_query(self, subject, case):
        def inputs(case):
            width = case.size("width", 3, smallest=2)
            return case.normal(width), case.size("length", 7, smallest=2)

        self.compare_weights(subject, case, inputs)

    @points(1)
    def test_the_kernel_may_be_longer_than_the_sequence(self, subject, case):
        def inputs(case):
            width = case.size("width", 7, smallest=2)
            return case.normal(width), case.size("length", 3, smallest=2)

        self.compare_weights(subject, case, inputs)
        longer = partial(convolution_inputs, length=3, width=7)
        self.compare(subject, case, ["output", "weights"], longer)

    @points(2)
    def test_one_head_for_each_step_back_gives_a_convolution(self, subject, case):
        self.compare(subject, case, ["output"])

    @points(1, only_with="test_one_head_for_each_step_back_gives_a_convolution")
    def test_each_head_attends_to_one_token(self, subject, case):
        self.compare(subject, case, ["weights"])

    def compare_weights(self, subject, case, inputs):
        returns = {"weights": "length length"}
        expect_agrees(subject, case, "toeplitz_weights", inputs, toeplitz_oracle, returns)

    def compare(self, subject, case, parts, inputs=convolution_inputs):
        expect_agrees(
            subject,
            case,
            "convolution_as_heads",
            inputs,
            convolution_oracle,
            CONVOLVED,
            compare=parts,
        )


# 3.11 -----------------------------------------------------------------------------------------


def latent_inputs(case):
    batch, length, heads = case.size("batch", 2), case.size("length", 5), case.size("heads", 3)
    d_model, d_head = case.size("d_model", 10), case.size("d_head", 8)
    d_latent, d_value = case.size("d_latent", 6), case.size("d_value", 7)
    return (
        case.normal(batch, length, d_model),
        case.normal(heads, d_model, d_head, std=0.4),
        case.normal(d_model, d_latent, std=0.4),
        case.normal(heads, d_latent, d_head, std=0.6),
        case.normal(heads, d_latent, d_value),
    )


def masked_latent_inputs(case):
    x, *maps = latent_inputs(case)
    return x, *maps, random_mask(case, *x.shape[:2], x.shape[1])


def large_latent_inputs(case):
    """As `large_loop_inputs`."""
    x, w_query, w_latent, w_key, w_value, mask = masked_latent_inputs(case)
    x[:, 0], w_query = 0.0, LARGE * w_query
    hide_the_largest(mask, (x @ w_query[0]) @ (x @ w_latent @ w_key[0]).mT)
    return x, w_query, w_latent, w_key, w_value, mask


@handed_out
def latent_oracle(x, w_query, w_latent, w_key, w_value, mask=None):
    ...


def decoding_inputs(case):
    batch, heads, q_len = case.size("batch", 2), case.size("heads", 3), case.size("q_len", 4)
    k_len, d_head = case.size("k_len", 8), case.size("d_head", 5)
    d_latent, d_value = case.size("d_latent", 6), case.size("d_value", 7)
    return (
        case.normal(batch, heads, q_len, d_head),
        case.normal(batch, k_len, d_latent),
        case.normal(heads, d_latent, d_head, std=0.6),
        case.normal(heads, d_latent, d_value),
    )


def absorbed_query_inputs(case):
    query, _, w_key, _ = decoding_inputs(case)
    return query, w_key


def absorbed_inputs(case):
    query, latent, w_key, w_value = decoding_inputs(case)
    return torch.einsum("bhqd,hcd->bhqc", query, w_key), latent, w_value, query.shape[-1]


def large_absorbed_inputs(case):
    """Of all queries but the first, exp() of the scores is infinite."""
    absorbed, *more = absorbed_inputs(case)
    absorbed[:, :, 1:] *= LARGE
    return absorbed, *more


def overflowing_inputs(case):
    """One token gets no weight, and its value would overflow."""
    absorbed, latent, w_value, d_head = absorbed_inputs(case)
    token = case.integer(0, latent.shape[1] - 1)
    absorbed[..., 0], w_value[:, 0], latent[..., 0] = -1e-100, 1e200, 0.0
    latent[:, token, 0] = 1e200
    return absorbed, latent, w_value, d_head


@handed_out
def absorbed_query_oracle(query, w_key):
    ...


@handed_out
def absorbed_oracle(absorbed, latent, w_value, d_head):
    ...


@handed_out
def expanded_oracle(query, latent, w_key, w_value):
    ...


def by_absorption(subject, query, latent, w_key, w_value):
    absorbed = subject.call("absorbed_query", query, w_key)
    return subject.call("absorbed_attention", absorbed, latent, w_value, query.shape[-1])


@handed_out
def cached_oracle(num_layers, num_heads, num_kv_heads, d_head, d_latent, d_rotary):
    ...


LATENT = {"output": "batch num_heads length d_value"}
ABSORBED = {
    "output": "batch num_heads q_len d_value",
    "mixed": "batch num_heads q_len d_latent",
}
CACHED = {"multi_head": "", "grouped": "", "latent": ""}


@exercise(
    "latent_attention",
    number="3.11",
    title="Latent attention: a small cache",
    asks="`latent_attention` expands keys and values from one latent per token; `absorbed_query` "
    "and `absorbed_attention` compute the same from the latents alone; `cached_floats` counts the "
    "numbers that a model caches per token.",
    difficulty=4,
    importance=3,
    minutes=35,
    deeper=True,
)
class TestLatentAttention:
    @points(2)
    def test_each_head_expands_its_own_keys_and_values(self, subject, case):
        expect_agrees(subject, case, "latent_attention", latent_inputs, latent_oracle, LATENT)

    @points(1)
    def test_the_mask_applies_to_every_head(self, subject, case):
        for inputs in (*with_any_mask(masked_latent_inputs), large_latent_inputs):
            expect_agrees(subject, case, "latent_attention", inputs, latent_oracle, LATENT)

    @points(1)
    def test_the_query_absorbs_the_key_projection(self, subject, case):
        returns = {"absorbed": "batch num_heads q_len d_latent"}
        inputs = absorbed_query_inputs
        expect_agrees(subject, case, "absorbed_query", inputs, absorbed_query_oracle, returns)

    @points(2)
    def test_latents_serve_as_both_keys_and_values(self, subject, case):
        for inputs in (absorbed_inputs, overflowing_inputs, large_absorbed_inputs):
            expect_agrees(subject, case, "absorbed_attention", inputs, absorbed_oracle, ABSORBED)

    @points(1)
    def test_the_absorbed_form_agrees_with_the_expanded_one(self, subject, case):
        args = decoding_inputs(case)

        def judge(seen):
            expected = expanded_oracle(*args)
            if problem := wrong_form(seen, expected, ABSORBED, "absorbed_attention"):
                return problem
            return differs("output of the absorbed form", seen[0], expected[0], tolerance=1e-5)

        more = [decoding_inputs(case.fresh(number)) for number in range(2)]
        requests = [asking(by_absorption, *given) for given in (args, *more)]
        expect_answer(subject, case, requests, judge, tolerance=1e-5)

    @points(1)
    def test_a_kv_cache_holds_keys_and_values_for_each_key_head(self, subject, case):
        self.count(subject, case, ["multi_head", "grouped"])

    @points(1)
    def test_a_latent_cache_does_not_grow_with_the_number_of_heads(self, subject, case):
        self.count(subject, case, ["latent"])

    def count(self, subject, case, parts):
        def inputs(case):
            kv_heads, sharing = case.integer(2, 4), case.integer(5, 7)
            widths = case.integer(20, 60), case.integer(70, 99), case.integer(5, 15)
            return case.integer(7, 19), kv_heads * sharing, kv_heads, *widths

        expect_agrees(
            subject, case, "cached_floats", inputs, cached_oracle, CACHED, compare=parts, draws=2
        )
