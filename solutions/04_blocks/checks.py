"""What is graded in chapter 04, transformer blocks.

The oracles are torch's own norms, activations and encoder layer, or formulas with a simulation
beside them. One exercise runs the trained model that comes with the course, around the part that
the student wrote.
"""

import functools
import inspect
import math
import textwrap
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.comparing import describe, differs, number
from classroom.exercise.diagnosis import asking, asks_for
from classroom.exercise.expect import (
    exercise,
    expect_agrees,
    expect_answer,
    expect_gradients,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.prepared import oracle

TOKENS = {"output": "batch length d_model"}


def without(case, name):
    """Return a case that does not look for one known mistake, which is already ruled out."""
    return replace(case, mistakes=tuple(m for m in case.mistakes if m.name != name))


def norm_parameters(case, *shape):
    """Draw a gain and a bias that cannot be omitted without an effect."""
    return 1.0 + case.normal(*shape, std=0.5), case.normal(*shape)


# 4.1 ------------------------------------------------------------------------------------------


def norm_inputs(case):
    """Tokens that differ in their mean and in their scale.

    Here and below, small cases keep three features: of two, a norm leaves only the signs.
    """
    batch, length = case.size("batch", 2), case.size("length", 5)
    d_model = case.size("d_model", 4, smallest=3)
    sizes = case.uniform(batch, length, 1, low=0.3, high=3.0)
    x = sizes * case.normal(batch, length, d_model) + case.normal(batch, length, 1)
    return x, *norm_parameters(case, d_model), 1e-5


def far_inputs(case):
    """Tokens so far from 0 that the difference of two squares holds no digit of their variance."""
    x, *rest = norm_inputs(case)
    return x + 1e8 * case.uniform(*x.shape[:2], 1, low=1.0, high=3.0), *rest


def nearly_constant_inputs(case):
    """The first token is constant; the others vary about as much as epsilon lets through."""
    x, gain, bias, _ = norm_inputs(case)
    eps = case.integer(2, 9) / 10_000
    shrink = eps**0.5 * torch.arange(x.shape[1], dtype=x.dtype)[:, None]
    return 0.5 + shrink * x, gain, bias, eps


@oracle
def norm_oracle(x, gain, bias, eps=1e-5):
    return torch_norm(x, gain, bias, eps)


def why_normalised(seen, x, gain, bias, eps):
    """Say what the steps are for the token that is furthest off, whose mistake may be in any."""
    off = (seen - norm_oracle(x, gain, bias, eps)).abs().nan_to_num(math.inf).amax(dim=-1)
    at = tuple(map(int, torch.unravel_index(off.argmax(), off.shape)))
    mean, variance, normalised = steps_of_norm(x[at], eps)
    said = ", ".join(number(feature, 3) for feature in normalised)
    return (
        f". {f'Token {list(at)}' if at else 'The token'} has mean {number(mean, 3)} and variance "
        f"{number(variance, 3)}; normalised, it is [{said}]; the result is this times the gain, "
        "plus the bias"
    )


# The precision is the student's choice, but the diagnosis needs sharper eyes.
ROUNDED = {"tolerance": 1e-5, "alike": 1e-6, "why": why_normalised}


@exercise(
    "layer_norm",
    number="4.1",
    title="LayerNorm",
    asks="Bring the features of each token to mean 0 and variance 1, then multiply by the gain and "
    "add the bias.",
    difficulty=2,
    importance=5,
    minutes=15,
)
class TestLayerNorm:
    @points(3)
    def test_each_token_is_normalised_over_its_own_features(self, subject, case):
        also = {"also": [nearly_constant_inputs]}  # epsilon forgotten, or a floor of the variance?
        for inputs in (norm_inputs, far_inputs):
            expect_agrees(
                subject, case, "layer_norm", inputs, norm_oracle, TOKENS, **ROUNDED, **also
            )

    @points(1)
    def test_any_number_of_leading_axes_works(self, subject, case):
        def one_of(draw):
            def inputs(case):
                x, *rest = draw(case)
                return x[0, -1], *rest

            return inputs

        inputs, also = one_of(norm_inputs), [one_of(nearly_constant_inputs)]
        returns = {"output": "d_model"}
        expect_agrees(
            subject, case, "layer_norm", inputs, norm_oracle, returns, **ROUNDED, also=also
        )

    @points(1)
    def test_epsilon_takes_effect_for_nearly_constant_tokens(self, subject, case):
        inputs = nearly_constant_inputs
        expect_agrees(subject, case, "layer_norm", inputs, norm_oracle, TOKENS, **ROUNDED)

    @points(1)
    def test_inputs_are_not_modified_and_gradients_flow_back_to_them(self, subject, case):
        for inputs in (norm_inputs, nearly_constant_inputs):
            expect_gradients(
                subject, case, "layer_norm", inputs, norm_oracle, wrt=["x", "gain", "bias"]
            )
        expect_inputs_unchanged(subject, case, "layer_norm", norm_inputs)


# 4.5 ------------------------------------------------------------------------------------------


def rms_inputs(case):
    x, gain, _, eps = norm_inputs(case)
    return x, gain, eps


def nearly_zero_inputs(case):
    x, gain, _ = rms_inputs(case)
    eps = case.integer(2, 9) / 10_000
    return x * eps**0.5 * torch.arange(x.shape[1], dtype=x.dtype)[:, None], gain, eps


@oracle
def rms_oracle(x, gain, eps):
    return F.rms_norm(x, gain.shape, gain, eps)


def same_as_layer_norm(matrix, d_model):
    """Judge a matrix: followed by RMSNorm, it is LayerNorm."""
    if not isinstance(matrix, torch.Tensor) or matrix.shape != (d_model, d_model):
        return f"the matrix should have the shape {(d_model, d_model)}; it is {describe(matrix)}"
    if matrix.dtype != torch.float64:
        return f"the matrix should have the dtype torch.float64; it has {matrix.dtype}"
    generator = torch.Generator().manual_seed(0)
    x = 2 + torch.randn(5, d_model, generator=generator, dtype=torch.float64)
    after = F.rms_norm(x @ matrix, (d_model,), eps=1e-5)
    return differs("RMSNorm of the centred tokens", after, F.layer_norm(x, (d_model,)))


@exercise(
    "rms_norm",
    number="4.5",
    title="RMSNorm, and what it omits",
    asks="`rms_norm` brings each token to a mean square of 1 and multiplies by the gain; "
    "`centring_matrix` returns the matrix that subtracts the mean from a token.",
    difficulty=2,
    importance=4,
    minutes=15,
    deeper=True,
)
class TestRmsNorm:
    @points(2)
    def test_each_token_is_scaled_to_a_mean_square_of_one(self, subject, case):
        def one_token(case):
            x, *rest = rms_inputs(case)
            return x[0, 0], *rest

        also = {"also": [nearly_zero_inputs]}  # epsilon forgotten, or a floor of the mean square?
        expect_agrees(subject, case, "rms_norm", rms_inputs, rms_oracle, TOKENS, **also)
        returns = {"output": "d_model"}
        expect_agrees(subject, case, "rms_norm", one_token, rms_oracle, returns, **also)

    @points(1)
    def test_epsilon_takes_effect_for_tokens_close_to_zero(self, subject, case):
        expect_agrees(subject, case, "rms_norm", nearly_zero_inputs, rms_oracle, TOKENS)

    @points(1)
    def test_the_centring_matrix_subtracts_the_mean(self, subject, case):
        def inputs(case):
            return (case.integer(3, 29),)

        def wide(case):
            return (case.integer(30, 400),)

        @oracle
        def right(d_model):
            tokens = torch.eye(d_model, dtype=torch.float64)
            return tokens - tokens.mean(dim=1, keepdim=True)

        returns = {"matrix": "d_model d_model"}
        for draw in (inputs, wide):
            expect_agrees(subject, case, "centring_matrix", draw, right, returns, draws=2)

    @points(1, only_with="test_the_centring_matrix_subtracts_the_mean")
    def test_centring_followed_by_rms_norm_equals_layer_norm(self, subject, case):
        def inputs(case):
            return (case.integer(10, 20),)

        expect_law(subject, case, "centring_matrix", inputs, same_as_layer_norm)


# 4.2 ------------------------------------------------------------------------------------------


def network_inputs(case, activation, size=1.0):
    batch, length = case.size("batch", 2), case.size("length", 3)
    d_model, d_ff = case.size("d_model", 4), case.size("d_ff", 7)
    x = case.normal(batch, length, d_model)
    x[:, -1:] *= size  # one token alone, so that not everything overflows
    return (
        x,
        case.normal(d_model, d_ff, std=0.7),
        case.normal(d_ff, std=0.5),
        case.normal(d_ff, d_model),
        case.normal(d_model),
        activation,
    )


BENDS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}


