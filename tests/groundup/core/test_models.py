import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from groundup import presets
from groundup.core.cache import LayerCache
from groundup.core.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from groundup.core.masks import padding_mask, sliding_window_mask
from groundup.core.models import DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.core.multihead import MultiHeadAttention
from groundup.core.positions import sinusoidal_table
from groundup.generation.caches import SlidingLayerCache, StaticLayerCache

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


@pytest.fixture
def decoder_only(shaken):
    def build(**overrides):
        return shaken(DecoderOnly(DecoderOnlyConfig(**SMALL | overrides), generator()))

    return build


@pytest.fixture
def encoder_decoder(shaken):
    def build(**overrides):
        config = EncoderDecoderConfig(**SMALL | SOURCE | overrides)
        return shaken(EncoderDecoder(config, generator()))

    return build


@pytest.fixture
def encoder_only(shaken):
    def build(**overrides):
        return shaken(EncoderOnly(EncoderOnlyConfig(**SMALL | overrides), generator()))

    return build


# By hand


def test_gpt2_small_has_the_124_439_808_parameters_of_the_released_model():
    with torch.device("meta"):
        model = DecoderOnly(presets.decoder_only("gpt2_small"))
    block = 4 * (768 * 768 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 4 * 768
    by_hand = 50257 * 768 + 1024 * 768 + 12 * block + 2 * 768
    assert sum(p.numel() for p in model.parameters()) == by_hand == 124_439_808


def test_paper_base_has_the_parameters_of_its_parts():
    sizes = {"source_vocab_size": 37000, "vocab_size": 37000}
    with torch.device("meta"):
        model = EncoderDecoder(
            presets.encoder_decoder("paper_base", **sizes, source_max_len=512, max_len=512)
        )
    attention, norm = 4 * (512 * 512 + 512), 2 * 512
    feed_forward = (512 * 2048 + 2048) + (2048 * 512 + 512)
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    by_hand = 37000 * 512 + 6 * encoder + 6 * decoder
    assert sum(p.numel() for p in model.parameters()) == by_hand


# Against torch: the same stack out of torch's own layers


def torch_stack(ours, kind, transfer, norm_order):
    return [
        transfer(
            block,
            kind(12, 3, 13, 0.0, "gelu", batch_first=True, norm_first=norm_order == "pre").double(),
        )
        for block in ours
    ]


def torch_norm(ours, transfer):
    if isinstance(ours, nn.Identity):
        return ours
    theirs = nn.LayerNorm(12).double()
    transfer.norm(ours, theirs)
    return theirs


@pytest.mark.parametrize("norm_order", ORDERS)
def test_decoder_only_equals_torch_s_layers(decoder_only, transfer, tokens, norm_order):
    model, numbers = decoder_only(norm_order=norm_order), tokens(19, 2, 7)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    x = model.embedding.tokens.weight[numbers] + model.embedding.positions.table.weight[:7]
    for layer in torch_stack(model.blocks, nn.TransformerEncoderLayer, transfer, norm_order):
        x = layer(x, src_mask=future)
    logits = torch_norm(model.final_norm, transfer)(x) @ model.embedding.tokens.weight.T
    torch.testing.assert_close(model(numbers), logits)


@pytest.mark.parametrize("norm_order", ORDERS)
def test_encoder_decoder_equals_torch_s_layers(encoder_decoder, transfer, tokens, norm_order):
    model = encoder_decoder(norm_order=norm_order, positions="sinusoidal", tie_embeddings=False)
    source, target, lengths = tokens(23, 2, 13), tokens(19, 2, 7), torch.tensor([13, 5])
    hidden = torch.arange(13) >= lengths[:, None]
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    table, root = sinusoidal_table(13, 12).double(), math.sqrt(12)
    x = model.source_embedding.tokens.weight[source] * root + table
    for layer in torch_stack(model.encoder, nn.TransformerEncoderLayer, transfer, norm_order):
        x = layer(x, src_key_padding_mask=hidden)
    memory = torch_norm(model.encoder_norm, transfer)(x)
    x = model.embedding.tokens.weight[target] * root + table[:7]
    for layer in torch_stack(model.blocks, nn.TransformerDecoderLayer, transfer, norm_order):
        x = layer(x, memory, tgt_mask=future, memory_key_padding_mask=hidden)
    logits = torch_norm(model.final_norm, transfer)(x) @ model.unembedding.weight.T
    torch.testing.assert_close(model(source, target, padding_mask(lengths, 13)), logits)


# Laws


def test_every_attention_of_every_model_drops_weights_in_training_only(
    decoder_only, encoder_only, encoder_decoder, tokens
):
    given = [tokens(19, 2, 7)], [tokens(19, 2, 7)], [tokens(23, 2, 5), tokens(19, 2, 7)]
    layers = 2, 2, 3 + 2 * 2
    builds = decoder_only, encoder_only, encoder_decoder
    for build, inputs, number in zip(builds, given, layers, strict=True):
        model, plain = build(attention_dropout=0.3), build()
        plain.load_state_dict(model.state_dict())
        shares = [
            part.attention_dropout
            for part in model.modules()
            if isinstance(part, MultiHeadAttention)
        ]
        assert shares == [0.3] * number
        assert not torch.allclose(model(*inputs), model(*inputs))
        assert torch.equal(model.eval()(*inputs), plain(*inputs))


@pytest.mark.parametrize("kind", [LayerCache, StaticLayerCache])
def test_cached_decoding_drops_no_weights_in_evaluation(decoder_only, tokens, kind):
    model, numbers = decoder_only(attention_dropout=0.3, num_kv_heads=1).eval(), tokens(19, 2, 7)
    cache = model.new_cache(2, kind=kind)
    parts = [model(part, cache=cache) for part in numbers.split([4, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(numbers))


def test_a_position_beyond_the_model_is_refused(decoder_only, tokens):
    for positions in ("learned", "rotary"):
        model = decoder_only(positions=positions, d_model=24)
        with pytest.raises(ValueError, match="below max_len, got .* from 0 to 11, max_len=11"):
            model(tokens(19, 2, 3), positions=torch.tensor([0, 1, 11]))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_future_tokens_do_not_change_the_past(
    decoder_only, encoder_decoder, tokens, positions, mode
):
    """In training too, where each call draws the same dropout from the same seed."""
    before, source = tokens(19, 2, 7), tokens(23, 2, 13)
    after = torch.cat((before[:, :4], (before[:, 4:] + 1) % 19), dim=1)
    alone = decoder_only(positions=positions, dropout=0.2)
    translator = encoder_decoder(positions=positions, dropout=0.2)
    for model in (alone, lambda target: translator(source, target)):
        for part in (alone, translator):
            part.train(mode == "train")
        logits = []
        for numbers in (before, after):
            torch.manual_seed(0)
            logits.append(model(numbers))
        torch.testing.assert_close(logits[0][:, :4], logits[1][:, :4])
        assert not torch.allclose(logits[0][:, 4:], logits[1][:, 4:])


def test_no_gradient_reaches_a_later_token(decoder_only, tokens):
    model, numbers = decoder_only(), tokens(19, 1, 7)
    for last in range(7):
        seen = []
        handle = model.embedding.register_forward_hook(
            lambda *call, seen=seen: call[-1].retain_grad() or seen.append(call[-1])
        )
        model(numbers)[0, last].sum().backward()
        handle.remove()
        reached = seen[0].grad[0].ne(0).any(dim=-1)
        assert reached.tolist() == [True] * (last + 1) + [False] * (6 - last)


def test_the_encoder_reads_both_ways(encoder_decoder, tokens):
    model, source = encoder_decoder(), tokens(23, 2, 13)
    other = torch.cat((source[:, :-1], (source[:, -1:] + 1) % 23), dim=1)
    assert not torch.allclose(model.encode(source)[:, 0], model.encode(other)[:, 0])


@pytest.mark.parametrize("positions", POSITIONS)
def test_padding_and_batch_mates_change_nothing(decoder_only, tokens, positions):
    model, numbers, lengths = decoder_only(positions=positions), tokens(19, 3, 7), [4, 7, 1]
    logits = model(numbers, padding_mask(torch.tensor(lengths), 7))
    for row, length in enumerate(lengths):
        alone = model(numbers[row : row + 1, :length])
        torch.testing.assert_close(logits[row, :length], alone[0])


@pytest.mark.parametrize("positions", POSITIONS)
def test_source_padding_is_seen_by_neither_encoder_nor_decoder(encoder_decoder, tokens, positions):
    model, source, target = (
        encoder_decoder(positions=positions),
        tokens(23, 3, 13),
        tokens(19, 3, 7),
    )
    source_lengths, lengths = [5, 13, 2], [7, 3, 5]
    logits = model(
        source,
        target,
        padding_mask(torch.tensor(source_lengths), 13),
        padding_mask(torch.tensor(lengths), 7),
    )
    for row, (source_length, length) in enumerate(zip(source_lengths, lengths, strict=True)):
        alone = model(source[row : row + 1, :source_length], target[row : row + 1, :length])
        torch.testing.assert_close(logits[row, :length], alone[0])


@pytest.mark.parametrize("chunks", [[7], [1] * 7, [4, 1, 2]])
@pytest.mark.parametrize("num_kv_heads", [None, 1])
@pytest.mark.parametrize("positions", POSITIONS)
def test_cached_logits_equal_uncached(
    decoder_only, encoder_decoder, tokens, positions, num_kv_heads, chunks
):
    target, source = tokens(19, 2, 7), tokens(23, 2, 13)
    model = decoder_only(positions=positions, num_kv_heads=num_kv_heads).eval()
    cache = model.new_cache(2)
    parts = [model(part, cache=cache) for part in target.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(target))
    assert cache.length == 7

    model = encoder_decoder(positions=positions, num_kv_heads=num_kv_heads).eval()
    mask = padding_mask(torch.tensor([13, 5]), 13)
    memory, cache = model.encode(source, mask), model.new_cache(2, max_len=7)
    parts = [model.decode(part, memory, mask, cache=cache) for part in target.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(source, target, mask))


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 1, 3, 3], [1, 6, 4]])
@pytest.mark.parametrize(
    "kind", ["growing", "static", "growing window", "sliding window", "static window"]
)
@pytest.mark.parametrize("positions", POSITIONS)
def test_every_kind_of_cache_gives_the_logits_of_none(
    decoder_only, tokens, positions, kind, chunks
):
    """Grouped queries too; the window of 4 is shorter than some chunks, and than the text."""
    window = 4 if "window" in kind else None
    model = decoder_only(positions=positions, num_kv_heads=1, window=window).eval()
    numbers = tokens(19, 2, 11)
    kinds = {"growing": LayerCache, "static": StaticLayerCache, "sliding": SlidingLayerCache}
    cache = model.new_cache(2, kind=kinds[kind.split()[0]])
    parts = [model(part, cache=cache) for part in numbers.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(numbers))
    assert int(cache.length) == 11


