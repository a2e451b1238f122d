import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from groundup.core.layers import (
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    RMSNorm,
    layer_norm,
    new_feed_forward,
    new_norm,
    rms_norm,
)

# By hand


def test_layer_norm_by_hand():
    """Features 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5, not 20 / 3."""
    norm = LayerNorm(4, eps=0.0)
    x = torch.tensor([[1.0, 3.0, 5.0, 7.0]])
    expected = torch.tensor([[-3.0, -1.0, 1.0, 3.0]]) / math.sqrt(5)
    torch.testing.assert_close(norm(x), expected)
    with torch.no_grad():
        norm.gain.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 9.0]))
    scaled = expected * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor([0.0, 0.0, 0.0, 9.0])
    torch.testing.assert_close(norm(x), scaled)


def test_eps_is_inside_the_root_by_hand():
    """Variance 1 and eps 3: divided by 2, where an eps outside the root would divide by 4."""
    norm = LayerNorm(2, eps=3.0)
    torch.testing.assert_close(norm(torch.tensor([[-1.0, 1.0]])), torch.tensor([[-0.5, 0.5]]))


def test_feed_forward_by_hand():
    feed_forward = FeedForward(1, 2, "relu")
    with torch.no_grad():
        feed_forward.up.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        feed_forward.up.bias.copy_(torch.tensor([0.0, 0.5]))
        feed_forward.down.weight.copy_(torch.tensor([[2.0, -3.0]]))
        feed_forward.down.bias.copy_(torch.tensor([1.0]))
    x = torch.tensor([[4.0], [-4.0]])  # hidden (4, 0) and (0, 4.5)
    assert feed_forward(x).tolist() == [[9.0], [-12.5]]


def test_rms_norm_by_hand():
    """Features 1, 3, 5, 7: mean square (1 + 9 + 25 + 49) / 4 = 21; the mean stays."""
    norm, x = RMSNorm(4, eps=0.0), torch.tensor([[1.0, 3.0, 5.0, 7.0]])
    torch.testing.assert_close(norm(x), x / math.sqrt(21))
    with torch.no_grad():
        norm.gain.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expected = torch.tensor([[1.0, 6.0, 15.0, 28.0]]) / math.sqrt(21)
    torch.testing.assert_close(norm(x), expected)


def test_gated_feed_forward_by_hand():
    """Gate 2, value -3: sigmoid(2) * 2 * -3; gate and value are not exchangeable."""
    feed_forward = GatedFeedForward(1, 1, "swiglu")
    with torch.no_grad():
        for linear, weight in ((feed_forward.gate, 2.0), (feed_forward.up, -3.0)):
            linear.weight.fill_(weight)
        feed_forward.down.weight.fill_(5.0)
    expected = 5 * (2 / (1 + math.exp(-2))) * -3
    assert feed_forward(torch.ones(1, 1)).item() == pytest.approx(expected, rel=1e-6)


def test_squared_relu_by_hand():
    feed_forward = new_feed_forward(1, 1, "squared_relu", bias=False).double()
    with torch.no_grad():
        for parameter in feed_forward.parameters():
            parameter.fill_(1.0)
    x = torch.tensor([[3.0], [-3.0]], dtype=torch.float64)
    assert feed_forward(x).tolist() == [[9.0], [0.0]]


# Against torch


@pytest.mark.parametrize(("ours", "formula"), [(LayerNorm, layer_norm), (RMSNorm, rms_norm)])
def test_the_kernel_and_the_formula_agree_forward_and_backward(normal, shaken, ours, formula):
    module, x, upstream = shaken(ours(5)), normal(2, 3, 5), normal(2, 3, 5)
    parameters = list(module.parameters())
    results = []
    for norm in (module, lambda x: formula(x, *parameters)):
        leaf = x.clone().requires_grad_()
        out = norm(leaf)
        results.append((out, *torch.autograd.grad(out, [leaf, *parameters], upstream)))
    for own, expected in zip(*results, strict=True):
        torch.testing.assert_close(own, expected)


def test_layer_norm_equals_torch_s_forward_and_backward(normal, shaken, transfer):
    ours, theirs = shaken(LayerNorm(5)), nn.LayerNorm(5).double()
    transfer.norm(ours, theirs)
    x, upstream = normal(2, 3, 5), normal(2, 3, 5)
    results = []
    for norm in (ours, theirs):
        leaf = x.clone().requires_grad_()
        out = norm(leaf)
        results.append((out, *torch.autograd.grad(out, [leaf, *norm.parameters()], upstream)))
    for own, expected in zip(*results, strict=True):
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize(
    ("activation", "bend"), [("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", nn.GELU("tanh"))]
)
def test_feed_forward_equals_torch_s(normal, shaken, activation, bend):
    feed_forward, x = shaken(FeedForward(5, 11, activation)), normal(2, 3, 5)
    up, down = feed_forward.up, feed_forward.down
    expected = F.linear(bend(F.linear(x, up.weight, up.bias)), down.weight, down.bias)
    torch.testing.assert_close(feed_forward(x), expected)


