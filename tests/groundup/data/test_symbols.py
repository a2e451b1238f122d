import itertools

import pytest
import torch

from groundup.data.batches import (
    IGNORED,
    Batch,
    Pair,
    masked_language_model_batches,
    pair_batches,
    shard,
)
from groundup.data.symbols import anomaly_batches, induction_batches, task_batches, task_pairs
from groundup.data.tokenizers import BOS, EOS, PAD, CharacterTokenizer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def first(batches, number):
    return list(itertools.islice(batches, number))


# Copy, reverse, sort


@pytest.mark.parametrize(
    ("task", "answer"),
    [("copy", lambda row: row), ("reverse", lambda row: row[::-1]), ("sort", sorted)],
)
def test_after_the_separator_comes_the_answer_and_only_that_is_asked_for(task, answer):
    for batch in first(task_batches(task, 7, 5, 3, generator()), 11):
        assert batch.inputs["tokens"].shape == batch.targets.shape == (3, 10)
        for tokens, targets in zip(
            batch.inputs["tokens"].tolist(), batch.targets.tolist(), strict=True
        ):
            given = tokens[:5]
            assert tokens[5] == 7
            assert targets == [IGNORED] * 5 + answer(given)
            assert tokens[6:] == targets[5:-1]  # what was answered is read, one place later


def test_every_symbol_is_drawn_and_no_other():
    batch = next(task_batches("copy", 5, 3, 200, generator()))
    assert batch.inputs["tokens"][:, :3].unique().tolist() == [0, 1, 2, 3, 4]
    assert batch.targets[:, 3:].unique().tolist() == [0, 1, 2, 3, 4]


def test_words_are_pairs_for_an_encoder_decoder():
    pairs = task_pairs("reverse", "abc", 5, 200, generator())
    assert all(pair.target == pair.source[::-1] for pair in pairs)
    assert {len(pair.source) for pair in pairs} == {1, 2, 3, 4, 5}
    assert set("".join(pair.source for pair in pairs)) == set("abc")
    tokenizers = CharacterTokenizer("abc", [PAD]), CharacterTokenizer("abc", [PAD, BOS, EOS])
    assert next(pair_batches(pairs, 7, *tokenizers)).targets.shape[0] == 7


def test_letters_are_sorted_by_their_places_in_the_alphabet_given():
    pairs = task_pairs("sort", "zyx", 7, 50, generator())
    assert all(list(pair.target) == sorted(pair.source, reverse=True) for pair in pairs)
    assert task_pairs("copy", "z", 1, 2, generator()) == [Pair("z", "z")] * 2


# Induction


def test_what_followed_a_symbol_last_time_follows_it_again():
    num_counted = 0
    for batch in first(induction_batches(7, 13, 5, generator()), 20):
        assert batch.inputs["tokens"].shape == batch.targets.shape == (5, 13)
        for tokens, targets in zip(
            batch.inputs["tokens"].tolist(), batch.targets.tolist(), strict=True
        ):
            for place, (token, target) in enumerate(zip(tokens, targets, strict=True)):
                before = [i for i in range(place) if tokens[i] == token]
                assert bool(before) == (target != IGNORED)  # asked for exactly where it is known
                if before:
                    assert {tokens[i + 1] for i in before} == {target}
                    num_counted += 1
    assert num_counted > 20 * 5 * 13 / 2


def test_rounds_have_every_length_from_two_to_half_the_row():
    batches = first(induction_batches(31, 11, 7, generator()), 20)
    rounds = torch.cat([(batch.targets == IGNORED).sum(dim=1) for batch in batches])
    assert rounds.unique().tolist() == [2, 3, 4, 5]
    batches = first(induction_batches(3, 11, 7, generator()), 20)
    rounds = torch.cat([(batch.targets == IGNORED).sum(dim=1) for batch in batches])
    assert rounds.unique().tolist() == [2, 3]


def test_every_symbol_takes_part_in_induction():
    batch = next(induction_batches(5, 7, 100, generator()))
    assert batch.inputs["tokens"].unique().tolist() == [0, 1, 2, 3, 4]


# Set anomaly