@pytest.mark.parametrize("kind", [LayerCache, StaticLayerCache])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_translation_reads_either_cache(encoder_decoder, tokens, positions, kind):
    target, source = tokens(19, 2, 7), tokens(23, 2, 13)
    model, mask = (
        encoder_decoder(positions=positions).eval(),
        padding_mask(torch.tensor([13, 5]), 13),
    )
    memory, cache = model.encode(source, mask), model.new_cache(2, kind=kind)
    parts = [model.decode(part, memory, mask, cache=cache) for part in target.split(2, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(source, target, mask))


def test_a_window_hides_what_is_further_back_in_every_layer(decoder_only, tokens):
    """Two layers with a window of 3: a token hears of the 4 before it, and of no earlier one."""
    model, before = decoder_only(window=3), tokens(19, 1, 11)
    after = before.clone()
    after[0, 4] = (after[0, 4] + 1) % 19
    changed = (model(before) != model(after)).any(dim=-1)[0]
    assert changed.tolist() == [False] * 4 + [True] * 5 + [False] * 2
    wide = decoder_only(window=None)
    wide.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(before), wide(before, sliding_window_mask(11, 3)))


@pytest.mark.parametrize("kind", [LayerCache, StaticLayerCache])
@pytest.mark.parametrize("positions", [*POSITIONS, "none"])
def test_prompts_padded_on_the_left_are_read_as_if_each_were_alone(
    decoder_only, tokens, positions, kind
):
    model, numbers = decoder_only(positions=positions).eval(), tokens(19, 3, 7)
    lengths = torch.tensor([4, 7, 1])
    mask = padding_mask(lengths, 7, side="left")
    places = (torch.arange(7) - (7 - lengths)[:, None]).clamp(min=0)
    cache, parts, done = model.new_cache(3, max_len=7, kind=kind), [], 0
    for part in numbers.split([4, 1, 2], dim=1):
        end = done + part.shape[1]
        seen = mask if kind is StaticLayerCache else mask[..., :end]
        parts.append(model(part, seen, cache, places[:, done:end]))
        done = end
    logits = torch.cat(parts, dim=1)
    for row, length in enumerate(lengths.tolist()):
        alone = model(numbers[row : row + 1, 7 - length :])
        torch.testing.assert_close(logits[row, 7 - length :], alone[0])


