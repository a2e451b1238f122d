import itertools
import os
import subprocess
import sys

import pytest
import torch

from groundup import presets
from groundup.core.masks import padding_mask
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.data.batches import prompt_batch
from groundup.data.tokenizers import BOS, EOS, PAD, CharacterTokenizer
from groundup.generation.loop import (
    generate,
    generate_beams,
    length_penalty,
    stream,
    translate,
    translate_beams,
    translate_texts,
)
from groundup.generation.sampling import greedy, sample

# Sizes: vocabulary 13 (source 17), d_model 12, 3 heads, context 11 (source 7).

SMALL = {"vocab_size": 13, "max_len": 11, "d_model": 12, "num_heads": 3, "d_ff": 5}
POSITIONS = ["sinusoidal", "learned", "rotary"]


@pytest.fixture
def decoder_only(shaken):
    def build(positions="rotary", **overrides):
        config = presets.decoder_only("tiny", **SMALL | {"positions": positions} | overrides)
        return shaken(DecoderOnly(config, torch.Generator().manual_seed(0)))

    return build


@pytest.fixture
def encoder_decoder(shaken):
    def build(positions="sinusoidal", **overrides):
        sizes = SMALL | {"source_vocab_size": 17, "source_max_len": 7, "positions": positions}
        config = presets.encoder_decoder("tiny", **sizes | overrides)
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
        self.config = presets.decoder_only("tiny", vocab_size=vocab_size, max_len=max_len)
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
        return model, generate(model, torch.tensor(prompt), number, eos=eos, cache=None)

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


@pytest.mark.slow
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_cache_changes_no_token_even_past_the_context(decoder_only, tokens, positions, length):
    model, prompt = decoder_only(positions, max_len=7), tokens(13, 3, length)
    for choose in (lambda: greedy, lambda: drawing(0)):
        cached = generate(model, prompt, 11, choose())
        assert torch.equal(cached, generate(model, prompt, 11, choose(), cache="static"))
        assert torch.equal(cached, generate(model, prompt, 11, choose(), cache=None))
    assert cached.shape == (3, length + 11)
    assert len(cached[:, length:].unique()) > 3


def test_a_context_of_one_token_still_writes(decoder_only, tokens):
    model, prompt = decoder_only(max_len=1), tokens(13, 2, 1)
    assert torch.equal(generate(model, prompt, 5), generate(model, prompt, 5, cache=None))


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


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("cache", ["growing", "static", None])
@pytest.mark.parametrize("positions", [*POSITIONS, "alibi", "none"])
def test_prompts_of_several_lengths_are_continued_as_if_each_were_alone(
    decoder_only, tokens, positions, cache, window
):
    model, lengths = decoder_only(positions, window=window), torch.tensor([4, 6, 1])
    prompt = tokens(13, 3, 6)
    together = generate(model, prompt, 5, cache=cache, lengths=lengths)[:, 6:]
    for row, length in enumerate(lengths.tolist()):
        alone = generate(model, prompt[row : row + 1, 6 - length :], 5, cache=cache)
        assert torch.equal(together[row], alone[0, length:])


def test_prompts_come_padded_from_their_texts(decoder_only):
    model, tokenizer = decoder_only(), CharacterTokenizer("abcdefghijkl", [PAD])
    prompt, lengths = prompt_batch(["abc", "k", "feed"], tokenizer)
    together = generate(model, prompt, 5, lengths=lengths)[:, prompt.shape[1] :]
    for row, text in enumerate(["abc", "k", "feed"]):
        alone = generate(model, torch.tensor([tokenizer.encode(text)]), 5)
        assert torch.equal(together[row], alone[0, len(text) :])


