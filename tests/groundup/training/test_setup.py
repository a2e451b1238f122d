import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from groundup import presets
from groundup.core.models import DecoderOnly
from groundup.core.multihead import MultiHeadAttention
from groundup.data.batches import Batch
from groundup.training.loop import TrainingConfig, train_step
from groundup.training.setup import Setup, choose_setup, recompute, set_up

# Sizes: vocabulary 11, d_model 12, 3 heads, d_ff 13, context 7, batches of 5.


@pytest.fixture
def model():
    sizes = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_heads": 3, "d_ff": 13}
    config = presets.decoder_only("tiny", **sizes, num_layers=2, dropout=0.3)
    return DecoderOnly(config, torch.Generator().manual_seed(0))


@pytest.fixture
def batch(tokens):
    return Batch({"tokens": tokens(11, 5, 7)}, tokens(11, 5, 7))


@pytest.fixture
def times(monkeypatch):
    """Pretend what the first update and a later one take, in seconds, by setup."""
    table, asked = {}, []

    def time_update(model, batch, config, setup):
        asked.append(setup.name)
        result = table[setup.name]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr("groundup.training.setup._time_update", time_update)
    table["asked"] = asked
    return table


@pytest.fixture
def without_bfloat16(monkeypatch):
    monkeypatch.setattr("groundup.training.setup.multiplies_bfloat16", lambda device: False)


def settings(steps):
    return TrainingConfig(steps=steps, learning_rate=0.01)


def name(precision, kind, attention):
    return f"{precision}, {kind}, {attention} attention"


EAGER = [name("float32", "eager", "fused"), name("float32", "eager", "explicit")]
COMPILED = [name("float32", "compiled", "fused"), name("float32", "compiled", "explicit")]


def test_a_setup_says_its_choices():
    setup = Setup(precision="bfloat16", compiled=True, attention="explicit")
    assert setup.name == "bfloat16, compiled, explicit attention"


@pytest.mark.usefixtures("without_bfloat16")
def test_a_short_run_is_not_measured(model, batch, times):
    setup = choose_setup(model, batch, settings(steps=159))
    assert setup == Setup(precision="float32", compiled=False, attention="fused")
    assert times["asked"] == []


def test_what_is_asked_for_is_not_measured(model, batch, times):
    setup = choose_setup(
        model, batch, settings(10**6), precision="bfloat16", compiled=True, attention="explicit"
    )
    assert setup == Setup(precision="bfloat16", compiled=True, attention="explicit")
    assert times["asked"] == []


def test_a_gpu_that_is_not_nvidias_computes_in_float32_and_compiles_nothing(model, batch, times):
    """The meta device stands for it; both are neither `cpu` nor `cuda`."""
    setup = choose_setup(model.to("meta"), batch, settings(steps=10**6))
    assert setup == Setup(precision="float32", compiled=False, attention="fused")
    assert times["asked"] == []