def test_exactly_one_token_of_a_set_is_of_another_kind_and_is_pointed_at():
    for batch in first(anomaly_batches(3, 11, 5, 7, generator()), 20):
        tokens, targets = batch.inputs["tokens"], batch.targets
        assert tokens.shape == targets.shape == (7, 5)
        assert (targets.sum(dim=1) == 1).all()
        for row, target in zip((tokens // 11).tolist(), targets.tolist(), strict=True):
            (odd,) = [place for place in range(5) if row.count(row[place]) == 1]
            assert target.index(1) == odd
            assert len(set(row)) == 2


def test_sets_hold_no_token_twice_and_leave_no_token_out():
    tokens = next(anomaly_batches(3, 7, 7, 200, generator())).inputs["tokens"]
    assert all(len(set(row)) == 7 for row in tokens.tolist())
    assert tokens.unique().tolist() == list(range(21))


def test_the_odd_one_stands_anywhere():
    batch = next(anomaly_batches(5, 13, 11, 300, generator()))
    assert batch.targets.argmax(dim=1).unique().tolist() == list(range(11))


# Masked tokens


def masked_batches(share=0.15, length=20, mask_id=3, batch_size=50):
    tokens = torch.arange(1000) % 13 + 4  # 4 to 16
    arguments = (tokens, batch_size, length, generator(), mask_id, 23, share)
    return masked_language_model_batches(*arguments)


def test_hidden_tokens_are_asked_for_and_nothing_else_is_touched():
    for batch in first(masked_batches(), 5):
        tokens, targets = batch.inputs["tokens"], batch.targets
        chosen = targets != IGNORED
        assert (chosen.sum(dim=1) == 3).all()  # 15 % of 20
        original = torch.where(chosen, targets, tokens)
        assert torch.equal(original, (original[:, :1] - 4 + torch.arange(20)) % 13 + 4)


def test_of_the_chosen_8_in_10_are_masked_1_is_another_and_1_stays():
    batches = first(masked_batches(batch_size=1000), 3)
    tokens = torch.cat([batch.inputs["tokens"] for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    chosen = targets != IGNORED
    num_chosen = int(chosen.sum())
    assert num_chosen == 9000
    masked = (tokens[chosen] == 3).sum() / num_chosen
    same = (tokens[chosen] == targets[chosen]).sum() / num_chosen
    # Bounds of four standard errors; another token is by chance the same once in 22.
    assert abs(masked - 0.8) < 4 * (0.8 * 0.2 / num_chosen) ** 0.5
    assert abs(same - (0.1 + 0.1 / 22)) < 4 * (0.105 * 0.895 / num_chosen) ** 0.5
    other = (tokens[chosen] != 3) & (tokens[chosen] != targets[chosen])
    assert tokens[chosen][other].unique().tolist() == [i for i in range(23) if i != 3]
    places = chosen.sum(dim=0)
    assert places.min() > 0.75 * places.float().mean()  # every place is chosen alike


@pytest.mark.parametrize(("share", "number"), [(0.01, 1), (0.5, 10), (1.0, 20)])
def test_a_window_has_as_many_targets_as_its_share_and_at_least_one(share, number):
    batch = next(masked_batches(share))
    assert ((batch.targets != IGNORED).sum(dim=1) == number).all()


def test_a_window_may_be_the_whole_text():
    text = torch.arange(7)
    batch = next(masked_language_model_batches(text, 2, 7, generator(), 7, 8, 1.0))
    assert torch.equal(batch.targets, text.expand(2, 7))


# What all of them share


MAKERS = [
    lambda state: task_batches("sort", 7, 5, 3, state),
    lambda state: induction_batches(7, 5, 3, state),
    lambda state: anomaly_batches(3, 7, 5, 2, state),
    lambda state: masked_language_model_batches(torch.arange(50), 3, 7, state, 50, 51),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_seed_decides_and_the_state_of_the_generator_says_what_comes_next(make):
    state = generator(3)
    batches = make(state)
    assert torch.equal(next(batches).inputs["tokens"], next(make(generator(3))).inputs["tokens"])
    again = generator()
    again.set_state(state.get_state())
    expected, got, other = next(batches), next(make(again)), next(make(generator(4)))
    assert torch.equal(expected.targets, got.targets)
    assert torch.equal(expected.inputs["tokens"], got.inputs["tokens"])
    assert not torch.equal(expected.inputs["tokens"], other.inputs["tokens"])


# Shards


def numbered(batch_size, number):
    for i in range(number):
        tokens = torch.arange(batch_size * 3).reshape(batch_size, 3) + 100 * i
        yield Batch({"tokens": tokens, "mask": tokens > 7}, tokens + 1)


def test_the_processes_together_see_what_one_would_have_seen():
    shards = [list(shard(numbered(6, 2), rank, 3)) for rank in range(3)]
    for whole, *parts in zip(numbered(6, 2), *shards, strict=True):
        assert [len(part.targets) for part in parts] == [2, 2, 2]
        for name in ("tokens", "mask"):
            joined = torch.cat([part.inputs[name] for part in parts])
            assert joined.sum(dim=0).equal(whole.inputs[name].sum(dim=0))
        rows = torch.cat([part.inputs["tokens"] for part in parts])
        assert rows.sort(dim=0).values.equal(whole.inputs["tokens"])
        for part in parts:
            assert torch.equal(part.targets, part.inputs["tokens"] + 1)


def test_a_process_gets_every_so_manieth_row():
    (batch,) = shard(numbered(4, 1), 1, 2)
    assert batch.inputs["tokens"].tolist() == [[3, 4, 5], [9, 10, 11]]


def test_a_single_process_gets_everything():
    (batch,) = shard(numbered(5, 1), 0, 1)
    assert torch.equal(batch.targets, next(numbered(5, 1)).targets)


# Refusals


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 3), (0, 0)])
def test_a_process_that_is_not_there_is_refused(rank, world_size):
    with pytest.raises(ValueError, match=f"got rank={rank}, world_size={world_size}"):
        shard([], rank, world_size)


def test_a_batch_that_cannot_be_dealt_out_evenly_is_refused():
    with pytest.raises(ValueError, match="multiple of world_size, got 5 rows, world_size=2"):
        next(shard(numbered(5, 1), 1, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g: task_batches("add", 7, 5, 3, g), "copy reverse sort, got 'add'"),
        (lambda g: task_batches("copy", 0, 5, 3, g), "at least 1, got num_symbols=0"),
        (lambda g: task_batches("copy", 7, 0, 3, g), "at least 1, got length=0"),
        (lambda g: task_batches("copy", 7, 5, 0, g), "at least 1, got batch_size=0"),
        (lambda g: task_pairs("add", "ab", 5, 3, g), "copy reverse sort, got 'add'"),
        (lambda g: task_pairs("copy", "ab", 0, 3, g), "at least 1, got max_len=0"),
        (lambda g: task_pairs("copy", "", 5, 3, g), "non-empty and all different, got ''"),
        (lambda g: task_pairs("copy", "aba", 5, 3, g), "non-empty and all different, got 'aba'"),
        (lambda g: induction_batches(1, 5, 3, g), "at least 2, got num_symbols=1"),
        (lambda g: induction_batches(7, 3, 3, g), "at least 4, got length=3"),
        (lambda g: induction_batches(7, 5, 0, g), "at least 1, got batch_size=0"),
        (lambda g: anomaly_batches(1, 7, 5, 3, g), "at least 2, got num_kinds=1"),
        (lambda g: anomaly_batches(3, 7, 2, 3, g), "at least 3, got length=2"),
        (lambda g: anomaly_batches(3, 7, 5, 0, g), "at least 1, got batch_size=0"),
        (lambda g: anomaly_batches(3, 4, 5, 2, g), "got num_members=4, length=5"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_at_once(unchecked, make, message):
    with pytest.raises(ValueError, match=message):
        make(generator())


@pytest.mark.parametrize(
    ("length", "mask_id", "vocab_size", "share", "message"),
    [
        (8, 7, 9, 0.15, "got 7 tokens, length=8"),
        (0, 7, 9, 0.15, "at least 1, got length=0"),
        (5, 7, 9, 0.0, "above 0 and at most 1, got share=0"),
        (5, 7, 9, 1.5, "above 0 and at most 1, got share=1.5"),
        (5, 9, 9, 0.15, "one of at least 2 tokens, got mask_id=9, vocab_size=9"),
        (5, -1, 9, 0.15, "got mask_id=-1, vocab_size=9"),
        (5, 0, 1, 0.15, "got mask_id=0, vocab_size=1"),
    ],
)
def test_masking_that_makes_no_sense_is_refused_at_once(
    length, mask_id, vocab_size, share, message
):
    arguments = (torch.arange(7), 2, length, generator(), mask_id, vocab_size, share)
    with pytest.raises(ValueError, match=message):
        masked_language_model_batches(*arguments)