def test_a_full_context_of_padded_prompts_keeps_the_newer_half(decoder_only, tokens):
    """With places counted anew; what is left of the padding stays unseen."""
    model, prompt = decoder_only(max_len=7), tokens(13, 2, 6)
    lengths = torch.tensor([1, 6])
    for cache in ("growing", "static"):
        cut = generate(model, prompt, 5, cache=cache, lengths=lengths)
        assert torch.equal(cut, generate(model, prompt, 5, cache=None, lengths=lengths))
    after_the_cut = generate(model, cut[1:, 4:8], 1)
    assert cut[1, 8] == after_the_cut[0, -1]


def log_probability(model, prompt, continuation):
    logits = model(torch.cat((prompt, continuation))[None])[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, continuation[:, None]).sum()


def every_answer(vocab_size, eos, longest):
    for length in range(1, longest + 1):
        for answer in itertools.product(range(vocab_size), repeat=length):
            if eos not in answer[:-1] and (answer[-1] == eos or length == longest):
                yield torch.tensor(answer)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("cache", ["growing", "static", None])
def test_a_search_wide_enough_is_exhaustive(shaken, tokens, alpha, cache):
    """Five tokens, three steps: 4 + 16 ways to go on, so 20 beams lose none."""
    config = presets.decoder_only(
        "tiny", vocab_size=5, max_len=7, d_model=12, num_layers=2, num_heads=3, d_ff=13
    )
    model = shaken(DecoderOnly(config, torch.Generator().manual_seed(0))).eval()
    prompt = tokens(5, 2, 4)
    found = generate_beams(model, prompt, 3, num_beams=20, eos=2, alpha=alpha, cache=cache)
    for row in range(2):
        scored = [
            (log_probability(model, prompt[row], answer) / length_penalty(len(answer), alpha))
            for answer in every_answer(5, 2, 3)
        ]
        best = torch.stack(scored).sort(descending=True)
        answers = list(every_answer(5, 2, 3))
        torch.testing.assert_close(found.scores[row], best.values[:20].float())
        for rank in range(20):
            answer = answers[best.indices[rank]]
            filled = torch.nn.functional.pad(answer, (0, 3 - len(answer)), value=2)
            assert torch.equal(found.tokens[row, rank], filled)


def test_one_beam_is_greedy(decoder_only, encoder_decoder, tokens):
    model, prompt = decoder_only(), tokens(13, 3, 4)
    found = generate_beams(model, prompt, 6, num_beams=1)
    assert torch.equal(found.tokens[:, 0], generate(model, prompt, 6)[:, 4:])
    translator, source = encoder_decoder(), tokens(17, 3, 5)
    mask = padding_mask(torch.tensor([5, 2, 3]), 5)
    found = translate_beams(translator, source, mask, 1, -1, num_beams=1)
    assert torch.equal(found.tokens[:, 0], translate(translator, source, mask, 1, -1))


def test_more_beams_find_better_answers_and_batch_mates_change_none(encoder_decoder, tokens):
    model, source = encoder_decoder(), tokens(17, 3, 5)
    mask = padding_mask(torch.tensor([5, 2, 3]), 5)
    narrow = translate_beams(model, source, mask, 1, 12, num_beams=1, alpha=0.0)
    wide = translate_beams(model, source, mask, 1, 12, num_beams=7, alpha=0.0)
    assert (wide.scores[:, 0] >= narrow.scores[:, 0] - 1e-6).all()
    assert (wide.scores[:, :-1] >= wide.scores[:, 1:]).all()
    for row, length in enumerate([5, 2, 3]):
        alone = translate_beams(model, source[row : row + 1, :length], None, 1, 12, 7, alpha=0.0)
        assert torch.equal(alone.tokens[0], wide.tokens[row])


def test_the_score_is_that_of_the_whole_model(encoder_decoder, tokens):
    model, source = encoder_decoder(), tokens(17, 1, 5)
    found = translate_beams(model, source, None, 1, 12, num_beams=3, alpha=0.6)
    for answer, score in zip(found.tokens[0], found.scores[0], strict=True):
        ends = (answer == 12).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(answer)
        shifted = torch.cat((torch.ones(1, dtype=torch.long), answer[: length - 1]))
        logits = model(source, shifted[None])[0].log_softmax(-1)
        total = logits.gather(1, answer[:length, None]).sum() / length_penalty(length, 0.6)
        torch.testing.assert_close(score, total.float())


