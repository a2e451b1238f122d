import json
import sys

import pytest
import torch

from groundup import presets, pretrained
from groundup.__main__ import main
from groundup.core import layers, models
from groundup.core.config import DecoderOnlyConfig
from groundup.data.batches import source_batch
from groundup.generation.loop import generate, generate_beams, translate_texts
from groundup.generation.sampling import greedy
from groundup.looking.audit import causality_audit
from groundup.own_parts import parts
from groundup.own_parts.assembled import assemble, count_calls, load_library, rebuilt, refusals
from groundup.variants import functional
from groundup.variants.functional import Parts

SIZES = {"vocab_size": 11, "max_len": 13, "d_model": 12, "num_layers": 3, "num_heads": 3}
SIZES |= {"d_ff": 7, "dropout": 0.0, "tie_embeddings": True, "norm_order": "pre"}
KINDS = {
    "rotary": {"positions": "rotary", "activation": "gelu"},
    "post-norm": {"positions": "sinusoidal", "activation": "gelu", "norm_order": "post"},
    "learned": {"positions": "learned", "activation": "gelu_tanh", "window": 3},
    "alibi": {"positions": "alibi", "activation": "relu", "bias": False},
    "shared keys": {"positions": "none", "activation": "geglu", "num_kv_heads": 1},
    "modern": {"positions": "rotary", "activation": "squared_relu", "norm": "rms", "qk_norm": True},
    "gated": {"positions": "rotary", "activation": "swiglu", "bias": False, "num_kv_heads": 1},
}
LAYERS = ("MultiHeadAttention", "CrossAttention", "TransformerBlock", "cached_attention")
WHOLE = Parts(**{name: vars(parts)[name] for name in LAYERS})


def pair(own, **choices):
    """Return a model of the library and the same model, computed by parts, in float64."""
    config = presets.from_dict(DecoderOnlyConfig, SIZES | choices)
    generator = torch.Generator().manual_seed(5)
    model = models.DecoderOnly(config, generator).double().eval()
    with torch.no_grad():
        for p in model.parameters():  # gains of 1 and biases of 0 would hide that one is left out
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    other = assemble(own)(config).double().eval()
    other.load_state_dict(model.state_dict())
    return model, other


