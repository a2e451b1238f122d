import json
import logging

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging as transformers_logging

from groundup import presets
from groundup.__main__ import main
from groundup.core.models import DecoderOnly
from groundup.files.checkpoint import (
    from_hugging_face,
    from_published,
    load,
    save,
    to_hugging_face,
)
from groundup.files.conversion import (
    counterparts,
    from_hugging_face_config,
    from_hugging_face_weights,
    gemma_as_llama,
    to_hugging_face_config,
    to_hugging_face_weights,
)

NO_ENDS = {"bos_token_id": None, "eos_token_id": None}
GPT2 = {
    "vocab_size": 29,
    "n_positions": 17,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 19,
    "layer_norm_epsilon": 0.01,
}
LLAMA = {
    "vocab_size": 29,
    "max_position_embeddings": 17,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 19,
    "rms_norm_eps": 0.01,
    "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
}
TINY_LLAMA = LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
SMOL_LM2 = LLAMA | {"num_key_value_heads": 2, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
SMOL_LM2["rope_parameters"] = {"rope_type": "default", "rope_theta": 100_000.0}
QWEN3 = LLAMA | NO_ENDS | {"head_dim": 8}
GEMMA = QWEN3 | {"pad_token_id": None}
THEIRS = [
    pytest.param(GPT2Config(**GPT2, **NO_ENDS), id="GPT-2"),
    pytest.param(GPT2Config(**GPT2 | {"n_inner": None}, **NO_ENDS), id="GPT-2, default d_ff"),
    pytest.param(GPT2Config(**GPT2, **NO_ENDS, tie_word_embeddings=False), id="GPT-2, untied"),
    pytest.param(GPT2Config(**GPT2, **NO_ENDS, activation_function="relu2"), id="GPT-2, ReLU²"),
    pytest.param(LlamaConfig(**LLAMA, **NO_ENDS), id="Llama"),
    pytest.param(LlamaConfig(**LLAMA, **NO_ENDS, tie_word_embeddings=True), id="Llama, tied"),
    pytest.param(
        LlamaConfig(**LLAMA, **NO_ENDS, attention_bias=True, mlp_bias=True), id="Llama, biases"
    ),
    pytest.param(
        LlamaConfig(**LLAMA | {"num_key_value_heads": None}, **NO_ENDS, hidden_act="gelu"),
        id="Llama, a key for each query head, GELU",
    ),
    pytest.param(MistralConfig(**LLAMA, **NO_ENDS, sliding_window=5), id="Mistral"),
    pytest.param(MistralConfig(**LLAMA, **NO_ENDS, sliding_window=None), id="Mistral, no window"),
    pytest.param(Qwen2Config(**LLAMA, **NO_ENDS), id="Qwen2"),
    pytest.param(Qwen2Config(**LLAMA, **NO_ENDS, tie_word_embeddings=True), id="Qwen2, tied"),
    pytest.param(LlamaConfig(**TINY_LLAMA, **NO_ENDS), id="TinyLlama"),
    pytest.param(LlamaConfig(**SMOL_LM2, **NO_ENDS, rope_interleaved=False), id="SmolLM2"),
    pytest.param(LlamaConfig(**LLAMA, **NO_ENDS, head_dim=8), id="Llama, wide heads"),
    pytest.param(
        MistralConfig(**LLAMA, **NO_ENDS, head_dim=4, sliding_window=5), id="Mistral, narrow heads"
    ),
    pytest.param(Qwen3Config(**QWEN3), id="Qwen3"),
    pytest.param(
        Qwen3Config(**QWEN3 | {"head_dim": 6}, tie_word_embeddings=True), id="Qwen3, tied"
    ),
    pytest.param(GemmaConfig(**GEMMA), id="Gemma"),
    pytest.param(
        GemmaConfig(**GEMMA | {"head_dim": 6}, tie_word_embeddings=False), id="Gemma, untied"
    ),
    pytest.param(GemmaConfig(**GEMMA, hidden_act="silu"), id="Gemma, SiLU"),
]
OURS = [
    pytest.param({"positions": "learned"}, id="GPT-2"),
    pytest.param({"positions": "learned", "activation": "gelu_tanh", "d_ff": 19}, id="tanh"),
    pytest.param({"positions": "learned", "tie_embeddings": False}, id="GPT-2, untied"),
    pytest.param({"rotary_base": 77.0}, id="Llama"),
    pytest.param({"tie_embeddings": True, "num_kv_heads": None}, id="Llama, tied"),
    pytest.param({"bias": True, "activation": "geglu", "num_kv_heads": 1}, id="Llama, biases"),
    pytest.param({"window": 5}, id="Mistral"),
    pytest.param({"window": 5, "head_width": 8}, id="Mistral, wide heads"),
    pytest.param({"head_width": 4, "activation": "geglu_tanh"}, id="Llama, narrow heads"),
    pytest.param({"qk_norm": True, "head_width": 8}, id="Qwen3"),
]


@pytest.fixture(autouse=True)
def silence():
    """Fail if their library has anything to warn of, and show no progress bars."""
    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("transformers")
    logger.addHandler(listener)
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.enable_progress_bar()
    logger.removeHandler(listener)
    assert said == []


@pytest.fixture
def their_model(shaken):
    """Make one of their models with random numbers in every place, in float64."""

    def make(config):
        torch.manual_seed(2017)  # or the weights depend on which tests ran before
        return shaken(AutoModelForCausalLM.from_config(config, dtype=torch.float64)).eval()

    return make


@pytest.fixture
def our_model(shaken):
    def make(dtype=torch.float64, **choices):
        sizes = {"vocab_size": 29, "max_len": 17, "norm_eps": 0.01}
        if choices.get("positions") == "learned":
            sizes |= {"d_model": 12, "num_heads": 3}
            config = presets.decoder_only("tiny", **sizes | choices)
        else:
            sizes |= {"d_model": 36, "num_heads": 6, "num_kv_heads": 2, "d_ff": 19}
            config = presets.decoder_only("llama", **sizes | choices)
        return shaken(DecoderOnly(config, torch.Generator().manual_seed(0))).to(dtype).eval()

    return make


def greedy(model, prompt, length):
    """Continue a prompt with the likeliest tokens, one at a time, from a cache."""
    cache, unread = model.new_cache(len(prompt)), prompt
    while prompt.shape[1] < length:
        with torch.no_grad():
            unread = model(unread, cache=cache)[:, -1:].argmax(dim=-1)
        prompt = torch.cat((prompt, unread), dim=1)
    return prompt


def their_greedy(model, prompt, length):
    """Continue a prompt in the same way by their loop and their cache."""
    new = length - prompt.shape[1]
    everything = torch.ones_like(prompt)  # else they take one of the tokens for padding
    return model.generate(prompt, attention_mask=everything, max_new_tokens=new, do_sample=False)


# By hand


def test_the_features_of_a_query_head_change_places():
    config = presets.decoder_only(
        "llama",
        vocab_size=3,
        max_len=5,
        d_model=12,
        num_heads=2,
        num_kv_heads=1,
        num_layers=1,
        d_ff=7,
    )
    tensors = dict(DecoderOnly(config, torch.Generator()).named_parameters())
    tensors["blocks.0.attention.query.weight"] = torch.arange(12.0)[:, None].expand(12, 12)
    tensors["blocks.0.attention.key.weight"] = torch.arange(6.0)[:, None].expand(6, 12)
    theirs = to_hugging_face_weights(tensors, config)
    query = theirs["model.layers.0.self_attn.q_proj.weight"]
    assert query[:, 5].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert theirs["model.layers.0.self_attn.k_proj.weight"][:, 5].tolist() == [0, 2, 4, 1, 3, 5]


def test_gpt2_has_queries_keys_and_values_side_by_side_the_other_way_round():
    config = presets.decoder_only(
        "tiny",
        vocab_size=3,
        max_len=5,
        d_model=4,
        num_heads=2,
        num_layers=1,
        d_ff=7,
        positions="learned",
    )
    tensors = dict(DecoderOnly(config, torch.Generator()).named_parameters())
    for number, name in enumerate(("query", "key", "value")):
        tensors[f"blocks.0.attention.{name}.weight"] = (torch.arange(16.0) + 100 * number).view(
            4, 4
        )
    fused = to_hugging_face_weights(tensors, config)["transformer.h.0.attn.c_attn.weight"]
    assert fused[1].tolist() == [1, 5, 9, 13, 101, 105, 109, 113, 201, 205, 209, 213]


def test_the_table_of_names_can_be_read():
    table = {entry.theirs: entry for entry in counterparts(presets.decoder_only("gpt2_small"))}
    assert len(table) == 4 + 12 * 12 and "lm_head.weight" not in table
    fused = table["transformer.h.11.attn.c_attn.bias"]
    assert fused.ours == tuple(f"blocks.11.attention.{n}.bias" for n in ("query", "key", "value"))
    untied = presets.decoder_only("llama", vocab_size=11, max_len=7)
    assert counterparts(untied)[-1].ours == ("unembedding.weight",)


# Against their models


@pytest.mark.parametrize("config", THEIRS)
@pytest.mark.parametrize("prefix", [True, False])
def test_their_weights_give_our_model_their_logits(config, prefix, their_model, tokens):
    theirs, read = their_model(config), tokens(29, 3, 13)
    ours = DecoderOnly(from_hugging_face_config(config.to_dict()), torch.Generator()).double()
    weights = {
        name if prefix else name.removeprefix("transformer.").removeprefix("model."): tensor
        for name, tensor in theirs.state_dict().items()
    }
    if config.model_type == "gemma":
        weights = gemma_as_llama(weights)
    converted = from_hugging_face_weights(weights, ours.config)
    parameters = dict(ours.named_parameters())
    assert parameters.keys() == converted.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(converted[name])
        expected, logits = theirs(read).logits, ours.eval()(read)
    # Llama's norms and turns are worked out in float32 there, whatever the weights are in.
    atol = 1e-10 if config.model_type == "gpt2" else 1e-5
    torch.testing.assert_close(logits, expected, rtol=0, atol=atol)
    assert expected.std() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("config", THEIRS)
@pytest.mark.parametrize("max_shard_size", ["50GB", "3KB"])
def test_their_files_are_read(config, max_shard_size, their_model, tokens, tmp_path):
    theirs, read = their_model(config).float(), tokens(29, 3, 13)
    theirs.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_shard_size == "3KB")
    ours = from_hugging_face(tmp_path)
    assert not ours.training and ours.unembedding.weight.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(ours(read), theirs(read).logits, rtol=1e-5, atol=5e-5)
    assert torch.equal(greedy(ours, read, 17), their_greedy(theirs, read, 17))