def test_a_new_token_s_place_in_a_static_cache_is_never_seen_by_python(decoder_only, tokens):
    """Shapes, and numbers that Python sees, are those of the step before: one graph for all."""
    model = decoder_only(positions="rotary").eval()
    cache = model.new_cache(2, 11, StaticLayerCache)
    room = cache.layers[0].keys.data_ptr()
    for step in tokens(19, 2, 5).split(1, dim=1):
        model(step, cache=cache)
        assert cache.layers[0].keys.shape == (2, 3, 11, 4)
        assert isinstance(cache.length, torch.Tensor)
    assert cache.layers[0].keys.data_ptr() == room and cache.length == 5


@pytest.mark.parametrize("positions", [*POSITIONS, "none"])
def test_an_encoder_ignores_padding_and_reads_both_ways(encoder_only, tokens, positions):
    for answers in ("tokens", "sequence"):
        model, numbers = encoder_only(positions=positions, answers=answers), tokens(19, 3, 7)
        lengths = [4, 7, 1]
        logits = model(numbers, padding_mask(torch.tensor(lengths), 7))
        for row, length in enumerate(lengths):
            alone = model(numbers[row : row + 1, :length])[0]
            own = logits[row, :length] if answers == "tokens" else logits[row]
            torch.testing.assert_close(own, alone)
    model, other = encoder_only(positions=positions), numbers.clone()
    other[:, -1] = (other[:, -1] + 1) % 19
    assert not torch.allclose(model(other)[:, 0], model(numbers)[:, 0])


