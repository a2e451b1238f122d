import math

import pytest
import torch
from torch import nn

from groundup import presets
from groundup.core.cache import LayerCache
from groundup.core.layers import LayerNorm, RMSNorm
from groundup.core.masks import causal_mask, masked_softmax, padding_mask
from groundup.core.models import DecoderOnly, EncoderDecoder, EncoderOnly
from groundup.core.multihead import MultiHeadAttention
from groundup.core.positions import alibi_bias, rotate
from groundup.generation.caches import StaticLayerCache
from groundup.generation.quantization import quantize
from groundup.looking.audit import (
    batch_audit,
    cache_equality,
    causality_audit,
    dependence,
    dependence_audit,
    finite_in,
    gradient_dependence,
    nan_reach,
    padding_invariance,
    permutation_equivariance,
    prefix_invariance,
    purity,
    repeatability,
    shift_invariance,
)

# Sizes: vocabulary 19 (source 23), 7 tokens (source 5 or 11), batch 2 or 3, d_model 24, 4 heads,
# d_ff 13.

VOCAB, LENGTH = 19, 7
MODES = ("train", "eval")
SMALL = {"d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 13}
SIZES = {"vocab_size": VOCAB, "max_len": 13}
SOURCE = {"source_vocab_size": 23, "source_max_len": 17, "num_encoder_layers": 2}
PARTS = {
    **{f"{name} positions": {"positions": name} for name in ("sinusoidal", "learned", "none")},
    **{f"{name} positions": {"positions": name} for name in ("rotary", "alibi")},
    **{f"activation {name}": {"activation": name} for name in ("relu", "gelu", "gelu_tanh")},
    **{f"activation {name}": {"activation": name} for name in ("squared_relu", "swiglu", "geglu")},
    "norm rms": {"norm": "rms"},
    "norm after": {"norm_order": "post"},
    "norm of queries and keys": {"qk_norm": True},
    "shared key heads": {"num_kv_heads": 2},
    "width of heads": {"head_width": 8},
    "rotary frequencies": {"positions": "rotary", "rotary_frequencies": (0.7, 0.2, 0.03)},
    "no biases": {"bias": False},
    "dropout": {"dropout": 0.3},
    "two tables": {"tie_embeddings": False},
}
EVERYTHING = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
LATER = EVERYTHING.triu(1)
NEXT = LATER & EVERYTHING.tril(1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def same_weights():
    """Start each test from the same random state, which a `Toy` takes its weights from."""
    with torch.random.fork_rng():
        torch.manual_seed(2021)
        yield


@pytest.fixture
def decoder_only(shaken):
    def build(preset="tiny", **overrides):
        config = presets.decoder_only(preset, **SIZES | SMALL | overrides)
        return shaken(DecoderOnly(config, generator()))

    return build


@pytest.fixture
def encoder_only(shaken):
    def build(**overrides):
        config = presets.encoder_only("tiny", **SIZES | SMALL | overrides)
        return shaken(EncoderOnly(config, generator()))

    return build


@pytest.fixture
def encoder_decoder(shaken):
    def build(**overrides):
        config = presets.encoder_decoder("tiny", **SIZES | SOURCE | SMALL | overrides)
        return shaken(EncoderDecoder(config, generator()))

    return build


class Toy(nn.Module):
    """One attention over the past, for others to break."""

    def __init__(self, width=5):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.unembedding = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.unembedding(x + self.mix(x))

    def mix(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        return self.weights(scores) @ x

    def weights(self, scores):
        return masked_softmax(scores, self.mask(scores.shape[-1]))

    def mask(self, length):
        return causal_mask(length)


class NoMask(Toy):
    def mask(self, length):
        return causal_mask(length) | True


class MaskUpsideDown(Toy):
    def mask(self, length):
        return causal_mask(length).T


class MaskOffByOne(Toy):
    def mask(self, length):
        return torch.ones(length, length).tril(1).bool()


class MaskInTrainingOnly(Toy):
    def mask(self, length):
        return causal_mask(length) if self.training else causal_mask(length) | True


class MaskInEvaluationOnly(Toy):
    def mask(self, length):
        return causal_mask(length) | self.training


class MaskAfterSoftmax(Toy):
    def weights(self, scores):
        return scores.softmax(dim=-1) * causal_mask(scores.shape[-1])


class MaskTooWeak(Toy):
    def weights(self, scores):
        return scores.masked_fill(~causal_mask(scores.shape[-1]), -20.0).softmax(dim=-1)


class SoftmaxOverQueries(Toy):
    def weights(self, scores):
        hidden = ~causal_mask(scores.shape[-1])
        return scores.masked_fill(hidden, -math.inf).softmax(dim=-2)


class WindowBothWays(Toy):
    def mask(self, length):
        place = torch.arange(length)
        return (place[:, None] - place).abs() < 2


class NormOverTime(Toy):
    def mix(self, x):
        x = super().mix(x)
        return (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)


class BatchNorm(Toy):
    """Statistics over rows and positions in training; running ones after it."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def mix(self, x):
        return self.norm(super().mix(x).transpose(1, 2)).transpose(1, 2)


class BatchNormOfEachPosition(Toy):
    def mix(self, x):
        x = super().mix(x)
        return x - x.mean(dim=0)


class PaddedConvolution(Toy):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(5, 5, kernel_size=3, padding=1)

    def mix(self, x):
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


class CountingFromTheEnd(Toy):
    def mix(self, x):
        left = torch.arange(x.shape[1], 0, -1, dtype=x.dtype)
        return super().mix(x) + left[:, None]


CAUSAL_MUTANTS = [
    (NoMask, MODES, LATER),
    (MaskUpsideDown, MODES, LATER),
    (MaskOffByOne, MODES, NEXT),
    (MaskInTrainingOnly, ("eval",), LATER),
    (MaskInEvaluationOnly, ("train",), LATER),
    (MaskAfterSoftmax, MODES, LATER),
    (MaskTooWeak, MODES, LATER),
    (SoftmaxOverQueries, MODES, LATER),
    (WindowBothWays, MODES, NEXT),
    (NormOverTime, MODES, LATER),
    (BatchNorm, ("train",), LATER),
    (PaddedConvolution, MODES, NEXT),
]


# By hand


class Shift(nn.Module):
    """Output i is 10 times token i minus token i - 2, and knows nothing else."""

    def forward(self, tokens):
        return (10.0 * tokens - tokens.roll(2, dims=1) * (torch.arange(5) > 1)).unsqueeze(-1)


def test_dependence_by_hand():
    """Two tokens: a 0 becomes a 1 and a 1 a 0 at once, so every change is 10 or 1."""
    change = dependence(Shift(), torch.tensor([[0, 1, 1, 0, 1]]), 2, num_replacements=1)
    assert change.tolist() == [
        [10, 0, 0, 0, 0],
        [0, 10, 0, 0, 0],
        [1, 0, 10, 0, 0],
        [0, 1, 0, 10, 0],
        [0, 0, 1, 0, 10],
    ]


def test_gradients_by_hand():
    """Of `x_0 + 2 x_1` in one feature: 1 and 2, times the one direction that is drawn."""

    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCAB, 1)

        def forward(self, tokens):
            x = self.embedding(tokens)
            return torch.stack((x[:, 0] + 2 * x[:, 1], x[:, 1]), dim=1)

    model = Weighted()
    slope = gradient_dependence(model, torch.tensor([[3, 5]]), model.embedding)
    torch.testing.assert_close(slope / slope[0, 0], torch.tensor([[1.0, 2.0], [0, 1]]).double())
    assert slope[0, 0] > 0.01


def test_the_verdict_names_the_first_leak_of_each_mode_in_words(tokens):
    audit = causality_audit(MaskInTrainingOnly(), tokens(VOCAB, 2, LENGTH), VOCAB)
    first = audit.leaks[0]
    assert (first.mode, first.output, first.input) == ("eval", 0, 1)
    assert first.change == audit.changes["eval"][0, 1].item() > 0
    assert str(audit) == (
        "train: no leak\n"
        f"eval: output 0 depends on input 1, changed by {first.change:.3g}; leaks in total: 21"
    )


# Every model of the library


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["explicit", "fused"])
@pytest.mark.parametrize("preset", presets.DECODER_ONLY)
def test_every_preset_is_causal_and_uses_all_of_its_past(decoder_only, tokens, preset, backend):
    model, numbers = decoder_only(preset), tokens(VOCAB, 2, LENGTH)
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.backend = backend
    audit = causality_audit(model, numbers, VOCAB, embedding=model.embedding.tokens)
    assert audit.holds, str(audit)
    assert audit.unused == ()
    assert list(audit.changes) == ["train", "train, by gradients", "eval", "eval, by gradients"]


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_causal_in_both_models_that_write(
    decoder_only, encoder_decoder, tokens, part
):
    numbers, source = tokens(VOCAB, 2, LENGTH), tokens(23, 2, 5)
    model = decoder_only(**PARTS[part])
    assert_uses_exactly(causality_audit(model, numbers, VOCAB, num_replacements=2))
    model = encoder_decoder(**PARTS[part])
    audit = causality_audit(
        lambda target: model(source, target), numbers, VOCAB, module=model, num_replacements=1
    )
    assert_uses_exactly(audit)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_lets_an_encoder_and_a_decoder_see_the_whole_source(
    encoder_only, encoder_decoder, tokens, part
):
    numbers, target = tokens(VOCAB, 2, LENGTH), tokens(VOCAB, 2, 3)
    model = encoder_only(**PARTS[part])
    assert_uses_exactly(dependence_audit(model, numbers, VOCAB, EVERYTHING, num_replacements=1))
    model = encoder_decoder(**PARTS[part])
    audit = dependence_audit(
        lambda source: model(source, target),
        tokens(23, 2, 5),
        23,
        torch.ones(3, 5, dtype=torch.bool),
        module=model,
        num_replacements=1,
    )
    assert_uses_exactly(audit)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned"])
def test_a_window_reaches_back_by_one_window_per_layer(decoder_only, tokens, positions):
    model = decoder_only(window=2, positions=positions)
    reach = ~LATER & EVERYTHING.triu(-2)  # 2 layers, each one token back
    assert_uses_exactly(dependence_audit(model, tokens(VOCAB, 2, LENGTH), VOCAB, reach))


def test_an_encoder_is_seen_to_be_no_causal_model(encoder_only, tokens):
    audit = causality_audit(encoder_only(), tokens(VOCAB, 2, LENGTH), VOCAB)
    assert_leaks(audit, MODES, LATER)


def test_padding_reaches_neither_an_encoder_nor_a_translation(
    encoder_only, encoder_decoder, tokens
):
    mask = padding_mask(torch.tensor([4, 4]), LENGTH)
    real = EVERYTHING & (torch.arange(LENGTH) < 4)
    reader, translator = encoder_only(), encoder_decoder()
    audit = dependence_audit(
        lambda numbers: reader(numbers, mask)[:, :4],
        tokens(VOCAB, 2, LENGTH),
        VOCAB,
        real[:4],
        module=reader,
    )
    assert_uses_exactly(audit)
    target = tokens(VOCAB, 2, 5)
    audit = dependence_audit(
        lambda source: translator(source, target, mask),
        tokens(23, 2, LENGTH),
        23,
        real[:5],
        module=translator,
    )
    assert_uses_exactly(audit)


def test_no_model_of_the_library_depends_on_its_batch(
    decoder_only, encoder_only, encoder_decoder, tokens
):
    numbers, source = tokens(VOCAB, 3, LENGTH), tokens(23, 3, 11)
    for model in (decoder_only(dropout=0.3), encoder_only(dropout=0.3)):
        assert_uses_exactly(batch_audit(model, numbers, VOCAB))
    model = encoder_decoder(dropout=0.3)
    assert_uses_exactly(
        batch_audit(lambda target: model(source, target), numbers, VOCAB, module=model)
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", [*PARTS, "window"])
def test_the_other_laws_hold_in_every_part(decoder_only, tokens, part):
    model = decoder_only(**PARTS.get(part, {"window": 3})).eval()
    numbers = tokens(VOCAB, 2, LENGTH)
    lengths = torch.tensor([LENGTH, 3])
    checks = [
        prefix_invariance(model, numbers, tolerance=1e-10),
        padding_invariance(
            lambda numbers, lengths: model(numbers, padding_mask(lengths, numbers.shape[1])),
            numbers,
            lengths,
            module=model,
            tolerance=1e-10,
        ),
        *(
            cache_equality(
                model,
                lambda chunk, cache: model(chunk, cache=cache),
                lambda kind=kind: model.new_cache(2, kind=kind),
                numbers,
                tolerance=1e-10,
            )
            for kind in (LayerCache, StaticLayerCache)
        ),
        repeatability(model, numbers),
        purity(model, numbers),
        finite_in(model, numbers, torch.bfloat16),
    ]
    assert [str(check) for check in checks if not check.holds] == []
    assert all(check.difference == 0 for check in checks[-3:])


def test_weights_of_eight_bits_change_no_law(decoder_only, tokens):
    model, numbers = quantize(decoder_only().float()).double(), tokens(VOCAB, 2, LENGTH)
    assert_uses_exactly(causality_audit(model, numbers, VOCAB))
    assert_uses_exactly(batch_audit(model, numbers, VOCAB))


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_scores_depend_on_distance_alone(normal, positions):
    query, key = normal(3, 5, 8), normal(3, 5, 8)

    def rotary(places):
        return rotate(query, places) @ rotate(key, places).transpose(-2, -1)

    def alibi(places):
        first, last = places.min().item(), places.max().item()
        return alibi_bias(3, last + 1)[:, first:, first:]

    scores = rotary if positions == "rotary" else alibi
    assert shift_invariance(scores, torch.arange(5), tolerance=1e-10).holds


def test_attention_without_positions_sees_a_set(encoder_only, normal):
    blocks = encoder_only(positions="none").blocks
    assert permutation_equivariance(blocks[0], normal(2, 7, 24), tolerance=1e-10).holds
    blocks = encoder_only(positions="rotary").blocks
    assert not permutation_equivariance(blocks[0], normal(2, 7, 24), tolerance=1e-10).holds


def test_a_nan_stays_in_its_token_where_tokens_are_worked_on_one_by_one(decoder_only, tokens):
    model, numbers = decoder_only(), tokens(VOCAB, 2, LENGTH)
    block, embedding = model.blocks[0], model.embedding.tokens
    own = torch.eye(LENGTH, dtype=torch.bool)
    parts = (block.attention_norm, block.feed_forward, LayerNorm(24).double())
    for part in (*parts, RMSNorm(24).double()):
        reach = nan_reach(lambda t, part=part: part(embedding(t)), numbers, embedding)
        assert torch.equal(reach, own)


def test_what_no_nan_reaches_has_no_influence(decoder_only, tokens):
    """And not the reverse: zero times NaN is NaN, so masked attention passes it on."""
    model, numbers = decoder_only(), tokens(VOCAB, 2, LENGTH)
    for part in model.modules():
        if isinstance(part, MultiHeadAttention):
            part.backend = "explicit"
    reach = nan_reach(model, numbers, model.embedding.tokens)
    assert torch.equal(reach, EVERYTHING)
    toy, convolution = Toy(), PaddedConvolution()
    assert nan_reach(toy, numbers, toy.embedding).all()
    reach = nan_reach(convolution, numbers, convolution.embedding)
    assert torch.equal(reach, EVERYTHING.triu(-1) & EVERYTHING.tril(1))
    assert torch.equal(reach, dependence(convolution, numbers, VOCAB) > 0)


# Broken models


def test_the_model_that_is_broken_below_is_sound(tokens):
    numbers = tokens(VOCAB, 3, LENGTH)
    assert_uses_exactly(causality_audit(Toy(), numbers, VOCAB))
    assert_uses_exactly(batch_audit(Toy(), numbers, VOCAB))
    assert prefix_invariance(Toy(), numbers).holds


@pytest.mark.parametrize(("broken", "modes", "pairs"), CAUSAL_MUTANTS)
def test_every_way_to_look_ahead_is_caught_in_its_modes_and_places(tokens, broken, modes, pairs):
    model = broken().double()
    audit = causality_audit(model, tokens(VOCAB, 2, LENGTH), VOCAB, embedding=model.embedding)
    assert not audit.holds
    both = [*modes, *(f"{mode}, by gradients" for mode in modes)]
    assert_leaks(audit, [name for name in audit.changes if name in both], pairs)


def test_batch_statistics_are_not_mistaken_for_a_look_ahead(tokens):
    model, numbers = BatchNormOfEachPosition().double(), tokens(VOCAB, 3, LENGTH)
    assert_uses_exactly(causality_audit(model, numbers, VOCAB))
    audit = batch_audit(model, numbers, VOCAB)
    assert_leaks(audit, MODES, ~torch.eye(3, dtype=torch.bool))
    audit = batch_audit(BatchNorm().double(), numbers, VOCAB)
    assert_leaks(audit, ["train"], ~torch.eye(3, dtype=torch.bool))


def test_rounding_with_one_scale_per_call_leaks_to_the_past_and_to_the_batch(tokens):
    class Rounded(Toy):
        def mix(self, x):
            step = x.abs().amax() / 7
            return super().mix((x / step).round() * step)

    model, numbers = Rounded().double(), tokens(VOCAB // 2, 3, LENGTH)
    with torch.no_grad():  # the larger half of the tokens comes in by replacement alone
        model.embedding.weight.copy_(torch.arange(VOCAB).unsqueeze(-1).expand(-1, 5))
    audit = causality_audit(model, numbers, VOCAB, num_replacements=11)
    assert {link.mode for link in audit.leaks} == set(MODES)
    assert {link.mode for link in batch_audit(model, numbers, VOCAB).leaks} == set(MODES)


def test_the_length_of_a_text_leaks_without_any_of_its_tokens(tokens):
    model, numbers = CountingFromTheEnd(), tokens(VOCAB, 2, LENGTH)
    assert causality_audit(model, numbers, VOCAB).holds
    check = prefix_invariance(model, numbers)
    assert not check.holds
    assert check.where == "the first 1 of 7 tokens"
    assert str(check).startswith("a prefix does not depend on the length: broken, off by ")


def test_a_leak_that_only_one_token_triggers_is_seen_with_enough_replacements():
    class Trigger(Toy):
        def forward(self, tokens):
            return super().forward(tokens) + (tokens[:, -1:] == 11).unsqueeze(-1)

    model, numbers = Trigger(), torch.zeros(1, LENGTH, dtype=torch.long)
    assert causality_audit(model, numbers, VOCAB, num_replacements=1).holds
    audit = causality_audit(model, numbers, VOCAB, num_replacements=40)
    assert {link.input for link in audit.leaks} == {LENGTH - 1}
    assert not (gradient_dependence(model, numbers, model.embedding) > 0)[LATER].any()


def test_a_leak_below_rounding_is_seen_by_gradients(tokens):
    class Whisper(Toy):
        def mix(self, x):
            return super().mix(x) + 1e-20 * x.mean(dim=1, keepdim=True)

    model, numbers = Whisper(), tokens(VOCAB, 2, LENGTH)
    assert causality_audit(model, numbers, VOCAB).holds
    audit = causality_audit(model, numbers, VOCAB, embedding=model.embedding)
    assert_leaks(audit, ["train, by gradients", "eval, by gradients"], LATER)


def test_a_leak_that_cancels_in_the_sum_of_the_logits_is_seen_by_gradients(tokens):
    class SeeSaw(Toy):
        def forward(self, tokens):
            heard = self.embedding(tokens).sum(dim=1, keepdim=True).expand(-1, LENGTH, -1)
            return torch.cat((heard, -heard), dim=-1)

    model = SeeSaw().double()
    slope = gradient_dependence(model, tokens(VOCAB, 2, LENGTH), model.embedding)
    assert (slope > 0.01).all()


def test_a_change_into_nan_is_a_dependence():
    class Fragile(Toy):
        def forward(self, tokens):
            out = super().forward(tokens)
            return out.masked_fill((tokens[:, -1:] > 0).unsqueeze(-1), torch.nan)

    audit = causality_audit(Fragile(), torch.zeros(1, LENGTH, dtype=torch.long), VOCAB)
    assert {(link.input, link.change) for link in audit.leaks} == {(LENGTH - 1, math.inf)}


def test_a_model_that_looks_at_nothing_holds_and_says_what_is_unused(decoder_only, tokens):
    """The trap of an audit at zero initial weights, where a missing mask would go unseen."""
    model = decoder_only("modern")
    with torch.no_grad():
        for block in model.blocks:
            block.attention.output.weight.zero_()
    audit = causality_audit(model, tokens(VOCAB, 2, LENGTH), VOCAB)
    assert audit.holds
    earlier = {(i, j) for i in range(LENGTH) for j in range(i)}
    assert {(link.output, link.input) for link in audit.unused} == earlier


def test_a_padded_sequence_that_sees_its_padding_is_caught(encoder_only, tokens):
    model = encoder_only().eval()
    numbers, lengths = tokens(VOCAB, 2, LENGTH), torch.tensor([LENGTH, 3])
    check = padding_invariance(lambda numbers, _: model(numbers), numbers, lengths)
    assert not check.holds
    assert check.where == "row 1 of length 3"


def test_a_cache_that_forgets_where_it_is_is_caught(decoder_only, tokens):
    model, numbers = decoder_only(), tokens(VOCAB, 2, LENGTH)

    def step(chunk, cache):
        return model(chunk, cache=cache, positions=torch.arange(chunk.shape[1]))

    check = cache_equality(model, step, lambda: model.new_cache(2), numbers)
    assert not check.holds
    assert "chunks of" in check.where


@pytest.mark.parametrize("seed", range(5))
def test_two_vectors_are_shuffled_by_every_draw(normal, seed):
    """Half of all draws leave two vectors in place, where a sense of order would go unseen."""
    first_alone = torch.tensor([1.0, 0.0]).unsqueeze(-1)
    check = permutation_equivariance(
        lambda x: x * first_alone, normal(3, 2, 5), num_permutations=1, generator=generator(seed)
    )
    assert not check.holds
    assert check.where == "order [1, 0]"


def test_absolute_positions_are_no_shift(normal):
    query, key, table = normal(5, 8), normal(5, 8), normal(107, 8)
    check = shift_invariance(lambda at: (query + table[at]) @ (key + table[at]).T, torch.arange(5))
    assert not check.holds


def test_dropout_left_on_is_caught(tokens):
    class AlwaysDropping(Toy):
        def mix(self, x):
            return nn.functional.dropout(super().mix(x), 0.5, training=True)

    assert not repeatability(AlwaysDropping(), tokens(VOCAB, 2, LENGTH)).holds


@pytest.mark.parametrize("victim", ["tokens", "embedding.weight"])
def test_a_model_that_writes_where_it_should_read_is_caught(tokens, victim):
    class Writer(Toy):
        def forward(self, tokens):
            out = super().forward(tokens)
            (tokens if victim == "tokens" else self.embedding.weight).mul_(0)
            return out

    check = purity(Writer(), tokens(VOCAB, 2, LENGTH))
    assert not check.holds
    assert check.where == victim


def test_numbers_that_overflow_in_half_precision_are_counted(tokens):
    class Large(Toy):
        def forward(self, tokens):
            return 1e5 * super().forward(tokens).sign()

    numbers = tokens(VOCAB, 2, LENGTH)
    assert finite_in(Large(), numbers, torch.float32).holds
    check = finite_in(Large(), numbers, torch.float16)
    assert check.difference >= 2 * LENGTH * VOCAB
    assert check.where == "outputs"


# Nothing is left behind


def test_an_audit_leaves_model_and_random_state_as_they_were(tokens):
    model = BatchNorm().train()
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffer, state = model.norm.running_mean, torch.get_rng_state()
    causality_audit(model, tokens(VOCAB, 2, LENGTH), VOCAB, embedding=model.embedding)
    assert model.training and not model.norm.training
    assert model.norm.running_mean is buffer
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.embedding._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tokens_survive_a_model_that_overwrites_them(tokens):
    class Overwriting(Toy):
        def forward(self, tokens):
            out = super().forward(tokens)
            tokens.zero_()
            return out

    numbers = tokens(VOCAB, 2, LENGTH)
    before, model = numbers.clone(), Overwriting()
    assert_uses_exactly(causality_audit(model, numbers, VOCAB, embedding=model.embedding))
    assert torch.equal(numbers, before)


def test_outputs_that_share_one_room_are_not_compared_with_themselves(tokens):
    """As a recorded CUDA graph gives them: each call overwrites what the last one gave."""

    class Recorded(NoMask):
        room = torch.empty(2, LENGTH, VOCAB)

        def forward(self, tokens):
            return self.room.copy_(super().forward(tokens))

    assert_leaks(causality_audit(Recorded(), tokens(VOCAB, 2, LENGTH), VOCAB), MODES, LATER)


def test_an_audit_can_be_repeated_and_follows_its_generator(tokens):
    model, numbers = Toy(), tokens(VOCAB, 2, LENGTH)
    first, again = (dependence(model, numbers, VOCAB) for _ in range(2))
    other = dependence(model, numbers, VOCAB, generator=generator(5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# Refusals


def test_a_model_with_a_state_is_refused(tokens):
    class Counter(Toy):
        calls = 0

        def forward(self, tokens):
            self.calls += 1
            return super().forward(tokens) + self.calls

    with pytest.raises(ValueError, match=r"a change of 1 \(train\): does it keep a state"):
        causality_audit(Counter(), tokens(VOCAB, 2, LENGTH), VOCAB)


def test_one_logit_per_sequence_is_refused(tokens):
    with pytest.raises(ValueError, match=r"outputs for each row and position, got \(2,\)"):
        dependence(lambda t: Toy()(t)[:, 0, 0], tokens(VOCAB, 2, LENGTH), VOCAB)


def test_a_shape_of_allowed_pairs_that_does_not_fit_is_refused(tokens):
    with pytest.raises(ValueError, match=r"got \(7, 7\) for \(4, 7\)"):
        dependence_audit(lambda t: Toy()(t)[:, :4], tokens(VOCAB, 2, 7), VOCAB, EVERYTHING)


def test_an_embedding_that_is_not_called_is_refused(tokens):
    with pytest.raises(ValueError, match="exactly once, got 0 calls"):
        gradient_dependence(Toy(), tokens(VOCAB, 2, LENGTH), nn.Embedding(VOCAB, 5))


def test_a_detached_model_is_refused(tokens):
    model = Toy()
    with pytest.raises(ValueError, match="the outputs must have a gradient"):
        gradient_dependence(
            lambda t: model(t).detach(), tokens(VOCAB, 2, LENGTH), model.embedding, module=model
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 1}, "vocab_size=1"),
        ({"vocab_size": VOCAB, "num_replacements": 0}, "num_replacements=0"),
        ({"vocab_size": VOCAB, "mode": "test"}, "mode must be train or eval, got mode=test"),
    ],
)
def test_settings_that_examine_nothing_are_refused(tokens, settings, message):
    with pytest.raises(ValueError, match=message):
        dependence(Toy(), tokens(VOCAB, 2, LENGTH) * 0, **settings)


def test_a_single_row_and_a_single_vector_are_refused(tokens, normal):
    with pytest.raises(ValueError, match="at least 2 rows to leak, got batch=1"):
        batch_audit(Toy(), tokens(VOCAB, 1, LENGTH), VOCAB)
    with pytest.raises(ValueError, match="at least 2 vectors to shuffle, got length=1"):
        permutation_equivariance(nn.Identity(), normal(2, 1, 5))


def test_results_of_two_shapes_are_refused(tokens):
    with pytest.raises(ValueError, match="must have the same shape to be compared"):
        prefix_invariance(lambda t: Toy()(t)[..., : t.shape[1]], tokens(VOCAB, 2, LENGTH))


def assert_uses_exactly(audit):
    assert audit.holds, str(audit)
    assert audit.unused == ()


def assert_leaks(audit, modes, pairs):
    expected = {(mode, i, j) for mode in modes for i, j in pairs.nonzero().tolist()}
    assert {(link.mode, link.output, link.input) for link in audit.leaks} == expected
