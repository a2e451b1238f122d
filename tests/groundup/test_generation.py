import pytest
import torch

from groundup.config import DecoderOnlyConfig, EncoderDecoderConfig
from groundup.generation import generate, stream, translate, translate_texts
from groundup.masks import padding_mask
from groundup.models import DecoderOnly, EncoderDecoder
from groundup.sampling import greedy, sample
from groundup.tokenizers import BOS, EOS, PAD, CharacterTokenizer

# Sizes: vocabulary 13 (source 17), d_model 12, 3 heads, context 11 (source 7).

SMALL = {"vocab_size": 13, "max_len": 11, "d_model": 12, "num_heads": 3, "d_ff": 5}
POSITIONS = ["sinusoidal", "learned", "rotary"]


@pytest.fixture
def decoder_only(shaken):
    def build(positions="rotary", **overrides):
        config = DecoderOnlyConfig.tiny(**SMALL | {"positions": positions} | overrides)
        return shaken(DecoderOnly(config, torch.Generator().manual_seed(0)))

    return build


@pytest.fixture
def encoder_decoder(shaken):
    def build(positions="sinusoidal", **overrides):
        sizes = SMALL | {"source_vocab_size": 17, "source_max_len": 7, "positions": positions}
        config = EncoderDecoderConfig.tiny(**sizes | overrides)
        return shaken(EncoderDecoder(config, torch.Generator().manual_seed(0)))

    return build


def drawing(seed):
    """Draw from the softmax, the same way each time."""
    generator = torch.Generator().manual_seed(seed)
    return lambda logits: sample(logits, generator)


class Counting(torch.nn.Module):
    """A model that answers each token with the next larger one, and remembers what it read."""

    def __init__(self, vocab_size=10, max_len=5):
        super().__init__()
        self.config = DecoderOnlyConfig.tiny(vocab_size=vocab_size, max_len=max_len)
        self.read = []

    def forward(self, tokens, mask=None, cache=None):
        self.read.append(tokens[0].tolist())
        return torch.nn.functional.one_hot((tokens + 1) % self.config.vocab_size).double()


# By hand


@pytest.fixture
def counting(unchecked):
    """Count without a cache; only the shape of a model is needed, so types are not checked."""

    def run(prompt, number, eos=None, **sizes):
        model = Counting(**sizes)
        return model, generate(model, torch.tensor(prompt), number, eos=eos, use_cache=False)

    return run


def test_what_is_chosen_is_appended_and_read_again(counting):
    model, tokens = counting([[3, 4]], 3)
    assert tokens.tolist() == [[3, 4, 5, 6, 7]]
    assert model.read == [[3, 4], [3, 4, 5], [3, 4, 5, 6]]


def test_a_full_context_forgets_its_older_half(counting):
    model, tokens = counting([[0, 1, 2, 3]], 5, max_len=5)
    assert tokens.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8]]
    assert model.read[1:] == [[0, 1, 2, 3, 4], [3, 4, 5], [3, 4, 5, 6], [3, 4, 5, 6, 7]]


def test_a_sequence_that_has_ended_is_filled_up_until_all_have(counting):
    _, tokens = counting([[6], [3], [4]], 9, eos=7)
    assert tokens.tolist() == [[6, 7, 7, 7, 7], [3, 4, 5, 6, 7], [4, 5, 6, 7, 7]]


def test_no_more_is_written_than_was_asked_for(counting):
    assert counting([[1, 2]], 0)[1].tolist() == [[1, 2]]
    assert counting([[1, 2]], 1)[1].tolist() == [[1, 2, 3]]


# Laws


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_cache_changes_no_token_even_past_the_context(decoder_only, tokens, positions, length):
    model, prompt = decoder_only(positions, max_len=7), tokens(13, 3, length)
    for choose in (lambda: greedy, lambda: drawing(0)):
        cached = generate(model, prompt, 11, choose())
        assert torch.equal(cached, generate(model, prompt, 11, choose(), use_cache=False))
    assert cached.shape == (3, length + 11)
    assert len(cached[:, length:].unique()) > 3


def test_a_context_of_one_token_still_writes(decoder_only, tokens):
    model, prompt = decoder_only(max_len=1), tokens(13, 2, 1)
    assert torch.equal(generate(model, prompt, 5), generate(model, prompt, 5, use_cache=False))