def test_an_encoder_without_positions_reads_a_set(encoder_only, tokens):
    order, numbers = [3, 0, 4, 2, 1], tokens(19, 2, 5)
    model = encoder_only(positions="none")
    torch.testing.assert_close(model(numbers[:, order]), model(numbers)[:, order])
    model = encoder_only(positions="none", answers="sequence")
    torch.testing.assert_close(model(numbers[:, order]), model(numbers))


@pytest.mark.parametrize(("num_outputs", "expected"), [(None, 19), (3, 3)])
def test_an_encoder_answers_for_tokens_or_for_the_whole(
    encoder_only, tokens, num_outputs, expected
):
    numbers, choices = tokens(19, 2, 7), {"num_outputs": num_outputs, "tie_embeddings": False}
    assert encoder_only(**choices)(numbers).shape == (2, 7, expected)
    assert encoder_only(**choices, answers="sequence")(numbers).shape == (2, expected)


def test_a_cache_and_a_padding_mask_work_together(decoder_only, tokens):
    """Rotary sequences filled up at the front, written on side by side, as if each were alone."""
    model, numbers = decoder_only(positions="rotary").eval(), tokens(19, 2, 7)
    mask = torch.arange(7) >= torch.tensor([3, 0])[:, None, None, None]
    cache, parts = model.new_cache(2), []
    for part in numbers.split([4, 1, 2], dim=1):
        parts.append(model(part, mask[..., : cache.length + part.shape[1]], cache))
    logits = torch.cat(parts, dim=1)
    torch.testing.assert_close(logits[:1, 3:], model(numbers[:1, 3:]))
    torch.testing.assert_close(logits[1:], model(numbers[1:]))


