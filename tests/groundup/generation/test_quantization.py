import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.generation.loop import generate
from groundup.generation.quantization import Int8Linear, quantize, quantize_rows
from groundup.looking.audit import batch_audit, causality_audit

# Sizes: vocabulary 19, d_model 16, 2 heads, d_ff 24, context 11.


@pytest.fixture
def model():
    config = presets.decoder_only(
        "tiny", vocab_size=19, max_len=11, d_model=16, num_layers=2, num_heads=2, d_ff=24
    )
    return DecoderOnly(config, torch.Generator().manual_seed(0)).eval()


# By hand


def test_each_row_has_a_step_of_its_own_by_hand():
    """The largest number of a row becomes 127; 0.5 steps are rounded to the even number."""
    weight = torch.tensor([[127.0, -1.0, 0.4], [-2.54, 0.02, 1.0], [0.0, 0.0, 0.0]])
    numbers, step = quantize_rows(weight)
    assert numbers.tolist() == [[127, -1, 0], [-127, 1, 50], [0, 0, 0]]
    torch.testing.assert_close(step, torch.tensor([1.0, 0.02, 1.0]))


# Laws


def test_no_weight_moves_by_more_than_half_a_step(normal):
    weight = normal(7, 13, dtype=torch.float32) * torch.logspace(-3, 3, 7)[:, None]
    numbers, step = quantize_rows(weight)
    assert ((numbers * step[:, None] - weight).abs() <= 0.501 * step[:, None]).all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(13,), (3, 13), (2, 5, 13)])
def test_both_ways_to_multiply_come_near_the_linear_map(normal, bias, shape):
    """In whole numbers in float32, with weights turned back in float64."""
    linear, x = nn.Linear(13, 7, bias=bias), normal(*shape)
    with torch.no_grad():
        linear.weight.copy_(normal(7, 13))
    for dtype, tolerance in ((torch.float32, 0.03), (torch.float64, 0.01)):
        expected = linear.to(dtype)(x.to(dtype))
        own = Int8Linear(linear)(x.to(dtype))
        assert own.dtype == dtype and own.shape == expected.shape
        assert (own - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.slow
def test_a_processor_that_cuts_off_large_sums_multiplies_the_weights_turned_back():
    """Most have no VNNI; oneDNN can be told to do as there."""
    code = """
import torch
from groundup.generation.quantization import Int8Linear
linear, x = torch.nn.Linear(13, 7), torch.ones(5, 13)
with torch.no_grad():
    linear.weight.fill_(1.0)
    print((Int8Linear(linear)(x) - linear(x)).abs().max().item() < 0.01)
"""
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert told.stdout == "True\n", told.stdout + told.stderr


def test_a_model_of_eight_bits_says_nearly_the_same(model, tokens):
    numbers, small = tokens(19, 2, 7), quantize(model)
    before = model(numbers)
    assert (small(numbers) - before).abs().max() < 0.05 * before.abs().max()
    kept = [name for name, _ in small.named_parameters()]
    assert kept and not [name for name in kept if "attention.query" in name or "up" in name]
    assert not any(isinstance(module, nn.Linear) for module in small.modules())


def test_its_matrices_take_a_quarter_of_the_memory(model):
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    before = sum(linear.weight.nbytes for linear in linears)
    small = [m for m in quantize(model).modules() if isinstance(m, Int8Linear)]
    assert sum(linear.weight.nbytes for linear in small) * 4 == before
    assert len(small) == len(linears)


def test_the_model_that_was_copied_stays_as_it_was(model, tokens):
    numbers = tokens(19, 2, 7)
    before = model(numbers)
    quantize(model)
    assert torch.equal(model(numbers), before)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_tokens_and_batch_mates_stay_apart_in_eight_bits(model, tokens):
    """One scale for all would carry news of the largest number to every other row."""
    small = quantize(model)
    audit = causality_audit(small, tokens(19, 2, 7), 19)
    assert audit.holds, str(audit)
    audit = batch_audit(small, tokens(19, 3, 7), 19)
    assert audit.holds, str(audit)


def test_a_model_of_eight_bits_writes_with_a_cache_as_without(model, tokens):
    small, prompt = quantize(model), tokens(19, 2, 3)
    assert torch.equal(generate(small, prompt, 7), generate(small, prompt, 7, cache=None))


# Refusals


def test_a_model_without_linear_maps_in_float32_is_refused(model):
    with pytest.raises(ValueError, match="must contain linear layers in float32, got none"):
        quantize(model.double())