@oracle
def network_oracle(x, w_up, b_up, w_down, b_down, activation):
    return F.linear(BENDS[activation](F.linear(x, w_up.T, b_up)), w_down.T, b_down)


def gated_inputs(case, size=1.0):
    x, w_up, _, w_down, _, _ = network_inputs(case, "silu", size)
    return x, case.normal(*w_up.shape, std=0.7), w_up, w_down


@oracle
def gated_oracle(x, w_gate, w_up, w_down):
    return torch.einsum("blf,fd->bld", F.silu(torch.matmul(x, w_gate)) * (x @ w_up), w_down)


def width_between_multiples(case):
    """A width whose two thirds are an integer, but not a multiple."""
    half = case.integer(3, 8)
    exact = 2 * (case.integer(2, 9) * half + case.integer(1, half - 1))
    return 3 * exact // 2, 2 * half


def width_at_a_multiple(case):
    """A width whose two thirds are already a multiple."""
    half = case.integer(3, 8)
    return 3 * half * case.integer(2, 9), 2 * half


def width_just_above_a_multiple(case):
    """A width whose two thirds are a third or two more than a multiple."""
    multiple = case.integer(5, 300)
    return 3 * multiple * case.integer(2, 9) // 2 + 1, multiple


@oracle
def width_oracle(d_ff, multiple):
    """Try one width after another until there are enough weights."""
    width = multiple
    while 3 * width < 2 * d_ff:
        width += multiple
    return width


def enough(width, d_ff, multiple):
    """Say if a gated network of this width has fewer weights than a plain one of width d_ff."""
    if not isinstance(width, (int, float)) or 3 * width >= 2 * d_ff:
        return None
    return (
        f"width is {width:g}: a gated network of width {width:g} has 3 * {width:g} = {3 * width:g} "
        f"weights per feature of the stream, but a plain one of width {d_ff} has 2 * {d_ff} = "
        f"{2 * d_ff}, which is more"
    )


@exercise(
    "feed_forward",
    number="4.2",
    title="The feed-forward network, plain and gated",
    asks="`feed_forward` expands, applies an activation function, and projects back; `swiglu` "
    "multiplies the expanded features by a gate; `gated_width` returns the width, rounded up, at "
    "which a gated network has as many weights as a plain one.",
    difficulty=2,
    importance=5,
    minutes=25,
)
class TestFeedForward:
    @points(2)
    def test_two_linear_layers_with_a_relu_between_them(self, subject, case):
        self.compare(subject, case, "relu")

    @points(1)
    def test_activation_gelu_is_the_exact_gelu(self, subject, case):
        self.compare(subject, case, "gelu")

    @points(1)
    def test_activation_gelu_tanh_is_its_tanh_approximation(self, subject, case):
        self.compare(subject, case, "gelu_tanh")
        self.compare(subject, case, "gelu_tanh", size=1e4)

    @points(2)
    def test_the_expanded_features_are_multiplied_by_the_gate(self, subject, case):
        for size in (1.0, 1e4):  # exponentials of such features overflow
            inputs = partial(gated_inputs, size=size)
            expect_agrees(subject, case, "swiglu", inputs, gated_oracle, TOKENS)

    @points(1)
    def test_gated_width_is_the_smallest_with_at_least_as_many_weights(self, subject, case):
        for inputs in (width_between_multiples, width_at_a_multiple, width_just_above_a_multiple):
            expect_law(subject, case, "gated_width", inputs, enough, correct=width_oracle)
            expect_agrees(subject, case, "gated_width", inputs, width_oracle, {"width": ""})

        def is_whole(width, d_ff, multiple):
            said = f"width is the float {width!r}: a layer needs an integer (`//`, or int())"
            return said if isinstance(width, float) else None

        expect_law(subject, case, "gated_width", width_at_a_multiple, is_whole)

    def compare(self, subject, case, activation, size=1.0):
        inputs = partial(network_inputs, activation=activation, size=size)
        expect_agrees(subject, case, "feed_forward", inputs, network_oracle, TOKENS)