def test_gelu_is_the_exact_one(normal):
    feed_forward, x = FeedForward(1, 1, "gelu").double(), torch.tensor([[1.5]], dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip(feed_forward.parameters(), (1.0, 0.0, 1.0, 0.0), strict=True):
            parameter.fill_(value)
    normal_share = (1 + math.erf(1.5 / math.sqrt(2))) / 2
    assert feed_forward(x).item() == pytest.approx(1.5 * normal_share, abs=1e-12)


# Laws


def test_features_of_a_token_come_out_with_mean_zero_and_variance_one(normal):
    out = LayerNorm(7, eps=0.0).double()(5 + 3 * normal(2, 3, 7))
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 3, dtype=torch.float64))
    torch.testing.assert_close(out.var(-1, correction=0), torch.ones(2, 3, dtype=torch.float64))


def test_layer_norm_ignores_the_size_and_the_offset_of_a_token(normal, shaken):
    norm, x = shaken(LayerNorm(7, eps=0.0)), normal(2, 3, 7)
    torch.testing.assert_close(norm(11 * x + 13), norm(x))


@pytest.mark.parametrize(
    "layer", [LayerNorm(5), RMSNorm(5), FeedForward(5, 11, "gelu"), GatedFeedForward(5, 11)]
)
def test_a_token_does_not_depend_on_its_neighbours(normal, shaken, layer):
    layer, x = shaken(layer), normal(2, 3, 5)
    other = x.clone()
    other[0, 2], other[1] = normal(5), normal(3, 5)
    torch.testing.assert_close(layer(other)[0, :2], layer(x)[0, :2])
    assert not torch.allclose(layer(other)[0, 2], layer(x)[0, 2])


def test_a_constant_token_gives_the_bias(shaken):
    norm = shaken(LayerNorm(5))
    constant = torch.full((3, 5), 7.0, dtype=torch.float64)
    torch.testing.assert_close(norm(constant), norm.bias.expand(3, 5))


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_features_do_not_overflow_in_half_precision(normal, norm, dtype):
    x = (1000 * normal(3, 5)).to(dtype)
    out = norm(5).to(dtype)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), norm(5).double()(x.double()), atol=1e-2, rtol=1e-2)


def test_rms_norm_of_tokens_with_mean_zero_is_their_layer_norm(normal):
    x = normal(2, 3, 7)
    x = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(RMSNorm(7).double()(x), LayerNorm(7).double()(x))
    torch.testing.assert_close(RMSNorm(7, eps=0.0).double()(11 * x), RMSNorm(7, 0.0).double()(x))


def test_a_gate_at_two_thirds_of_the_width_costs_the_same():
    gated, plain = GatedFeedForward(6, 16, bias=False), FeedForward(6, 24, bias=False)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (gated, plain)]
    assert sizes == [3 * 6 * 16, 2 * 6 * 24]


# Refusals


def test_an_unknown_activation_is_refused(unchecked):
    with pytest.raises(ValueError, match="one of relu, gelu, .*, got activation=tanh"):
        FeedForward(5, 11, "tanh")
    with pytest.raises(ValueError, match="one of swiglu, geglu, geglu_tanh, got activation=relu"):
        GatedFeedForward(5, 11, "relu")
    with pytest.raises(ValueError, match="one of relu, .*, geglu_tanh, got activation=tanh"):
        new_feed_forward(5, 11, "tanh")


def test_an_unknown_norm_is_refused(unchecked):
    with pytest.raises(ValueError, match="norm must be one of layer, rms, got norm=batch"):
        new_norm("batch", 5)


@pytest.mark.slow
def test_a_compiled_model_with_relus_learns_the_same_and_keeps_no_booleans():
    """In a process of its own: the compiler and the checker of shapes do not go together."""
    program = """
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from groundup.presets import encoder_decoder
from groundup.core.models import EncoderDecoder

kept = []

def note(graph, inputs):
    outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    kept.extend(value.meta["val"].dtype for value in outputs if value is not None)
    return make_boxed_func(graph)

backend = aot_autograd(
    fw_compiler=note,
    bw_compiler=lambda graph, inputs: make_boxed_func(graph),
    partition_fn=min_cut_rematerialization_partition,
    decompositions=select_decomp_table(),
)
sizes = dict(source_vocab_size=11, vocab_size=13, source_max_len=5, max_len=4)
for activation in ("relu", "squared_relu"):
    config = encoder_decoder("tiny", **sizes, activation=activation)
    model = EncoderDecoder(config, torch.Generator().manual_seed(0))
    inputs = torch.randint(11, (2, 5)), torch.randint(13, (2, 4))
    plain, compiled = model(*inputs), torch.compile(model, backend=backend, fullgraph=True)(*inputs)
    torch.testing.assert_close(compiled, plain)
    parts = list(model.parameters())
    weights = torch.randn_like(plain)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), parts) for y in (compiled, plain))
    torch.testing.assert_close(ours, theirs)
assert len(kept) > 50 and torch.bool not in kept, kept
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