def test_the_first_token_is_the_models_own_choice(decoder_only, tokens):
    model, prompt = decoder_only(), tokens(13, 3, 5)
    assert torch.equal(next(stream(model, prompt)), greedy(model(prompt)[:, -1]))


def test_a_batch_mate_changes_nothing(decoder_only, tokens):
    model, prompt = decoder_only(), tokens(13, 3, 5)
    alone = torch.cat([generate(model, row[None], 7) for row in prompt])
    assert torch.equal(generate(model, prompt, 7), alone)


def test_a_seed_decides_what_is_drawn(decoder_only, tokens):
    model, prompt = decoder_only(), tokens(13, 3, 5)

    first, again, other = (generate(model, prompt, 5, drawing(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_dropout_is_off_while_writing(decoder_only, encoder_decoder, tokens):
    model, prompt = decoder_only(dropout=0.5).train(), tokens(13, 2, 3)
    assert torch.equal(generate(model, prompt, 7), generate(model.train(), prompt, 7))
    model, source = encoder_decoder(dropout=0.5).train(), tokens(17, 2, 5)
    first, second = (translate(model.train(), source, None, 1, 2) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_cache_changes_no_translation(encoder_decoder, tokens, positions):
    model, source = encoder_decoder(positions), tokens(17, 5, 7)
    mask = padding_mask(torch.tensor([7, 2, 3, 5, 1]), 7)
    for choose in (lambda: greedy, lambda: drawing(0)):
        cached = translate(model, source, mask, 1, 2, choose())
        plain = translate(model, source, mask, 1, 2, choose(), use_cache=False)
        assert torch.equal(cached, plain)
    assert len(cached.unique()) > 5


def test_a_translation_is_what_the_whole_model_would_choose_at_each_position(
    encoder_decoder, tokens
):
    model, source = encoder_decoder(), tokens(17, 3, 5)
    target = translate(model, source, None, bos=1, eos=12)
    shifted = torch.cat((torch.ones(3, 1, dtype=torch.long), target[:, :-1]), dim=1)
    chosen = greedy(model(source, shifted))
    before_end = (target == 12).cumsum(1) - (target == 12).long() == 0
    assert torch.equal(chosen[before_end], target[before_end])


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_source_is_read_once(encoder_decoder, tokens, monkeypatch, use_cache):
    model, reads = encoder_decoder(), []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda *args: reads.append(args) or encode(*args))
    target = translate(model, tokens(17, 3, 5), None, 1, eos=-1, use_cache=use_cache)
    assert target.shape == (3, 11)
    assert len(reads) == 1


@pytest.mark.parametrize("use_cache", [True, False])
def test_padding_changes_no_logit_of_a_translation(encoder_decoder, tokens, use_cache):
    model, source = encoder_decoder(), tokens(17, 3, 5)
    padded = torch.cat((source, tokens(17, 3, 2)), dim=1)

    def logits(source, mask):
        seen = []
        choose = lambda row: seen.append(row) or greedy(row)  # noqa: E731
        translate(model, source, mask, 1, -1, choose, use_cache)
        return torch.stack(seen)

    mask = padding_mask(torch.tensor([5, 5, 5]), 7)
    torch.testing.assert_close(logits(padded, mask), logits(source, None))


def test_strings_are_translated_the_same_in_batches_of_any_size(encoder_decoder):
    model = encoder_decoder()
    source = CharacterTokenizer("abcdefghijklmnop", [PAD])
    target = CharacterTokenizer("0123456789", [PAD, BOS, EOS])
    texts = ["abc", "pomegan", "k", "feed", "deaf"]
    together = translate_texts(model, texts, source, target)
    assert together == translate_texts(model, texts, source, target, batch_size=2)
    assert len(together) == 5
    assert any(together)


# Refusals


def test_a_prompt_longer_than_the_context_is_refused(decoder_only, tokens):
    with pytest.raises(ValueError, match="model's context, got 12 tokens, max_len=11"):
        generate(decoder_only(), tokens(13, 2, 12), 1)


def test_an_empty_prompt_is_refused(decoder_only, tokens):
    with pytest.raises(ValueError, match="at least 1 token, got none"):
        generate(decoder_only(), tokens(13, 2, 0), 1)


def test_a_source_longer_than_the_model_reads_is_refused(encoder_decoder, tokens):
    with pytest.raises(ValueError, match="length=8, source_max_len=7"):
        translate(encoder_decoder(), tokens(17, 2, 8), None, 1, 2)