# 4.3 ------------------------------------------------------------------------------------------

TORCH_NAMES = {
    "attention_norm.weight": "norm1.weight",
    "attention_norm.bias": "norm1.bias",
    "attention.in_proj_weight": "self_attn.in_proj_weight",
    "attention.in_proj_bias": "self_attn.in_proj_bias",
    "attention.out_proj.weight": "self_attn.out_proj.weight",
    "attention.out_proj.bias": "self_attn.out_proj.bias",
    "feed_forward_norm.weight": "norm2.weight",
    "feed_forward_norm.bias": "norm2.bias",
    "up.weight": "linear1.weight",
    "up.bias": "linear1.bias",
    "down.weight": "linear2.weight",
    "down.bias": "linear2.bias",
}


def block_inputs(case, norm, size=1.0):
    heads, d_head = case.size("heads", 2), case.size("d_head", 3, smallest=3)
    d_model, d_ff = heads * d_head, case.size("d_ff", 7)
    batch, length = case.size("batch", 4), case.size("length", 5, smallest=2)
    weights = {
        "attention.in_proj_weight": case.normal(3 * d_model, d_model, std=d_model**-0.5),
        "attention.in_proj_bias": case.normal(3 * d_model, std=0.5),
        "attention.out_proj.weight": case.normal(d_model, d_model, std=d_model**-0.5),
        "attention.out_proj.bias": case.normal(d_model, std=0.5),
        "up.weight": case.normal(d_ff, d_model, std=d_model**-0.5),
        "up.bias": case.normal(d_ff, std=0.5),
        "down.weight": case.normal(d_model, d_ff, std=d_ff**-0.5),
        "down.bias": case.normal(d_model, std=0.5),
    }
    for name in ("attention_norm", "feed_forward_norm"):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = norm_parameters(case, d_model)
    settings = {"d_model": d_model, "num_heads": heads, "d_ff": d_ff, "norm": norm}
    return settings, weights, size * case.normal(batch, length, d_model)


@oracle
def block_oracle(settings, weights, x, mask=None):
    """Torch's encoder layer. It stays in training mode, without dropout, to avoid its fast path."""
    layer = nn.TransformerEncoderLayer(
        settings["d_model"],
        settings["num_heads"],
        settings["d_ff"],
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=settings["norm"] == "pre",
        dtype=x.dtype,
    )
    layer.load_state_dict({TORCH_NAMES[name]: weight for name, weight in weights.items()})
    return layer.requires_grad_(False)(x, src_mask=None if mask is None else ~mask)


@exercise(
    "TransformerBlock",
    number="4.3",
    title="A transformer block, pre-norm and post-norm",
    asks="A module with `attention_norm`, `attention`, `feed_forward_norm`, `up` and `down`; "
    "`forward` adds the output of attention to the stream, then the output of the feed-forward "
    "network.",
    difficulty=3,
    importance=5,
    minutes=35,
)
class TestTransformerBlock:
    @points(3)
    def test_pre_norm_normalises_the_sublayer_inputs_only(self, subject, case):
        self.compare(subject, case, partial(block_inputs, norm="pre"))

    @points(2)
    def test_post_norm_normalises_after_each_residual_connection(self, subject, case):
        self.compare(subject, case, partial(block_inputs, norm="post"))

    @points(1)
    def test_the_mask_is_true_where_attention_is_allowed(self, subject, case):
        def inputs(case, norm):
            settings, weights, x = block_inputs(case, norm)
            length = x.shape[1]
            mask = case.uniform(length, length) < 0.5
            queries = torch.arange(length)
            mask[queries, queries], mask[queries, (queries + 1) % length] = True, False
            return settings, weights, x, mask

        def low_scores(case, norm):
            """Each token has a very low score with itself, and one of them sees nothing else."""
            settings, weights, x, mask = inputs(case, norm)
            query, _, value = weights["attention.in_proj_weight"].chunk(3)
            alone = torch.cat([1000 * query, -1000 * query, value])
            mask[:1] = torch.arange(len(mask)) == 0
            return settings, {**weights, "attention.in_proj_weight": alone}, x, mask

        others = without(case, "MaskIgnored")  # which looks like a mask that hides too little
        for norm in ("pre", "post"):
            self.compare(subject, case, partial(inputs, norm=norm))
            self.compare(subject, others, partial(low_scores, norm=norm))

    @points(1)
    def test_tokens_of_large_norm_keep_their_norm(self, subject, case):
        self.compare(subject, case, partial(block_inputs, norm="pre", size=10.0))

    @points(1)
    def test_gradients_flow_back_to_the_inputs(self, subject, case):
        for norm in ("pre", "post"):
            inputs = partial(block_inputs, norm=norm)
            expect_gradients(subject, case, "TransformerBlock", inputs, block_oracle, wrt=["x"])

    def compare(self, subject, case, inputs):
        expect_agrees(subject, case, "TransformerBlock", inputs, block_oracle, TOKENS)


# 4.6 ------------------------------------------------------------------------------------------


def stack_inputs(case):
    batch, length, layers = case.size("batch", 2), case.size("length", 3), case.size("layers", 4)
    d_model, d_ff = case.size("d_model", 5, smallest=3), case.size("d_ff", 7)
    return (
        case.normal(batch, length, d_model, std=1.5),
        *norm_parameters(case, layers + 1, d_model),
        case.normal(layers, d_model, d_ff, std=d_model**-0.5),
        case.normal(layers, d_ff, d_model, std=0.5),
    )


@oracle
def stack_oracle(x, gains, biases, w_up, w_down):
    norms = [partial(F.layer_norm, normalized_shape=g.shape, weight=g) for g in gains]
    streams = [x]
    for norm, bias, up, down in zip(norms[:-1], biases[:-1], w_up, w_down, strict=True):
        hidden = F.relu(torch.matmul(norm(streams[-1], bias=bias), up))
        streams.append(streams[-1] + torch.matmul(hidden, down))
    sizes = torch.stack([torch.linalg.vector_norm(s) / math.sqrt(s.numel()) for s in streams])
    return norms[-1](streams[-1], bias=biases[-1]), sizes