@pytest.mark.parametrize("choices", OURS)
def test_our_files_are_read_by_their_library(choices, our_model, tokens, tmp_path):
    ours, read = our_model(torch.float32, **choices), tokens(29, 3, 13)
    to_hugging_face(ours, tmp_path)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # versions before 5 insist on it
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in ours.parameters())
    with torch.no_grad():
        torch.testing.assert_close(theirs(read).logits, ours(read), rtol=1e-5, atol=1e-5)
    assert torch.equal(their_greedy(theirs, read, 17), greedy(ours, read, 17))


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(**GPT2, **NO_ENDS, attn_pdrop=0.3, resid_pdrop=0.0, embd_pdrop=0.0),
        LlamaConfig(**LLAMA, **NO_ENDS, attention_dropout=0.3),
    ],
    ids=["GPT-2", "Llama"],
)
def test_in_training_the_same_attention_weights_are_dropped(config, their_model, tokens, tmp_path):
    """From one seed, layer by layer."""
    theirs, read = their_model(config).train(), tokens(29, 3, 13)
    theirs.save_pretrained(tmp_path)
    ours = from_hugging_face(tmp_path).train()
    logits = []
    for model in (ours, theirs):
        torch.manual_seed(0)
        logits.append(model(read))
    torch.testing.assert_close(logits[0], logits[1].logits, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits[0], ours.eval()(read), atol=0.1)