def test_the_source_is_projected_once_however_many_tokens_are_written(encoder_decoder, tokens):
    model, source = encoder_decoder().eval(), tokens(23, 2, 13)
    memory, cache, calls = model.encode(source), model.new_cache(2), []
    for block in model.blocks:
        block.cross_attention.key.register_forward_hook(lambda *_: calls.append("key"))
    for step in tokens(19, 2, 5).split(1, dim=1):
        model.decode(step, memory, cache=cache)
    assert calls == ["key"] * len(model.blocks)


@pytest.mark.parametrize("choices", [{"norm": "rms"}, {"qk_norm": True}, {"activation": "swiglu"}])
def test_every_choice_reaches_every_block(encoder_decoder, tokens, choices):
    """Each choice has parts of its own: in the encoder, the decoder and both attentions."""
    plain, model = encoder_decoder(), encoder_decoder(**choices)
    names = {name for name, _ in model.named_parameters()} ^ {
        name for name, _ in plain.named_parameters()
    }
    for stack in (*(f"encoder.{i}." for i in range(3)), "blocks.0.", "blocks.1."):
        assert any(name.startswith(stack) for name in names)
    if "qk_norm" in choices:
        assert any("cross_attention.query_norm" in name for name in names)
    if "norm" in choices:
        assert any("cross_attention_norm" in name for name in names)
        assert "final_norm.bias" in names
    model(tokens(23, 2, 13), tokens(19, 2, 7)).sum().backward()


def test_without_biases_no_linear_map_in_the_blocks_has_one(encoder_decoder):
    names = [name for name, _ in encoder_decoder(bias=False, norm="rms").named_parameters()]
    assert not [name for name in names if name.endswith("bias")]


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_position_scheme_tells_an_order_from_another(encoder_decoder, tokens, positions):
    """The encoder hides nothing, so without positions the memory would only be reordered."""
    model, source = encoder_decoder(positions=positions), tokens(23, 1, 5)
    order = [3, 0, 4, 2, 1]
    assert not torch.allclose(model.encode(source[:, order]), model.encode(source)[:, order])


def test_both_backends_give_the_same_logits(encoder_decoder, tokens):
    model, source, target = encoder_decoder(), tokens(23, 2, 13), tokens(19, 2, 7)
    fused = model(source, target)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            assert module.backend == "fused"
            module.backend = "explicit"
    torch.testing.assert_close(model(source, target), fused)


def test_tied_tables_are_one_parameter(encoder_decoder):
    model = encoder_decoder(tie_embeddings=True)
    assert model.unembedding.weight is model.embedding.tokens.weight
    assert model.source_embedding.tokens.weight is not model.embedding.tokens.weight
    model = encoder_decoder(tie_source_embeddings=True, source_vocab_size=19)
    assert model.source_embedding.tokens.weight is model.embedding.tokens.weight
    model = encoder_decoder(tie_embeddings=False)
    assert model.unembedding.weight is not model.embedding.tokens.weight