STACK = {"output": "batch length d_model", "sizes": "num_layers+1"}


@exercise(
    "stack_with_final_norm",
    number="4.6",
    title="Why a pre-norm stack ends with a norm",
    may_cut=("stack_with_final_norm",),
    asks="Return (output, sizes): the stream after all sub-layers and the final norm, and the size "
    "of the stream before the first sub-layer and after each one.",
    difficulty=2,
    importance=4,
    minutes=15,
    deeper=True,
)
class TestStackWithFinalNorm:
    @points(3)
    def test_the_output_passes_through_the_final_layer_norm(self, subject, case):
        self.compare(subject, case, ["output"])

    @points(2)
    def test_the_sizes_are_measured_on_the_residual_stream(self, subject, case):
        self.compare(subject, case, ["sizes"])

    def compare(self, subject, case, parts):
        expect_agrees(
            subject,
            case,
            "stack_with_final_norm",
            stack_inputs,
            stack_oracle,
            STACK,
            compare=parts,
        )


# 4.7 ------------------------------------------------------------------------------------------


def fan_in(case):
    return (case.integer(2, 1_000_000),)


def fan_in_and_depth(case):
    return case.integer(2, 2000), case.integer(2, 100)


@oracle
def add_up_variances(fan_in, num_layers, std):
    total = 1.0
    for _ in range(2 * num_layers):
        total += fan_in * std**2
    return total


def stays_below_two(std, fan_in, num_layers):
    """Judge a standard deviation by a stack of random layers: two for each block."""
    std = float(std)
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(64, fan_in, generator=generator)
    for _ in range(2 * num_layers):
        read = F.layer_norm(stream, (fan_in,))
        stream = stream + std * read @ torch.randn(fan_in, fan_in, generator=generator)
    variance = stream.var().item()
    if 1.8 < variance < 2.2:
        return None
    return (
        f"with standard deviation {std:.4g} and {fan_in} inputs, the variance of the stream is "
        f"{variance:.3g} after {num_layers} blocks, expected 2"
    )


@oracle
def init_std_oracle(fan_in, num_layers):
    return math.sqrt(1 / (fan_in * (num_layers + num_layers)))


@exercise(
    "init_std",
    number="4.7",
    title="Initial weights for any depth",
    asks="`linear_std` and `uniform_bound` return the scale at which weights preserve the mean "
    "square; `init_std`, the scale at which they double the variance of the stream at any depth; "
    "`stream_variance` returns the final variance of the stream.",
    difficulty=3,
    importance=4,
    minutes=20,
    deeper=True,
)
class TestInitStd:
    @points(1)
    def test_a_linear_layer_preserves_the_mean_square(self, subject, case):
        @oracle
        def right(fan_in):
            return math.sqrt(1 / fan_in)

        expect_agrees(subject, case, "linear_std", fan_in, right, {"standard deviation": ""})

    @points(1)
    def test_a_layer_with_relu_preserves_the_mean_square(self, subject, case):
        @oracle
        def right(fan_in):
            return nn.init.calculate_gain("relu") * math.sqrt(3 / fan_in)

        expect_agrees(subject, case, "uniform_bound", fan_in, right, {"bound": ""})

    @points(2)
    def test_all_sublayers_together_add_a_variance_of_one(self, subject, case):
        returns = {"standard deviation": ""}
        expect_agrees(subject, case, "init_std", fan_in_and_depth, init_std_oracle, returns)

    @points(1, only_with="test_all_sublayers_together_add_a_variance_of_one")
    def test_after_48_blocks_the_stream_has_a_variance_of_two(self, subject, case):
        def inputs(case):
            return case.integer(40, 60), 48

        expect_law(subject, case, "init_std", inputs, stays_below_two, correct=init_std_oracle)

    @points(1)
    def test_the_variances_of_all_sublayers_add_up(self, subject, case):
        def inputs(case):
            return *fan_in_and_depth(case), case.integer(1, 9) / 100

        returns = {"variance": ""}
        expect_agrees(subject, case, "stream_variance", inputs, add_up_variances, returns)


# 4.8 ------------------------------------------------------------------------------------------


def dropout_inputs(case, training):
    """Of 24 entries, no rate drops exactly its share, so the share that is kept is another."""
    batch, length = case.size("batch", 2), case.size("length", 3)
    d_model = case.size("d_model", 4, smallest=3)
    rate = case.integer(1, 4) / 10
    keep = case.uniform(batch, length, d_model) >= rate
    keep[0, 0, 0] = False
    return case.normal(batch, length, d_model), keep, rate, training


@oracle
def dropout_oracle(x, keep, rate, training):
    return x.masked_fill(~keep, 0.0).div(1 - rate) if training else x.clone()


def dropout_block_inputs(case, training):
    x, keep, rate, training = dropout_inputs(case, training)
    d_model, d_ff = x.shape[-1], case.size("d_ff", 7)
    return (
        x,
        keep,
        rate,
        *norm_parameters(case, d_model),
        case.normal(d_model, d_ff),
        case.normal(d_ff, d_model),
        training,
    )


@oracle
def dropout_block_oracle(x, keep, rate, gain, bias, w_up, w_down, training):
    hidden = F.relu(torch.matmul(F.layer_norm(x, gain.shape, gain, bias), w_up))
    return x + dropout_oracle(torch.matmul(hidden, w_down), keep, rate, training)