@pytest.fixture
def tokens():
    return torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def library(tmp_path):
    """Write packages that can be imported, and forget them again."""
    paths, modules = sys.path[:], set(sys.modules)

    def write(text, name="somebodys"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        return tmp_path / name

    yield write
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        if name.startswith("somebodys"):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("own", [Parts(), WHOLE], ids=["small parts", "whole layers"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_right_parts_gives_the_librarys_numbers(kind, own, tokens):
    model, other = pair(own, **KINDS[kind])
    assert [*other.state_dict()] == [*model.state_dict()]
    torch.testing.assert_close(other(tokens), model(tokens))
    # Rows in which nothing is allowed, heads that differ, and places that are given.
    hidden = torch.arange(7) >= torch.tensor([[3], [0]])
    by_head = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    for mask in (hidden[:, None, None], by_head):
        places = (torch.arange(7) - torch.tensor([[3], [0]])).clamp(min=0)
        seen = other(tokens, mask=mask, positions=places)
        torch.testing.assert_close(seen, model(tokens, mask=mask, positions=places))
    for cache in ("growing", "static"):
        lengths = torch.tensor([4, 7])
        seen = generate(other, tokens, 5, greedy, lengths=lengths, cache=cache)
        assert seen.equal(generate(model, tokens, 5, greedy, lengths=lengths, cache=cache))


@pytest.mark.parametrize("own", [Parts(), WHOLE], ids=["small parts", "whole layers"])
def test_dropout_falls_on_the_same_places(own, tokens):
    model, other = pair(own, positions="rotary", activation="gelu", dropout=0.3)
    seen = []
    for one in (model, other):
        torch.manual_seed(0)
        seen.append(one.train()(tokens))
    torch.testing.assert_close(*seen)
    model, other = pair(own, positions="rotary", activation="gelu", attention_dropout=0.3)
    assert not torch.equal(other.train()(tokens), other(tokens))
    torch.testing.assert_close(other.eval()(tokens), model.eval()(tokens))


def test_a_model_starts_from_the_same_weights_and_keeps_the_global_state():
    config = presets.from_dict(DecoderOnlyConfig, SIZES | KINDS["rotary"])
    own, generators = assemble(WHOLE), [torch.Generator().manual_seed(2) for _ in range(2)]
    torch.manual_seed(0)
    model, after = models.DecoderOnly(config, generators[0]), torch.rand(1)
    torch.manual_seed(0)
    other = own(config, generators[1])
    assert torch.rand(1).equal(after)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert one.equal(two)


def test_a_trained_model_writes_the_same_and_stays_causal():
    model, tokenizer = pretrained.load("reader")
    library = type(sys)("somebodys")
    library.DecoderOnly = assemble(WHOLE)
    other = rebuilt(model, library)
    assert not other.training
    prompt = torch.tensor([tokenizer.encode("def main(")])
    torch.testing.assert_close(other(prompt), model(prompt), rtol=1e-5, atol=1e-5)
    assert generate(other, prompt, 17, greedy).equal(generate(model, prompt, 17, greedy))
    assert causality_audit(other, prompt, tokenizer.vocab_size).holds


def test_an_encoder_decoder_of_right_parts_reads_dates_as_ours_does():
    model, tokenizers = pretrained.load("dates")
    library = type(sys)("somebodys")
    library.DecoderOnly = assemble(WHOLE)
    calls = count_calls(library)
    other = rebuilt(model, library)
    assert type(other).__name__ == "EncoderDecoder"
    dates = ["3. Mai 2031", "25 January 1904", "19 Eylül 1961"]
    ways = [{}, {"num_beams": 3}]
    for how in ways:
        seen = translate_texts(other, dates, *tokenizers.values(), **how)
        assert seen == translate_texts(model, dates, *tokenizers.values(), **how)
    assert seen[0] == "2031-05-03"
    source, mask = source_batch(dates, tokenizers["source"])
    hidden = torch.rand(3, 1, 5, 5) < 0.7
    for masks in ((mask, None), (None, hidden), (mask[:, :, 0].logical_not()[:, None], hidden)):
        with torch.no_grad():
            seen, expected = (one(source, source[:, :5] % 9, *masks) for one in (other, model))
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)
    assert not calls, "these parts are nobody's"
    watched = other.encoder[0].attention.register_forward_hook(lambda *about: calls.update("x"))
    other(source, source[:, :5] % 9, mask)
    watched.remove()
    assert calls == {"x": 1}


def test_a_cache_of_ones_own_is_left_as_soon_as_it_cannot_go_on():
    sizes = SIZES | KINDS["rotary"]
    model, other = pair(Parts(cached_attention=parts.cached_attention), **KINDS["rotary"])
    assert sizes["num_layers"] == len(other.blocks)
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
    seen = generate_beams(other, prompt, 5, 3).tokens  # exchanges rows of the cache
    assert seen.equal(generate_beams(model, prompt, 5, 3).tokens)
    cache = other.new_cache(2)
    assert isinstance(cache.layers[1], functional.OwnLayerCache)
    with torch.no_grad():
        other(prompt, cache=cache)
        assert cache.layers[1].state[0].shape[2] == 3
        masked = other(prompt, cache=cache, mask=torch.ones(3, 6, dtype=torch.bool))
        assert cache.layers[1].state[0].shape[2] == 3
        torch.testing.assert_close(masked, model(prompt.repeat(1, 2))[:, 3:])
        torch.testing.assert_close(other(prompt, cache=cache), model(prompt.repeat(1, 3))[:, 6:])


def test_a_model_is_computed_by_its_modules_while_hooks_watch_them(tokens):
    def refuses(x, gain, bias, eps):
        raise ArithmeticError

    model, other = pair(Parts(layer_norm=refuses), positions="rotary", activation="gelu")
    seen = []
    watched = other.blocks[1].attention.register_forward_hook(lambda *about: seen.append(about[2]))
    torch.testing.assert_close(other(tokens), model(tokens))
    assert len(seen) == 1
    watched.remove()
    with pytest.raises(ArithmeticError):
        other(tokens)


@pytest.mark.slow
def test_each_part_computes_somewhere():
    def broken(name):
        def fails(*_, **__):
            raise ArithmeticError(name)

        if name[0].islower():
            return fails
        made = {"__init__": lambda self, *_, **__: torch.nn.Module.__init__(self), "forward": fails}
        return type(name, (torch.nn.Module,), made)

    found = refusals({name: broken(name) for name in Parts.names()})
    assert [*found] == Parts.names()
    for name, reason in found.items():
        assert f"raised ArithmeticError: {name}" in reason


@pytest.mark.slow
def test_wrong_parts_are_refused_and_right_ones_are_not():
    def without_slope(x, gain, bias, eps):
        return layers.layer_norm(x.detach(), gain, bias, eps)

    def half_precision(x, positions, base):
        return functional.apply_rotary(x.bfloat16(), positions, base).to(x.dtype)

    class Deaf(parts.CrossAttention):
        def forward(self, x, memory, source_mask=None):
            return super().forward(x, memory)

    def forgets(query, key, value, cache=None):
        return parts.cached_attention(query, key, value)

    given = {
        "causal_mask": lambda q_len, k_len: torch.ones(q_len, k_len, dtype=torch.bool).tril(),
        "layer_norm": without_slope,
        "apply_rotary": half_precision,
        "CrossAttention": Deaf,
        "cached_attention": forgets,
        "softplus": None,
    }
    assert refusals({"causal_mask": given["causal_mask"], "softplus": None}) == {}
    found = refusals(given)
    assert found.keys() == given.keys() - {"causal_mask", "softplus"}
    assert "a model with rotary positions in float64 are off by" in found["apply_rotary"]
    assert "a model with rotary positions in float64 are off by" in found["cached_attention"]
    assert "an encoder-decoder with sinusoidal positions" in found["CrossAttention"]


OWN = """
from groundup.core import layers
from groundup.generation import sampling
from groundup.variants.functional import Parts
from groundup.own_parts.assembled import assemble

calls = []

def layer_norm(x, gain, bias, eps):
    calls.append(x.shape)
    return layers.layer_norm(x, gain, bias, eps)

def top_k(logits, k):
    calls.append(k)
    return sampling.top_k(logits, k)

DecoderOnly = assemble(Parts(layer_norm=layer_norm))
"""


@pytest.mark.slow
def test_the_commands_compute_by_a_library_and_give_the_same(library, tmp_path, capfd):
    (tmp_path / "words.txt").write_text("the cat sat on the mat and the dog on the log " * 40)
    own = str(library(OWN))
    losses, texts = [], []
    train = ["train", "--data", str(tmp_path / "words.txt"), "--context", "13", "--batch-size", "3"]
    for out, options in (("one", []), ("two", ["--library", own])):
        folder = str(tmp_path / out)
        arguments = ["--preset", "tiny", "--device", "cpu", "--steps", "11"]
        assert main([*train, *arguments, "--out", folder, *options]) == 0
        resumed = ["train", "--resume", "--steps", "21", "--seconds", "0", "--device", "cpu"]
        assert main([*resumed, "--out", folder, *options]) == 0
        said = capfd.readouterr().out
        assert f"train --resume --out {folder}{' --library ' + own if options else ''}\n" in said
        lines = (tmp_path / out / "log.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
        write = ["generate", folder, "--prompt", "the", "--length", "7", *options]
        for how in (["--greedy"], ["--temperature", "0.9", "--top-k", "5", "--top-p", "0.95"]):
            assert main([*write, *how]) == 0
        texts.append(capfd.readouterr().out)
        assert main(["evaluate", folder, "--json", *options]) == 0
        losses[-1].append(json.loads(capfd.readouterr().out)["nats_per_token"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert texts[0] == texts[1]
    calls = sys.modules["somebodys"].calls
    assert calls[0] != 5 and calls.count(5) == 7, "norms by the library, and each token's choice"
    assert main([*write, "--temperature", "-1"]) == 2
    assert "temperature must not be negative" in capfd.readouterr().err
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    assert config["model"] == "DecoderOnly"
    assert config["notes"]["library"] == "somebodys"
    assert config["notes"]["setup"] == {"compiled": False, "attention": "explicit"} | {
        "milliseconds": {}
    }
    dates = str(pretrained.FOLDER / "dates")
    assert main(["generate", dates, "--prompt", "1 May 2024", "--library", own]) == 0
    assert capfd.readouterr().out == "2024-05-01\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 +", "a library must be importable, got SyntaxError"),
        ("DecoderOnly = 3", "a library must have a class DecoderOnly .*got 3"),
    ],
)
def test_what_is_no_library_is_refused(library, text, message):
    with pytest.raises(ValueError, match=message):
        load_library(library(text, f"somebodys_{len(text)}"))


def test_a_folder_without_a_package_or_with_the_name_of_another_is_refused(library, tmp_path):
    with pytest.raises(ValueError, match="a library must be a Python package, got no file"):
        load_library(tmp_path / "nothing")
    with pytest.raises(ValueError, match="a library must have a unique name, got json"):
        load_library(library(OWN, "json"))