@pytest.mark.parametrize("norm_order", ORDERS)
def test_every_parameter_is_trained(decoder_only, encoder_decoder, tokens, norm_order):
    """All but the key biases, which the softmax takes out again."""
    alone, translator = decoder_only(norm_order=norm_order), encoder_decoder(norm_order=norm_order)
    target = torch.arange(11)[None] % 19
    source = torch.cat((torch.arange(17), torch.arange(6, 23))).view(2, 17)
    alone(target).logsumexp(-1).sum().backward()
    translator(source, target.expand(2, 11)).logsumexp(-1).sum().backward()
    for model in (alone, translator):
        for name, parameter in model.named_parameters():
            is_silent = parameter.grad.abs().max() < 1e-9
            assert is_silent == name.endswith("key.bias"), name


def test_only_the_pre_norm_stream_is_normalised_at_the_end(encoder_decoder, tokens):
    model = encoder_decoder(norm_order="post")
    assert isinstance(model.final_norm, nn.Identity) and isinstance(model.encoder_norm, nn.Identity)
    model = encoder_decoder(norm_order="pre")
    with torch.no_grad():
        model.encoder_norm.gain.zero_()
        model.encoder_norm.bias.zero_()
    assert model.encode(tokens(23, 2, 13)).eq(0).all()


@pytest.mark.parametrize("norm_order", ORDERS)
def test_a_model_learns_a_sequence_by_heart(norm_order):
    config = DecoderOnlyConfig(**SMALL | {"norm_order": norm_order, "tie_embeddings": False})
    model, numbers = (
        DecoderOnly(config, generator()),
        torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]]),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(numbers[:, :-1])[0], numbers[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05


def test_a_cache_has_the_model_s_precision(decoder_only):
    assert decoder_only().new_cache(2).layers[0].keys.dtype == torch.float64
    model = decoder_only().to(torch.bfloat16).eval()
    cache = model.new_cache(2)
    assert model(torch.ones(2, 3, dtype=torch.long), cache=cache).dtype == torch.bfloat16
    assert cache.layers[0].keys.dtype == torch.bfloat16


# Refusals


def test_a_sequence_longer_than_the_model_s_context_is_refused(
    decoder_only, encoder_decoder, tokens
):
    model, translator = decoder_only(positions="rotary"), encoder_decoder()
    message = "a sequence must not be longer than max_len, got length=12, max_len=11"
    with pytest.raises(ValueError, match=message):
        model(tokens(19, 2, 12))
    cache = model.new_cache(2)
    model(tokens(19, 2, 10), cache=cache)
    with pytest.raises(ValueError, match=message):
        model(tokens(19, 2, 2), cache=cache)
    with pytest.raises(ValueError, match=message):
        translator(tokens(23, 2, 13), tokens(19, 2, 12))
    with pytest.raises(ValueError, match="than source_max_len, got length=18, source_max_len=17"):
        translator(tokens(23, 2, 18), tokens(19, 2, 7))


def test_a_full_cache_refuses_and_stays_as_it_was(decoder_only, tokens):
    model = decoder_only().eval()
    cache, numbers = model.new_cache(2, max_len=5), tokens(19, 2, 5)
    model(numbers[:, :4], cache=cache)
    with pytest.raises(ValueError, match="more than max_len tokens, got tokens=6, max_len=5"):
        model(tokens(19, 2, 2), cache=cache)
    torch.testing.assert_close(model(numbers[:, 4:], cache=cache), model(numbers)[:, 4:])


@pytest.mark.parametrize("max_len", [0, 12])
def test_a_cache_of_an_impossible_length_is_refused(decoder_only, encoder_decoder, max_len):
    for model in (decoder_only(), encoder_decoder()):
        with pytest.raises(ValueError, match=f"got max_len={max_len}, the model's max_len=11"):
            model.new_cache(2, max_len)


def test_a_changed_config_is_another_model():
    """A model keeps the config it was built from, which cannot change under it."""
    config = DecoderOnlyConfig(**SMALL)
    model = DecoderOnly(config, generator())
    assert model.config is config
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.config.max_len = 7