@exercise(
    "dropout_block",
    number="4.8",
    title="Where dropout belongs",
    asks="`dropout` drops features where `keep` is False and preserves the mean; `dropout_block` "
    "applies it to the output of a pre-norm feed-forward sub-layer.",
    difficulty=2,
    importance=3,
    minutes=15,
    deeper=True,
)
class TestDropoutBlock:
    @points(1)
    def test_kept_features_are_scaled_to_preserve_the_mean(self, subject, case):
        inputs = partial(dropout_inputs, training=True)
        expect_agrees(subject, case, "dropout", inputs, dropout_oracle, TOKENS)

    @points(1, only_with="test_kept_features_are_scaled_to_preserve_the_mean")
    def test_inputs_are_not_modified(self, subject, case):
        for training in (True, False):
            inputs = partial(dropout_inputs, training=training)
            expect_inputs_unchanged(subject, case, "dropout", inputs)

    @points(1, only_with="test_kept_features_are_scaled_to_preserve_the_mean")
    def test_in_evaluation_mode_the_output_equals_the_input(self, subject, case):
        inputs = partial(dropout_inputs, training=False)
        expect_agrees(subject, case, "dropout", inputs, dropout_oracle, TOKENS)

    @points(2)
    def test_dropout_is_applied_before_the_residual_connection(self, subject, case):
        self.compare_blocks(subject, case, training=True)

    @points(1)
    def test_in_evaluation_mode_the_whole_sublayer_output_is_added(self, subject, case):
        self.compare_blocks(subject, case, training=False)

    def compare_blocks(self, subject, case, training):
        inputs = partial(dropout_block_inputs, training=training)
        expect_agrees(subject, case, "dropout_block", inputs, dropout_block_oracle, TOKENS)


# 4.11 -----------------------------------------------------------------------------------------


def reader_inputs(case):
    d_model, d_out = case.size("d_model", 5, smallest=2), case.size("d_out", 3)
    return *norm_parameters(case, d_model), case.normal(d_out, d_model), case.normal(d_out)


def writer_inputs(case):
    d_model, d_in = case.size("d_model", 5, smallest=2), case.size("d_in", 3)
    return case.normal(d_model, d_in), case.normal(d_model)