class WithoutFloat64(TorchDispatchMode):
    """Refuse what Apple's GPUs cannot hold, wherever a tensor is on the meta device."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **kwargs or {})
        for x in tree_leaves((args, result)):
            if isinstance(x, torch.Tensor) and x.device.type == "meta":
                assert x.dtype not in (torch.float64, torch.complex128), str(operation)
        return result


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned", "rotary", "alibi"])
def test_a_step_needs_no_float64_on_a_gpu(positions, batch, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    sizes = {"vocab_size": 11, "max_len": 7, "d_model": 12, "num_heads": 3, "d_ff": 13}
    config = presets.decoder_only("tiny", **sizes, num_layers=2, positions=positions)
    model = DecoderOnly(config, torch.Generator().manual_seed(0))
    with WithoutFloat64():
        model = set_up(model.to("meta"), choose_setup(model.to("meta"), batch, settings(10)))
        optimizer = torch.optim.AdamW(model.parameters())  # meta has no fused one
        loss, _ = train_step(model, batch.to("meta"), optimizer)
    assert loss.device.type == "meta"


@pytest.mark.usefixtures("without_bfloat16")
@pytest.mark.parametrize("fastest", [0, 1])
def test_the_faster_attention_is_chosen_and_what_was_measured_is_kept(model, batch, times, fastest):
    times |= {EAGER[fastest]: (1.0, 0.012), EAGER[1 - fastest]: (0.1, 0.02)}
    setup = choose_setup(model, batch, settings(steps=1000))
    assert setup.name == EAGER[fastest]
    assert setup.milliseconds == {EAGER[fastest]: 12.0, EAGER[1 - fastest]: 20.0}
    # compiling takes a minute, and this run takes twelve seconds
    assert times["asked"] == EAGER


@pytest.mark.usefixtures("without_bfloat16")
def test_a_long_run_is_worth_compiling_for(model, batch, times):
    times |= {EAGER[0]: (0, 2.0), EAGER[1]: (0, 3.0), COMPILED[0]: (9, 1.0), COMPILED[1]: (9, 0.5)}
    setup = choose_setup(model, batch, settings(steps=1000))
    assert setup.name == COMPILED[1]
    assert times["asked"] == [*EAGER, *COMPILED]


@pytest.mark.usefixtures("without_bfloat16")
def test_what_compiling_takes_counts(model, batch, times):
    times |= {EAGER[0]: (0, 2.0), EAGER[1]: (0, 3.0)}
    times |= {COMPILED[0]: (500, 1.6), COMPILED[1]: (500, 1.4)}
    assert choose_setup(model, batch, settings(steps=1000)).name == COMPILED[1]  # 1900 s
    times[COMPILED[1]] = (700, 1.4)  # 2100 s, and 2000 s without
    assert choose_setup(model, batch, settings(steps=1000)).name == EAGER[0]


@pytest.mark.usefixtures("without_bfloat16")
def test_without_a_compiler_nothing_is_compiled(model, batch, times):
    failure = RuntimeError("no compiler")
    times |= {EAGER[0]: (0, 2.0), EAGER[1]: (0, 3.0), COMPILED[0]: failure, COMPILED[1]: failure}
    setup = choose_setup(model, batch, settings(steps=1000))
    assert setup.name == EAGER[0]
    assert set(setup.milliseconds) == set(EAGER)
    with pytest.raises(RuntimeError, match="no compiler"):
        choose_setup(model, batch, settings(steps=1000), compiled=True)


def test_bfloat16_is_tried_where_there_are_instructions_for_it(model, batch, times, monkeypatch):
    monkeypatch.setattr("groundup.training.setup.multiplies_bfloat16", lambda device: True)
    low = [name("bfloat16", "eager", attention) for attention in ("fused", "explicit")]
    times |= {EAGER[0]: (0, 0.02), EAGER[1]: (0, 0.02), low[0]: (0, 0.03), low[1]: (0, 0.01)}
    setup = choose_setup(model, batch, settings(steps=1000))
    assert setup.name == low[1]
    assert times["asked"] == [*EAGER, *low]


def test_measuring_changes_neither_the_model_nor_the_random_state(model, batch):
    before = [p.detach().clone() for p in model.parameters()]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    setup = choose_setup(model, batch, settings(steps=1000), precision="float32", compiled=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(setup.milliseconds) == set(EAGER)
    assert setup.milliseconds[setup.name] == min(setup.milliseconds.values())
    assert all(0 < value < 10_000 for value in setup.milliseconds.values())
    for got, expected in zip(model.parameters(), before, strict=True):
        assert torch.equal(got, expected)
        assert got.grad is None
    assert {m.backend for m in model.modules() if isinstance(m, MultiHeadAttention)} == {"fused"}


def test_a_setup_switches_every_attention_over(model, tokens):
    setup = Setup(precision="float32", compiled=False, attention="explicit")
    model.eval()
    given = tokens(11, 2, 5)
    fused = model(given)
    assert set_up(model, setup) is model
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert [attention.backend for attention in attentions] == ["explicit", "explicit"]
    torch.testing.assert_close(model(given), fused)


def test_a_compiled_setup_is_that_of_the_compiler(model, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module: nn.ModuleList([module]))
    setup = Setup(precision="float32", compiled=True, attention="explicit")
    (wrapped,) = set_up(model, setup)
    assert wrapped is model
    assert model.blocks[0].attention.backend == "explicit"


# Recomputing


def test_blocks_that_are_computed_again_learn_bit_for_bit_the_same(model, batch):
    again = copy.deepcopy(model)
    recompute(again)
    gradients = []
    for one in (model, again):
        torch.manual_seed(0)  # of dropout
        logits = one(**batch.inputs)
        nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        gradients.append([parameter.grad for parameter in one.parameters()])
    assert dict(again.named_parameters()).keys() == dict(model.named_parameters()).keys()
    for grad, same in zip(*gradients, strict=True):
        torch.testing.assert_close(grad, same, rtol=0, atol=0)


def test_a_model_that_recomputes_still_generates_from_a_cache(model, tokens):
    again = copy.deepcopy(model.eval())
    recompute(again)
    read, cache = tokens(11, 2, 5), again.new_cache(2)
    with torch.no_grad():
        again(read[:, :3], cache=cache)
        torch.testing.assert_close(again(read[:, 3:], cache=cache), model(read)[:, 3:])
