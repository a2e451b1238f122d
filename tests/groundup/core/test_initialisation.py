import math

import pytest
import torch
import torch.nn.functional as F

from groundup.core.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.core.models import DecoderOnly, EncoderDecoder

# Sizes: vocabulary 19 (source 23), d_model 12, 3 heads, d_ff 13, up to 11 tokens (source 17).

SMALL = {
    "vocab_size": 19,
    "max_len": 11,
    "d_model": 12,
    "num_layers": 2,
    "num_heads": 3,
    "d_ff": 13,
    "positions": "learned",
    "norm_order": "pre",
    "activation": "gelu",
    "dropout": 0.0,
    "tie_embeddings": True,
}
SOURCE = {"source_vocab_size": 23, "source_max_len": 17, "num_encoder_layers": 3}
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi"]
ORDERS = ["pre", "post"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# Laws


def test_sub_layers_may_start_by_adding_nothing():
    config = DecoderOnlyConfig(**SMALL | {"zero_init_outputs": True})
    model = DecoderOnly(config, generator())
    x = torch.randn(2, 5, 12, generator=generator(1))
    for block in model.blocks:
        assert torch.equal(block(x), x)


def test_a_seed_makes_a_model_and_another_seed_another():
    config = DecoderOnlyConfig(**SMALL)
    weights = [DecoderOnly(config, generator(seed)).state_dict() for seed in (0, 0, 1)]
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name])
        assert torch.equal(weight, weights[2][name]) == (weight.std() == 0), name


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize("kind", [DecoderOnly, EncoderDecoder])
def test_weights_start_at_the_size_that_was_chosen(kind, norm_order):
    """Variance 2 / (5 d_model); before the sum, pre-norm divides it by the number of sums."""
    sizes = {"d_model": 120, "num_heads": 4, "d_ff": 480, "norm_order": norm_order}
    if kind is DecoderOnly:
        model = kind(DecoderOnlyConfig(**SMALL | sizes), generator())
        sums = {"blocks": 4}
    else:
        model = kind(EncoderDecoderConfig(**SMALL | SOURCE | sizes), generator())
        sums = {"blocks": 6, "encoder": 6}
    std = math.sqrt(2 / (5 * 120))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert parameter.eq(0).all()
        elif name.endswith("gain"):
            assert parameter.eq(1).all()
        else:
            is_writer = name.endswith(("attention.output.weight", "down.weight"))
            number = sums[name.split(".")[0]] if is_writer and norm_order == "pre" else 1
            assert parameter.std().item() == pytest.approx(std / math.sqrt(number), rel=0.06), name


def test_the_stream_of_a_deep_pre_norm_stack_stays_calm():
    """At the start, 24 blocks leave the variance of the stream within a factor of two of 1's."""

    def stream_variance(num_layers):
        sizes = {"d_model": 96, "num_heads": 4, "d_ff": 384, "num_layers": num_layers}
        model, seen = DecoderOnly(DecoderOnlyConfig(**SMALL | sizes), generator()), []
        model.final_norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        model(torch.arange(11)[None])
        return seen[0].var().item()

    assert stream_variance(24) == pytest.approx(stream_variance(1), rel=1.0)


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_new_model_s_loss_is_near_that_of_a_guess(tokens, positions, norm_order):
    sizes = {"d_model": 96, "num_heads": 4, "d_ff": 384, "vocab_size": 101}
    overrides = {"positions": positions, "norm_order": norm_order}
    model = DecoderOnly(DecoderOnlyConfig(**SMALL | sizes | overrides), generator())
    numbers = tokens(101, 16, 12)
    loss = F.cross_entropy(model(numbers[:, :-1]).flatten(0, 1), numbers[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(101), abs=1.0)