def wrong_pair(pair, weight, bias):
    """Describe what is wrong with the form of a new weight and bias."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return f"the result should be a weight and a bias, in this order; it is {describe(pair)}"
    for name, new, old in zip(("weight", "bias"), pair, (weight, bias), strict=True):
        if not isinstance(new, torch.Tensor):
            return f"the new {name} should be a tensor; it is {describe(new)}"
        if new.shape != old.shape:
            return f"the new {name} has shape {tuple(new.shape)}, expected {tuple(old.shape)}"
    return None


def tokens_of(width):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, width, generator=generator, dtype=torch.float64)


@oracle
def folded_oracle(gain, bias, weight, linear_bias):
    return weight @ gain.diag(), F.linear(bias, weight, linear_bias)


@oracle
def centred_oracle(weight, linear_bias):
    both = torch.cat([weight, linear_bias[:, None]], dim=1)
    centred = both - both.mean(dim=0)
    return centred[:, :-1], centred[:, -1]


def reads_the_same(new, gain, bias, weight, linear_bias):
    if problem := wrong_pair(new, weight, linear_bias):
        return problem
    x = tokens_of(len(gain))
    before = F.linear(F.layer_norm(x, gain.shape, gain, bias), weight, linear_bias)
    return differs(
        "the output of the layer after folding", F.linear(F.layer_norm(x, gain.shape), *new), before
    )


def writes_the_same_centred(new, weight, linear_bias):
    if problem := wrong_pair(new, weight, linear_bias):
        return problem
    hidden = tokens_of(weight.shape[1])
    before = F.linear(hidden, weight, linear_bias)
    centred = before - before.mean(dim=1, keepdim=True)
    return differs("the output of the layer after centring", F.linear(hidden, *new), centred)


@exercise(
    "fold_norm",
    number="4.11",
    title="Fold a norm into the next linear layer",
    asks="`fold_norm` puts a norm's gain and bias into the linear layer after it; `centre_writer` "
    "changes a linear layer so that its outputs have mean 0.",
    difficulty=3,
    importance=3,
    minutes=15,
    deeper=True,
)
class TestFoldNorm:
    @points(3)
    def test_folding_does_not_change_the_output_of_the_layer(self, subject, case):
        expect_law(subject, case, "fold_norm", reader_inputs, reads_the_same, correct=folded_oracle)

    @points(
        1,
        only_with=(
            "test_folding_does_not_change_the_output_of_the_layer",
            "test_centring_subtracts_only_the_mean_of_the_output",
        ),
    )
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "fold_norm", reader_inputs)
        expect_inputs_unchanged(subject, case, "centre_writer", writer_inputs)

    @points(1)
    def test_centring_subtracts_only_the_mean_of_the_output(self, subject, case):
        expect_law(
            subject,
            case,
            "centre_writer",
            writer_inputs,
            writes_the_same_centred,
            correct=centred_oracle,
        )


# 4.10 -----------------------------------------------------------------------------------------


### BEGIN PACKED
def torch_norm(x, gain, bias, eps=1e-5):
    return F.layer_norm(x, gain.shape, gain, bias, eps)


def steps_of_norm(token, eps):
    variance, mean = torch.var_mean(token, correction=0)
    return mean, variance, (token - mean) * torch.rsqrt(variance + eps)


def norm_over(*axes, correction=0):
    """Return LayerNorm with its statistics taken over these axes."""

    def norm(x, gain, bias, eps=1e-5):
        variance = x.var(dim=axes, keepdim=True, correction=correction)
        return (x - x.mean(dim=axes, keepdim=True)) / torch.sqrt(variance + eps) * gain + bias

    return norm


def norm_in_float32(x, gain, bias, eps=1e-5):
    return torch_norm(x.float(), gain.float(), bias.float(), eps).to(x.dtype)


def norm_token_by_token(x, gain, bias, eps=1e-5):
    tokens = x.reshape(-1, x.shape[-1])
    done = [gain * (t - t.mean()) * (t.var(correction=0) + eps).rsqrt() + bias for t in tokens]
    return torch.stack(done).reshape(x.shape)


def epsilon_outside(x, gain, bias, eps=1e-5):
    spread = x.var(dim=-1, keepdim=True, correction=0).sqrt() + eps
    return (x - x.mean(dim=-1, keepdim=True)) / spread * gain + bias


RIGHT = {
    "torch's own": torch_norm,
    "mean and variance, one after the other": norm_over(-1),
    "one token after the other": norm_token_by_token,
    "one that computes in float32": norm_in_float32,
}
NOT_RIGHT = {
    "statistics over the tokens of a sequence": norm_over(1),
    "statistics over a whole sequence": norm_over(1, 2),
    "statistics over the batch": norm_over(0),
    "the variance is divided by d - 1": norm_over(-1, correction=1),
    "there is no epsilon": lambda x, gain, bias, eps=1e-5: norm_over(-1)(x, gain, bias, 0.0),
    "epsilon is added to the square root, not under it": epsilon_outside,
    "the gain is omitted": lambda x, gain, bias, eps=1e-5: torch_norm(x, 0 * gain + 1, bias, eps),
    "the bias is omitted": lambda x, gain, bias, eps=1e-5: torch_norm(x, gain, 0 * bias, eps),
}
### END PACKED


WHERE_IT_COUNTS = (
    "epsilon counts where the variance of a token is hardly larger than it: add tokens whose "
    "features are nearly equal, such as all close to 0"
)


@exercise(
    "check_layer_norm",
    number="4.10",
    title="Write a test for LayerNorm",
    asks="`check_layer_norm` calls the LayerNorm that it is given on inputs of your choice, and "
    "`assert`s that the results are correct.",
    difficulty=3,
    importance=4,
    minutes=30,
    deeper=True,
)
class TestCheckLayerNorm:
    @points(1)
    def test_statistics_over_tokens_are_caught(self, subject, case):
        self.judge(subject, case, "statistics over the tokens of a sequence")

    @points(1)
    def test_statistics_over_a_whole_sequence_are_caught(self, subject, case):
        self.judge(subject, case, "statistics over a whole sequence")

    @points(1)
    def test_statistics_over_the_batch_are_caught(self, subject, case):
        self.judge(subject, case, "statistics over the batch")

    @points(1)
    def test_a_variance_divided_by_d_minus_one_is_caught(self, subject, case):
        self.judge(subject, case, "the variance is divided by d - 1")

    @points(1)
    def test_a_missing_epsilon_is_caught(self, subject, case):
        self.judge(subject, case, "there is no epsilon", why=lambda expected: WHERE_IT_COUNTS)

    @points(1)
    def test_an_epsilon_outside_the_square_root_is_caught(self, subject, case):
        bug = "epsilon is added to the square root, not under it"
        self.judge(subject, case, bug, why=lambda expected: WHERE_IT_COUNTS)

    @points(1)
    def test_a_missing_gain_is_caught(self, subject, case):
        self.judge(subject, case, "the gain is omitted")

    @points(1)
    def test_a_missing_bias_is_caught(self, subject, case):
        self.judge(subject, case, "the bias is omitted")

    def judge(self, subject, case, bug, **more):
        expect_test_judges(subject, case, "check_layer_norm", RIGHT, NOT_RIGHT, bug, **more)


# 4.9 ------------------------------------------------------------------------------------------


def decoder_inputs(case, size=1.0):
    """With a size, the scores of self-attention are hundreds apart, and highest for the last token."""
    batch, length = case.size("batch", 2), case.size("length", 5, smallest=2)
    source_len, d_ff = case.size("source_len", 3), case.size("d_ff", 7)
    d_model = case.size("d_model", 6, smallest=3)
    x, memory = (
        case.normal(batch, length, d_model, std=2.0),
        case.normal(batch, source_len, d_model),
    )
    gains, biases = norm_parameters(case, 3, d_model)
    if size > 1:
        biases[0] *= size
        scores = F.layer_norm(x, (d_model,), gains[0]) @ biases[0]
        x = x.gather(1, scores.argsort(dim=1)[..., None].expand_as(x))
    return (
        x,
        memory,
        gains,
        biases,
        case.normal(d_model, d_ff),
        case.normal(d_ff, d_model),
    )


@oracle
def decoder_oracle(x, memory, gains, biases, w_up, w_down):
    first, second, third = (
        partial(F.layer_norm, normalized_shape=gain.shape, weight=gain, bias=bias)
        for gain, bias in zip(gains, biases, strict=True)
    )
    past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    own = F.scaled_dot_product_attention(*3 * [first(x)], attn_mask=past)
    found = F.scaled_dot_product_attention(second(x + own), memory, memory)
    stream = x + own + found
    return stream + torch.matmul(F.relu(torch.matmul(third(stream), w_up)), w_down)


def twin_inputs(case):
    """Two sequences that differ in their last token."""
    x, memory, *rest = decoder_inputs(case)
    twin = x[0].clone()
    twin[-1] += 3 * case.normal(x.shape[2])
    return torch.stack([x[0], twin]), memory[[0, 0]], *rest


def nobody_notices_the_last(output, x, memory, gains, biases, w_up, w_down):
    if not isinstance(output, torch.Tensor) or output.shape != x.shape:
        return f"the output should have shape {tuple(x.shape)}; it is {describe(output)}"
    change = (output[0] - output[1])[:-1].abs().amax(dim=-1)
    if (change < 1e-9).all():
        return None
    notice = (change >= 1e-9).nonzero().flatten().tolist()
    return f"changing the last of {x.shape[1]} tokens changes earlier outputs: {notice}"


def long_inputs(case):
    x, *rest = decoder_inputs(case)
    return 1000 * x, *rest


def about_as_long(output, x, memory, gains, biases, w_up, w_down):
    if not isinstance(output, torch.Tensor) or output.shape != x.shape:
        return f"the output should have shape {tuple(x.shape)}; it is {describe(output)}"
    ratio = (output.norm() / x.norm()).item()
    if 0.9 < ratio < 1.1:
        return None
    return (
        f"for tokens 1000 times as large, the outputs are {ratio:.3g} times as large as the "
        "tokens, expected about 1: the stream should be changed only by additions"
    )


@exercise(
    "mended_block",
    number="4.9",
    title="Bug hunt: a block with four bugs",
    asks="Return the correct output of the decoder's block: each norm is over the features of a "
    "token, the stream is changed only by additions, each sub-layer has its own norm, and each "
    "reads the stream that the previous one has written to.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestMendedBlock:
    @points(2)
    def test_without_feed_forward_both_attention_sublayers_are_correct(self, subject, case):
        def inputs(case, size=1.0):
            *rest, w_down = decoder_inputs(case, size)
            return *rest, 0 * w_down

        self.compare(subject, case, inputs)
        others = without(case, "CausalMaskLost")  # which looks like a mask that hides too little
        self.compare(subject, others, partial(inputs, size=300.0))

    @points(2)
    def test_feed_forward_reads_the_whole_stream_through_its_own_norm(self, subject, case):
        self.compare(subject, case, decoder_inputs)

    @points(1, only_with="test_without_feed_forward_both_attention_sublayers_are_correct")
    def test_no_output_depends_on_a_later_token(self, subject, case):
        self.obey(subject, case, twin_inputs, nobody_notices_the_last)

    @points(1, only_with="test_without_feed_forward_both_attention_sublayers_are_correct")
    def test_tokens_of_large_norm_keep_their_norm(self, subject, case):
        self.obey(subject, case, long_inputs, about_as_long)

    def compare(self, subject, case, inputs):
        expect_agrees(subject, case, "mended_block", inputs, decoder_oracle, TOKENS)

    def obey(self, subject, case, inputs, law):
        expect_law(subject, case, "mended_block", inputs, law, correct=decoder_oracle)


# 4.4 ------------------------------------------------------------------------------------------


@functools.cache
def reader():
    """Load the trained model in double precision, and a page of Python as its input."""
    from groundup.pretrained import load

    model, tokenizer = load("reader")
    page = tokenizer.encode(inspect.getsource(textwrap.TextWrapper))
    return model.double().requires_grad_(False), torch.tensor(page)


def trained_weights(block):
    weights = {"gain": block.feed_forward_norm.gain, "bias": block.feed_forward_norm.bias}
    for name in ("up", "down"):
        part = getattr(block.feed_forward, name)
        weights |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    return {name: weight.detach() for name, weight in weights.items()}


def before_feed_forward(ids, layer):
    """Run the model up to a feed-forward sub-layer."""
    model, _ = reader()
    x = model.embedding(ids)
    for block in model.blocks[:layer]:
        x = block(x)
    block = model.blocks[layer]
    return x + block.attention(block.attention_norm(x))


def after_feed_forward(x, layer):
    """Run the rest of the model from there."""
    model, _ = reader()
    for block in model.blocks[layer + 1 :]:
        x = block(x)
    return model.unembedding(model.final_norm(x))


def drawn_page(case):
    """Draw some lines of the page, and a layer."""
    model, page = reader()
    length = 24
    start = case.integer(0, len(page) - length)
    return page[None, start : start + length], case.integer(0, len(model.blocks) - 1)


def swap_inputs(case):
    ids, layer = drawn_page(case)
    return before_feed_forward(ids, layer), trained_weights(reader()[0].blocks[layer])


def of_another_width(case):
    """The sub-layer of a model that is narrower than the trained one."""
    d_model, d_ff = case.size("d_model", 6, smallest=3), case.size("d_ff", 11)
    gain, bias = norm_parameters(case, d_model)
    weights = {
        "gain": gain,
        "bias": bias,
        "up.weight": case.normal(d_ff, d_model, std=0.7),
        "up.bias": case.normal(d_ff),
        "down.weight": case.normal(d_model, d_ff),
        "down.bias": case.normal(d_model),
    }
    return case.normal(case.size("batch", 2), case.size("length", 5), d_model), weights


@oracle
def swap_oracle(x, weights):
    read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
    hidden = F.gelu(torch.addmm(weights["up.bias"], read.flatten(0, 1), weights["up.weight"].T))
    thought = torch.addmm(weights["down.bias"], hidden, weights["down.weight"].T)
    return x + thought.view_as(x)


def expect_same_logits(subject, case, layer):
    """Expect the same logits from the model with the student's sub-layer in this layer."""
    ids, _ = drawn_page(case)
    expected = reader()[0](ids)

    def inputs(case):
        return before_feed_forward(ids, layer), trained_weights(reader()[0].blocks[layer])

    def law(seen, x, weights):
        if not isinstance(seen, torch.Tensor) or seen.shape != x.shape:
            return f"the stream should have shape {tuple(x.shape)}; it is {describe(seen)}"
        logits = after_feed_forward(seen.double(), layer)
        if problem := differs("logits of the trained model", logits, expected):
            told, wanted = (
                F.cross_entropy(row[0, :-1], ids[0, 1:]).item() for row in (logits, expected)
            )
            return f"{problem}. The loss would be {told:.4f} nats per token instead of {wanted:.4f}"
        return None

    expect_law(subject, case, "swapped_sublayer", inputs, law)