def test_the_length_penalty_by_hand():
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 1.0) == 2
    assert length_penalty(7, 0.0) == 1


def test_a_search_translates_strings(encoder_decoder):
    model = encoder_decoder()
    source = CharacterTokenizer("abcdefghijklmnop", [PAD])
    target = CharacterTokenizer("0123456789", [PAD, BOS, EOS])
    texts = ["abc", "pomegan", "k"]
    found = translate_texts(model, texts, source, target, num_beams=3, batch_size=2)
    assert found == translate_texts(model, texts, source, target, num_beams=3)


@pytest.mark.slow
def test_a_compiled_step_writes_the_same_and_is_compiled_once(tmp_path):
    """In a process of its own: the type checker of the tests and the compiler do not mix."""
    program = """
import torch
from groundup import presets
from groundup.generation.loop import generate
from groundup.core.models import DecoderOnly

config = presets.decoder_only("llama", vocab_size=19, max_len=23, d_model=16, num_layers=2, d_ff=13)
model = DecoderOnly(config, torch.Generator().manual_seed(0)).eval()
graphs = []
def count(graph, inputs):
    graphs.append(graph)
    return graph.forward
prompt = torch.arange(10).view(2, 5)
step = torch.compile(model, fullgraph=True, backend=count)
compiled = generate(model, prompt, 13, cache="static", step=step)
assert torch.equal(compiled, generate(model, prompt, 13)), "other tokens"
assert len(graphs) == 1, f"{len(graphs)} graphs"
padded = generate(model, prompt, 13, cache="static", lengths=torch.tensor([5, 2]), step=step)
assert torch.equal(padded, generate(model, prompt, 13, lengths=torch.tensor([5, 2])))
"""
    environment = os.environ | {"JAXTYPING_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# Refusals


def test_a_search_that_cannot_begin_is_refused(decoder_only, encoder_decoder, tokens):
    with pytest.raises(ValueError, match="num_beams must be at least 1, got num_beams=0"):
        generate_beams(decoder_only(), tokens(13, 2, 4), 3, num_beams=0)
    with pytest.raises(ValueError, match="num_beams must be at least 1, got num_beams=0"):
        translate_beams(encoder_decoder(), tokens(17, 2, 4), None, 1, 2, num_beams=0)
    with pytest.raises(ValueError, match="got 4 . 8 tokens, max_len=11"):
        generate_beams(decoder_only(), tokens(13, 2, 4), 8, num_beams=3)


def test_lengths_that_cannot_be_are_refused(decoder_only, tokens):
    with pytest.raises(ValueError, match="at least 1 token, got none"):
        generate(decoder_only(), tokens(13, 2, 4), 1, lengths=torch.tensor([4, 0]))
    with pytest.raises(ValueError, match="lengths must not exceed .*, got 5 of 4"):
        generate(decoder_only(), tokens(13, 2, 4), 1, lengths=torch.tensor([4, 5]))
    with pytest.raises(ValueError, match="max_len must be .*, got max_len=12, the model's .*=11"):
        generate(decoder_only(), tokens(13, 2, 4), 1, max_len=12)


def test_a_prompt_longer_than_the_context_is_refused(decoder_only, tokens):
    with pytest.raises(ValueError, match="model's context, got 12 tokens, max_len=11"):
        generate(decoder_only(), tokens(13, 2, 12), 1)


def test_an_empty_prompt_is_refused(decoder_only, tokens):
    with pytest.raises(ValueError, match="at least 1 token, got none"):
        generate(decoder_only(), tokens(13, 2, 0), 1)


def test_a_source_longer_than_the_model_reads_is_refused(encoder_decoder, tokens):
    with pytest.raises(ValueError, match="length=8, source_max_len=7"):
        translate(encoder_decoder(), tokens(17, 2, 8), None, 1, 2)