def test_a_gemma_in_half_precision_is_not_rounded_when_it_is_rewritten(
    their_model, tokens, tmp_path
):
    """Gains of 1 plus a small number, and the root of 36 is no power of 2."""
    their_model(GemmaConfig(**GEMMA)).to(torch.bfloat16).save_pretrained(tmp_path)
    theirs, read = AutoModelForCausalLM.from_pretrained(tmp_path).float(), tokens(29, 3, 13)
    ours = from_hugging_face(tmp_path, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(read), theirs(read).logits, rtol=1e-5, atol=5e-5)


# Laws


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_share_of_dropped_attention_weights_goes_both_ways(positions, our_model):
    shares = {"learned": {"dropout": 0.2}, "rotary": {}}[positions] | {"attention_dropout": 0.3}
    config = our_model(positions=positions, **shares).config
    theirs = to_hugging_face_config(config)
    assert theirs["attn_pdrop" if positions == "learned" else "attention_dropout"] == 0.3
    again = from_hugging_face_config(theirs)
    assert (again.dropout, again.attention_dropout) == (config.dropout, 0.3)


@pytest.mark.parametrize("choices", OURS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_goes_there_comes_back_bit_for_bit(choices, dtype, our_model, tmp_path):
    ours = our_model(dtype, **choices)
    to_hugging_face(ours, tmp_path)
    again = from_hugging_face(tmp_path)
    assert to_hugging_face_config(again.config) == to_hugging_face_config(ours.config)
    for (name, got), expected in zip(again.named_parameters(), ours.parameters(), strict=True):
        assert got.dtype == dtype and torch.equal(got, expected), name
    assert (again.unembedding.weight is again.embedding.tokens.weight) == ours.config.tie_embeddings


def test_the_precision_of_what_is_read_can_be_chosen(our_model, tmp_path):
    ours = our_model(torch.float64)
    to_hugging_face(ours, tmp_path)
    again = from_hugging_face(tmp_path, dtype=torch.float32)
    assert torch.equal(again.unembedding.weight, ours.unembedding.weight.float())


def test_reading_leaves_the_random_state_of_torch_alone(our_model, tmp_path):
    to_hugging_face(our_model(), tmp_path)
    before = torch.get_rng_state()
    from_hugging_face(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_tables_that_hold_nothing_learned_are_left_out(our_model):
    for choices, extra in (
        ({"positions": "learned"}, ("h.0.attn.bias", "h.1.attn.masked_bias")),
        ({}, ("model.layers.0.self_attn.rotary_emb.inv_freq",)),
    ):
        ours = our_model(**choices)
        theirs = to_hugging_face_weights(dict(ours.named_parameters()), ours.config)
        more = theirs | {name: torch.ones(3) for name in extra}
        assert (
            from_hugging_face_weights(more, ours.config).keys()
            == dict(ours.named_parameters()).keys()
        )


def test_settings_that_older_files_leave_out_have_their_defaults():
    old = {key: GPT2[key] for key in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")}
    gpt2 = from_hugging_face_config(old | {"model_type": "gpt2"})
    new = GPT2Config(**old, **NO_ENDS).to_dict()
    assert gpt2 == from_hugging_face_config(new)
    assert (gpt2.d_ff, gpt2.activation, gpt2.norm_eps) == (48, "gelu_tanh", 1e-5)
    assert (gpt2.dropout, gpt2.attention_dropout) == (0.1, 0.1)
    left_out = ("num_key_value_heads", "rms_norm_eps", "rope_parameters")
    old = {key: value for key, value in LLAMA.items() if key not in left_out}
    llama = from_hugging_face_config(old | {"model_type": "llama", "rope_theta": 99.0})
    assert (llama.num_kv_heads, llama.norm_eps, llama.rotary_base) == (None, 1e-6, 99.0)
    assert (llama.tie_embeddings, gpt2.tie_embeddings) == (False, True)
    assert llama.attention_dropout == 0
    for kind, num_kv_heads, window in (("mistral", 8, 4096), ("qwen2", 32, None)):
        sizes = {"hidden_size": 64, "num_attention_heads": 32}
        config = from_hugging_face_config(old | sizes | {"model_type": kind})
        assert (config.num_kv_heads, config.window) == (num_kv_heads, window)
    for kind, num_kv_heads, d_head in (("qwen3", 32, 128), ("gemma", 16, 256)):
        config = from_hugging_face_config(old | sizes | {"model_type": kind})
        assert (config.num_kv_heads, config.d_head) == (num_kv_heads, d_head)
        assert config.tie_embeddings == (kind == "gemma") and config.qk_norm == (kind == "qwen3")
    for said in ({}, {"hidden_act": "gelu"}):  # the first Gemmas said gelu
        gemma = from_hugging_face_config(old | sizes | said | {"model_type": "gemma"})
        assert gemma.activation == "geglu_tanh"


def test_a_bias_that_one_layer_lacks_is_missing_and_not_zero(our_model):
    ours = our_model(bias=True)
    theirs = to_hugging_face_weights(dict(ours.named_parameters()), ours.config)
    del theirs["model.layers.1.mlp.up_proj.bias"]
    with pytest.raises(ValueError, match="which lacks model.layers.1.mlp.up_proj.bias"):
        from_hugging_face_weights(theirs, ours.config)


# Refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "mamba"},
            "must be one of gpt2, llama, mistral, qwen2, qwen3, gemma, got model_type=mamba",
        ),
        ({}, "must be one of gpt2, llama, mistral, qwen2, qwen3, gemma, got model_type=None"),
        (
            LLAMA | {"model_type": "qwen2", "use_sliding_window": True},
            "use_sliding_window must be False, got use_sliding_window=True",
        ),
        ({"model_type": "gpt2", "n_embd": 12}, "config.json of gpt2 needs the field vocab_size"),
        (
            GPT2 | {"model_type": "gpt2", "scale_attn_weights": False},
            "scale_attn_weights must be T",
        ),
        (
            GPT2 | {"model_type": "gpt2", "activation_function": "tanh"},
            "activation_function must be one of gelu_new, .*got activation_function=tanh",
        ),
        (
            LLAMA | {"model_type": "llama", "attention_bias": True},
            "a bias, or none, got attention_bias=True, mlp_bias=False",
        ),
        (
            LLAMA | {"model_type": "llama", "head_dim": 5},
            "d_head must be even to be rotated in pairs, got d_head=5",
        ),
        (
            LLAMA | {"model_type": "qwen3", "attention_bias": True},
            "attention_bias must be False, got attention_bias=True",
        ),
        (
            LLAMA | {"model_type": "gemma", "use_bidirectional_attention": True},
            "use_bidirectional_attention must be False, got use_bidirectional_attention=True",
        ),
        (
            LLAMA | {"model_type": "gemma", "hidden_act": "relu"},
            "hidden_act must be one of silu, .*, got hidden_act=relu",
        ),
    ],
)
def test_their_models_that_ours_cannot_be_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        from_hugging_face_config(fields)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"positions": "alibi"}, "positions must be learned, .*got positions=alibi"),
        ({"positions": "none"}, "as in Llama, got positions=none"),
        ({"qk_norm": True, "bias": True}, "bias must be False in Qwen3, got bias=True"),
        ({"qk_norm": True, "window": 3}, "window must be None in Qwen3, got window=3"),
        (
            {"d_model": 40, "head_width": 8},
            "d_model must be a multiple of num_heads, got d_model=40",
        ),
        ({"positions": "learned", "qk_norm": True}, "qk_norm must be False in GPT-2, got"),
        ({"positions": "learned", "head_width": 6}, "head_width must be None or 4 in GPT-2, got"),
        ({"window": 3, "bias": True}, "bias must be False in Mistral, got bias=True"),
        ({"window": 3, "positions": "learned"}, "window must be None in GPT-2, got window=3"),
        ({"norm_order": "post"}, "norm_order must be pre in Llama, got norm_order=post"),
        ({"norm": "layer"}, "norm must be rms in Llama, got norm=layer"),
        (
            {"activation": "squared_relu"},
            "activation must be swiglu or geglu or geglu_tanh in Llama",
        ),
        ({"positions": "learned", "norm": "rms"}, "norm must be layer in GPT-2, got norm=rms"),
        ({"positions": "learned", "bias": False}, "bias must be True in GPT-2, got bias=False"),
        ({"positions": "learned", "num_kv_heads": 1}, "None or 3 in GPT-2, got num_kv_heads=1"),
        ({"positions": "learned", "activation": "swiglu"}, "in GPT-2, got activation=swiglu"),
    ],
)
def test_our_models_that_theirs_cannot_be_are_refused_before_a_file_is_written(
    choices, message, our_model, tmp_path
):
    with pytest.raises(ValueError, match=message):
        to_hugging_face(our_model(**choices), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_missing_an_unknown_and_a_misshapen_tensor_are_named(our_model):
    ours = our_model(positions="learned")
    theirs = to_hugging_face_weights(dict(ours.named_parameters()), ours.config)
    name = "transformer.h.1.attn.c_attn.weight"

    def refused(message, **change):
        changed = theirs | change
        with pytest.raises(ValueError, match=message):
            from_hugging_face_weights(
                {k: v for k, v in changed.items() if v is not None}, ours.config
            )

    refused(f"which lacks {name}", **{name: None})
    refused("has an unknown transformer.h.7.ln_1.weight", **{"h.7.ln_1.weight": torch.ones(12)})
    refused(rf"got {name} \(36, 12\) instead of \(12, 36\)", **{name: theirs[name].T})
    table = theirs["transformer.wte.weight"]
    refused("one table, got an lm_head.weight that differs", **{"lm_head.weight": table + 1})
    assert "lm_head.weight" not in from_hugging_face_weights(
        theirs | {"lm_head.weight": table.clone()}, ours.config
    )


def test_weights_that_are_only_pickled_are_refused(our_model, tmp_path):
    to_hugging_face(our_model(), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="a pickle can run any code, got only pytorch_model.bin"):
        from_hugging_face(tmp_path)


def test_files_that_are_missing_or_not_where_they_should_be_are_named(our_model, tmp_path):
    with pytest.raises(ValueError, match="a model needs its config.json, got .*No such file"):
        from_hugging_face(tmp_path)
    to_hugging_face(our_model(), tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for content, message in (
        ({}, "model.safetensors.index.json needs the field weight_map"),
        (
            {"weight_map": {"a": "../model.safetensors"}},
            r"in the folder of their index, got \.\./model",
        ),
        ({"weight_map": {"a": "part.safetensors"}}, "needs its part.safetensors, got no file"),
        ({"weight_map": {"a": "model.safetensors"}}, "those that their index lists, got a and"),
    ):
        index.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            from_hugging_face(tmp_path)
    index.unlink()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="needs its model.safetensors, got no file"):
        from_hugging_face(tmp_path)


# A published model: its weights, its tokenizer, and where its texts begin and end


@pytest.fixture
def publish(their_model, tmp_path):
    """Write a model as makers publish one: 29 tokens, letters and two special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    def make(config, num_letters=26, **generation):
        folder = tmp_path / "published"
        their_model(config).to(torch.bfloat16).save_pretrained(folder)
        letters = [chr(ord("a") + number) for number in range(num_letters)] + [" "]
        vocab = {letter: number for number, letter in enumerate(letters)}
        model = Tokenizer(models.BPE(vocab, [], unk_token=" "))
        model.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        model.decoder = decoders.Fuse()
        model.add_special_tokens(["<s>", "</s>"])
        start = [("<s>", num_letters + 1)]
        model.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=start)
        model.save(str(folder / "tokenizer.json"))
        if generation:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        return folder

    return make


def test_a_published_model_is_imported_and_continues_a_text_as_theirs_does(
    publish, tmp_path, capsys
):
    published = publish(Qwen2Config(**LLAMA, **NO_ENDS))
    out = tmp_path / "imported"
    assert main(["import", str(published), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert " parameters, 2 blocks, 29 tokens; next: groundup generate " in said
    assert main(["generate", str(out), "--prompt", "a cat", "--length", "6", "--greedy"]) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    theirs = AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    tokenizer = load(out).tokenizers["text"]
    prompt = torch.tensor([[27, *tokenizer.encode("a cat")]])
    assert prompt.tolist() == [[27, 0, 26, 2, 0, 19]]
    assert text == tokenizer.decode(their_greedy(theirs, prompt, 12)[0].tolist())
    assert text.startswith("a cat")


def test_a_text_ends_where_the_published_model_ends_it(publish, tmp_path, capsys):
    published = publish(LlamaConfig(**LLAMA, **NO_ENDS), eos_token_id=[28, 11])
    saved = from_published(published)
    assert (saved.notes["prompt_start"], saved.notes["ends"]) == ([27], [28, 11])
    save(tmp_path / "out", saved.model, saved.tokenizers, saved.notes | {"ends": []})
    continued = ["generate", str(tmp_path / "out"), "--prompt", "a", "--length", "8", "--greedy"]
    assert main(continued) == 0
    text = capsys.readouterr().out.removesuffix("\n")
    last = text[4]
    ends = [saved.tokenizers["text"].id_of(last)]
    save(tmp_path / "out", saved.model, saved.tokenizers, saved.notes | {"ends": ends})
    assert main(continued) == 0
    assert capsys.readouterr().out.removesuffix("\n") == "a" + text[1:].partition(last)[0]


def test_what_is_no_published_model_is_refused_in_a_sentence(publish, tmp_path, capsys):
    published = publish(MistralConfig(**LLAMA, **NO_ENDS, sliding_window=5))
    out = str(tmp_path / "out")

    def refused(message, *more):
        assert main(["import", str(published), "--out", out, *more]) == 2
        assert message in capsys.readouterr().err

    assert main(["import", str(published), "--out", out]) == 0
    refused("--out must not hold a model yet, got")
    assert main(["import", str(published), "--out", out, "--overwrite"]) == 0
    capsys.readouterr()
    assert main(["evaluate", out]) == 2
    assert "needs a model made by `train`, which records its data, got" in capsys.readouterr().err
    publish(MistralConfig(**LLAMA, **NO_ENDS, sliding_window=5), num_letters=27)
    refused("tokenizer.json, got vocab_size=29 for 30 tokens", "--overwrite")
    (published / "tokenizer.json").unlink()
    refused("a published model needs its tokenizer.json, got no file", "--overwrite")