@exercise(
    "swapped_sublayer",
    number="4.4",
    title="Your sub-layer in a trained model",
    may_cut=("swapped_sublayer",),
    asks="Return the stream after norm, feed-forward network and residual connection, with the "
    "weights of a trained model, so that its logits stay the same.",
    difficulty=2,
    importance=4,
    minutes=15,
)
class TestSwappedSublayer:
    @points(3)
    def test_the_residual_stream_of_the_trained_model_is_the_same(self, subject, case):
        for inputs in (swap_inputs, of_another_width):
            expect_agrees(subject, case, "swapped_sublayer", inputs, swap_oracle, TOKENS)

    @points(3)
    def test_in_any_layer_the_logits_of_the_trained_model_are_the_same(self, subject, case):
        for layer in range(len(reader()[0].blocks)):
            expect_same_logits(subject, case, layer)


# 4.12 -----------------------------------------------------------------------------------------


def expert_tokens(case, top_k):
    """Draw tokens and a router."""
    batch, length, d_model = case.size("batch", 2), case.size("length", 5), case.size("d_model", 6)
    num_experts = case.size("num_experts", 4, smallest=top_k + 1)
    return case.normal(batch, length, d_model), case.normal(d_model, num_experts, std=0.5)


def router_inputs(case, top_k, size=1.0):
    """With a size, the first token has scores whose exponentials overflow."""
    x, w_router = expert_tokens(case, top_k)
    x[0, 0] *= size
    return x, w_router, top_k


def tied_inputs(case):
    """The scores of one token are all equal."""
    x, w_router, top_k = router_inputs(case, 3)
    x[0, 0] = 0.0
    return x, w_router, top_k


def judge_ties(seen, x, w_router, top_k):
    most = int(seen[1].sum(dim=-1).max())
    if most > top_k:
        return f"a token whose scores are all equal uses {most} experts; top_k is {top_k}"
    return None


def scores_of(x, w_router):
    return torch.einsum("btm,me->bte", x, w_router)


def routed(scores, top_k):
    """Probabilities and choices: the experts with scores as high as the last one chosen."""
    last = scores.sort(dim=-1, descending=True).values[..., top_k - 1 : top_k]
    shares = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return shares / shares.sum(dim=-1, keepdim=True), scores >= last


@oracle
def router_oracle(x, w_router, top_k):
    return routed(scores_of(x, w_router), top_k)


@oracle
def tied_oracle(x, w_router, top_k):
    """One of the correct results where experts are tied."""
    probabilities, every = routed(scores_of(x, w_router), top_k)
    best = probabilities.argsort(dim=-1, descending=True, stable=True)[..., :top_k]
    return probabilities, torch.zeros_like(every).scatter(-1, best, torch.ones_like(every))


def expert_weights(case, d_model, num_experts):
    d_ff = case.size("d_ff", 7)
    return case.normal(num_experts, d_model, d_ff), case.normal(num_experts, d_ff, d_model)


def expert_inputs(case):
    x, w_router = expert_tokens(case, 2)
    return x, *routed(scores_of(x, w_router), 2), *expert_weights(case, *w_router.shape)


def overflowing_inputs(case):
    """One expert is used by the tokens that it returns 0 for, and would overflow for the others."""
    x, w_router = expert_tokens(case, 2)
    x[0, -1, 0], x[0, 0, 0] = -1 - x[0, -1, 0].abs(), 2 + x[0, 0, 0].abs()
    scores, rare = scores_of(x, w_router), case.integer(0, w_router.shape[1] - 1)
    scores[..., rare] = torch.where(x[..., 0] < 0, scores.amax() + 1, scores.amin() - 1)
    w_up, w_down = expert_weights(case, *w_router.shape)
    w_up[rare], w_down[rare] = 0.0, 1e200
    w_up[rare, 0, 0] = 1e308
    return x, *routed(scores, 2), w_up, w_down


@oracle
def experts_oracle(x, probabilities, chosen, w_up, w_down):
    """Token by token."""

    def expert(token, index):
        return F.linear(F.linear(token, w_up[index].T).clamp(min=0), w_down[index].T)

    tokens = [
        sum(weight[index] * expert(token, index) for index in used.nonzero().flatten().tolist())
        for token, weight, used in zip(
            x.flatten(0, 1), probabilities.flatten(0, 1), chosen.flatten(0, 1), strict=True
        )
    ]
    return torch.stack(tokens).view_as(x)


def gradient_of_experts(subject, *args):
    """Differentiate by w_down: a token's hidden features reach it from each expert that is run."""
    return subject.gradients("mixture_of_experts", args, [4], [torch.ones_like(args[0])])[0]


def judge_experts(gradient, args):
    (expected,) = experts_oracle.gradients(args, [4], [torch.ones_like(args[0])])
    if gradient is None:
        return "no gradient reaches `w_down`: part of the computation is cut off from it"
    if problem := differs("the gradient with respect to w_down", gradient, expected):
        return f"{problem}. Is each expert run only on the tokens that use it?"
    return None


def balance_inputs(case, top_k):
    return routed(scores_of(*expert_tokens(case, top_k)), top_k)


@oracle
def balance_oracle(probabilities, chosen):
    """The inner product of two vectors of frequencies."""
    tokens = probabilities.flatten(0, 1)
    choices = chosen.flatten(0, 1).nonzero()[:, 1]
    fractions = torch.bincount(choices, minlength=tokens.shape[1]).to(tokens.dtype) / len(choices)
    return tokens.shape[1] * torch.dot(fractions, tokens.mean(dim=0))


ROUTED = {
    "probabilities": "batch length num_experts",
    "chosen": "batch length num_experts",
}
BALANCE = {"loss": ""}


@exercise(
    "mixture_of_experts",
    number="4.12",
    title="A mixture of experts, and its balance",
    asks="`route` returns each token's probability for every expert, and the experts that it uses; "
    "`mixture_of_experts` adds up the weighted outputs of these; `balance_loss` is the "
    "load-balancing loss of a batch.",
    difficulty=3,
    importance=3,
    minutes=30,
    deeper=True,
)
class TestMixtureOfExperts:
    @points(1)
    def test_probabilities_are_a_softmax_over_all_experts(self, subject, case):
        self.route(subject, case, "probabilities")
        self.route(subject, case, "probabilities", size=5000.0)

    @points(1)
    def test_each_token_uses_its_most_probable_experts(self, subject, case):
        self.route(subject, case, "chosen")
        expect_law(subject, case, "route", tied_inputs, judge_ties, correct=tied_oracle)

    @points(2)
    def test_the_outputs_of_chosen_experts_are_weighted_and_added_up(self, subject, case):
        self.mix(subject, case, expert_inputs)

    @points(1)
    def test_overflow_in_an_unused_expert_has_no_effect(self, subject, case):
        self.mix(subject, case, overflowing_inputs)
        given = [overflowing_inputs(case.fresh(number)) for number in range(2)]
        requests = [asking(gradient_of_experts, *args) for args in given]
        requests.append(asks_for("mixture_of_experts", given[1]))
        expect_answer(subject, case, requests, partial(judge_experts, args=given[0]))

    @points(1)
    def test_the_balance_loss_combines_choices_and_probabilities(self, subject, case):
        self.balance(subject, case, top_k=1)

    @points(1)
    def test_all_chosen_experts_of_a_token_count_in_the_balance_loss(self, subject, case):
        self.balance(subject, case, top_k=3)

    def route(self, subject, case, part, size=1.0):
        inputs = partial(router_inputs, top_k=3, size=size)
        expect_agrees(subject, case, "route", inputs, router_oracle, ROUTED, compare=[part])

    def mix(self, subject, case, inputs):
        expect_agrees(subject, case, "mixture_of_experts", inputs, experts_oracle, TOKENS)

    def balance(self, subject, case, top_k):
        inputs = partial(balance_inputs, top_k=top_k)
        expect_agrees(subject, case, "balance_loss", inputs, balance_oracle, BALANCE)
