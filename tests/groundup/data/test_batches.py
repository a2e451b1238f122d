import datetime
import itertools
import platform
import re
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics as topics_of_python

import pytest
import torch

from groundup.data.batches import (
    IGNORED,
    Pair,
    covering_windows,
    language_model_batches,
    pair_batches,
    prompt_batch,
    source_batch,
)
from groundup.data.dates import Dates
from groundup.data.texts import (
    MIN_TEXT_LENGTH,
    python_reference,
    python_source,
    split_text,
    text_file,
)
from groundup.data.tokenizers import (
    BOS,
    EOS,
    PAD,
    BytePairTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def dates():
    return Dates()


@pytest.fixture
def tokenizers():
    return CharacterTokenizer("abc", [PAD]), CharacterTokenizer("xyz", [PAD, BOS, EOS])


# Texts, by hand


def test_the_last_tenth_of_a_text_is_held_out():
    parts = split_text("digits", "0123456789" * 3)
    assert (parts.train, parts.validation) == ("0123456789" * 2 + "0123456", "789")


def test_a_file_is_read_as_utf_8(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Grüße aus Köln\n" * 3, encoding="utf-8")
    parts = text_file(path)
    assert parts.train + parts.validation == "Grüße aus Köln\n" * 3
    assert parts.name == str(path)


def test_the_reference_says_its_version_and_repeats_no_paragraph():
    parts = python_reference()
    assert parts.name == "python-reference of Python 3.11.7"
    paragraphs = (parts.train + parts.validation).split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs)


def test_the_source_of_the_standard_library_says_its_version():
    assert python_source().name == "python-source of Python 3.11.7"


def test_the_texts_of_python_are_those_that_every_python_of_their_version_has():
    topics = "\n\n".join(text.strip("\n") for text in topics_of_python.values())
    folder = Path(sysconfig.get_path("stdlib"))
    source = "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    for parts, here, lengths in [
        (python_reference(), "\n\n".join(dict.fromkeys(re.split(r"\n{2,}", topics))), 373_215),
        (python_source(), source, 4_698_447),
    ]:
        text = parts.train + parts.validation
        assert len(text) == lengths
        if parts.name.endswith(f" {platform.python_version()}"):
            assert text == here
        shared = set(text.split("\n")) & set(here.split("\n"))
        assert len(shared) > 0.5 * len(set(text.split("\n")))


# Batches of texts, by hand


def test_targets_are_the_tokens_that_come_next():
    batch = next(language_model_batches(torch.arange(100, 111), 3, 5, generator()))
    starts = batch.inputs["tokens"][:, :1]
    assert torch.equal(batch.inputs["tokens"], starts + torch.arange(5))
    assert torch.equal(batch.targets, starts + 1 + torch.arange(5))


def test_windows_that_cover_a_text_overlap_by_half_and_count_nothing_twice():
    first, second = covering_windows(torch.arange(10), batch_size=2, length=4)
    assert first.inputs["tokens"].tolist() == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert first.targets.tolist() == [[1, 2, 3, 4], [IGNORED, IGNORED, 5, 6]]
    assert second.inputs["tokens"].tolist() == [[4, 5, 6, 7], [5, 6, 7, 8]]
    assert second.targets.tolist() == [[IGNORED, IGNORED, 7, 8], [*[IGNORED] * 3, 9]]


# Batches of texts, laws


@pytest.mark.parametrize("total", [2, 3, 5, 11, 12, 13, 31])
@pytest.mark.parametrize("length", [2, 3, 4, 7])
def test_every_token_but_the_first_is_predicted_once_from_the_token_before(total, length):
    tokens = torch.arange(total)
    seen = []
    for batch in covering_windows(tokens, batch_size=2, length=length):
        counted = batch.targets != IGNORED
        assert torch.equal(batch.inputs["tokens"][counted] + 1, batch.targets[counted])
        seen += batch.targets[counted].tolist()
    assert sorted(seen) == list(range(1, total))


def test_after_the_first_window_half_a_window_of_context_is_seen():
    for batch in covering_windows(torch.arange(100), batch_size=100, length=8):
        assert (batch.targets[1:, :4] == IGNORED).all()


def test_every_place_of_a_text_is_drawn_and_no_other():
    batches = language_model_batches(torch.arange(7), 5, 3, generator())
    starts = torch.cat([b.inputs["tokens"][:, 0] for b in itertools.islice(batches, 40)])
    assert starts.unique().tolist() == [0, 1, 2, 3]


def test_the_state_of_the_generator_says_what_comes_next():
    tokens, state = torch.arange(50), generator(3)
    batches = language_model_batches(tokens, 2, 5, state)
    next(batches)
    again = generator()
    again.set_state(state.get_state())
    expected, got = next(batches), next(language_model_batches(tokens, 2, 5, again))
    assert torch.equal(expected.targets, got.targets)


# Pairs, by hand


def test_pairs_are_padded_and_targets_shifted_right(tokenizers):
    (batch,) = pair_batches([Pair("ab", "z"), Pair("cba", "xy")], 5, *tokenizers)
    assert batch.inputs["source"].tolist() == [[1, 2, 0], [3, 2, 1]]
    assert batch.inputs["source_mask"].tolist() == [[[[True, True, False]]], [[[True] * 3]]]
    assert batch.inputs["target"].tolist() == [[1, 5, 0], [1, 3, 4]]
    assert batch.targets.tolist() == [[5, 2, IGNORED], [3, 4, 2]]


def test_the_last_batch_holds_what_is_left(tokenizers):
    pairs = [Pair("a", "x")] * 5
    assert [len(batch.targets) for batch in pair_batches(pairs, 2, *tokenizers)] == [2, 2, 1]


def test_batches_are_taken_one_at_a_time_from_pairs_without_end(tokenizers):
    batches = pair_batches(itertools.repeat(Pair("abc", "zy")), 3, *tokenizers)
    assert next(batches).targets.shape == (3, 3)


def test_a_batch_moves_to_a_device_as_a_whole(tokenizers):
    (batch,) = pair_batches([Pair("ab", "z")], 1, *tokenizers)
    moved = batch.to("meta")
    assert {t.device.type for t in [*moved.inputs.values(), moved.targets]} == {"meta"}
    assert moved.inputs.keys() == batch.inputs.keys()


@pytest.mark.parametrize(
    ("device", "is_pinned"), [("cpu", False), ("meta", False), ("cuda:0", True)]
)
def test_only_on_its_way_to_a_gpu_is_a_batch_pinned_and_not_waited_for(
    tokenizers, monkeypatch, device, is_pinned
):
    (batch,) = pair_batches([Pair("ab", "z")], 1, *tokenizers)
    pinned, copies = [], []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda x, *where, **how: copies.append((*where, how)) or x
    )
    batch.to(device)
    parts = [*batch.inputs.values(), batch.targets]
    assert [id(x) for x in pinned] == [id(x) for x in parts if is_pinned]
    assert copies == [(device, {"non_blocking": is_pinned})] * len(parts)


@pytest.mark.gpu
def test_a_batch_arrives_on_a_gpu_before_it_is_read(tokenizers):
    (batch,) = pair_batches([Pair("ab", "z"), Pair("b", "zyx")], 2, *tokenizers)
    moved = batch.to("cuda")
    assert torch.equal(moved.targets.cpu(), batch.targets)
    assert all(torch.equal(moved.inputs[name].cpu(), x) for name, x in batch.inputs.items())


def test_pairs_may_be_written_in_bytes_or_byte_pairs():
    target = BytePairTokenizer.fit("xyxyxy", 260, [PAD, BOS, EOS])
    (batch,) = pair_batches([Pair("aé", "xy")], 3, ByteTokenizer([PAD]), target)
    assert batch.inputs["source"].tolist() == [[97, 0xC3, 0xA9]]
    bos, eos = target.id_of(BOS), target.id_of(EOS)
    assert batch.inputs["target"][0].tolist() == [bos, *target.encode("xy")]
    assert batch.targets[0].tolist() == [*target.encode("xy"), eos]


# Prompts, by hand


def test_prompts_are_filled_up_on_the_left_and_end_together(tokenizers):
    tokens, lengths = prompt_batch(["ab", "c", "cba"], tokenizers[0])
    assert tokens.tolist() == [[0, 1, 2], [0, 0, 3], [3, 2, 1]]
    assert lengths.tolist() == [2, 1, 3]


def test_the_filler_is_the_pad_token_or_else_the_first():
    tokens, lengths = prompt_batch(["A", "AB"], ByteTokenizer([EOS, PAD]))
    assert tokens.tolist() == [[257, 65], [65, 66]]
    tokens, lengths = prompt_batch(["A", "AB"], ByteTokenizer())
    assert tokens.tolist() == [[0, 65], [65, 66]]
    assert lengths.tolist() == [1, 2]


# Dates, by hand


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (("de", "EEEE, d. MMMM y"), "Samstag, 3. Mai 2031"),
        (("en_US", "MMM d, y"), "May 3, 2031"),
        (("zh", "y年M月d日EEEE"), "2031年5月3日星期六"),
        (("fr", "dd/MM/y"), "03/05/2031"),
    ],
)
def test_a_day_is_written_as_people_do(dates, form, written):
    assert form in dates.forms
    assert dates.write(datetime.date(2031, 5, 3), form) == Pair(written, "2031-05-03")


def test_listopada_is_october_in_croatian_and_november_in_polish(dates):
    croatian = dates.write(datetime.date(2031, 10, 3), ("hr", "d. MMMM y."))
    polish = dates.write(datetime.date(2031, 11, 3), ("pl", "d MMMM y"))
    assert croatian == Pair("3. listopada 2031.", "2031-10-03")
    assert polish == Pair("3 listopada 2031", "2031-11-03")


def test_there_are_24_locales_and_each_has_at_least_three_forms(dates):
    locales = [locale for locale, _ in dates.forms]
    assert set(locales) == set(dates.LOCALES)
    assert len(dates.LOCALES) == 24
    assert min(locales.count(locale) for locale in dates.LOCALES) >= 3
    assert dates.name.startswith("dates in 24 locales of Babel ")


@pytest.mark.parametrize(
    ("form", "style"),
    [
        (("de", "EEEE, d. MMMM y"), "full"),
        (("en_US", "MMMM d, y"), "long"),
        (("en_US", "MMM d, y"), "medium"),
        (("fr", "dd/MM/y"), "short"),
        (("fi", "d.M.y"), "medium"),  # its short form is the same
    ],
)
def test_a_form_has_the_name_that_cldr_gives_it(dates, form, style):
    assert dates.style_of[form] == style


# Dates, laws


def test_every_form_has_a_style_and_no_locale_has_a_style_twice(dates):
    assert list(dates.style_of) == dates.forms
    assert set(dates.style_of.values()) == set(dates.STYLES)
    styles = [(locale, dates.style_of[locale, pattern]) for locale, pattern in dates.forms]
    assert len(styles) == len(set(styles))


def test_what_is_chosen_is_what_is_drawn(dates):
    choices = dates.choose(11, generator(5), dates.validation_days)
    pairs = dates.draw(11, generator(5), dates.validation_days)
    assert [dates.write(day, form) for day, form in choices] == pairs


def test_no_two_days_are_written_the_same_way(dates):
    # Days and months that could change places, years that could lose their century.
    swaps = itertools.product([1903, 2003, 2010], range(1, 13), [1, 2, 3, 10, 11, 12])
    written = {}
    for ymd, form in itertools.product(swaps, dates.forms):
        pair = dates.write(datetime.date(*ymd), form)
        assert written.setdefault(pair.source, pair.target) == pair.target


def test_every_day_is_either_learned_from_or_held_out(dates):
    train, validation = set(dates.train_days), set(dates.validation_days)
    assert not train & validation
    assert len(train) + len(validation) == len(train | validation) == 73_049
    assert len(validation) == 7_304
    assert (min(train | validation), max(train | validation)) == (dates.FIRST_DAY, dates.LAST_DAY)


def test_the_same_days_are_held_out_every_time(dates):
    assert Dates().validation_days == dates.validation_days
    assert dates.validation_days[:2] == [
        datetime.date(2075, 2, 13),
        datetime.date(1938, 8, 14),
    ]


def test_what_is_held_out_is_never_drawn_for_learning(dates):
    held_out = {day.isoformat() for day in dates.validation_days}
    pairs = dates.draw(1000, generator(), dates.train_days)
    assert not held_out & {pair.target for pair in pairs}
    pairs = dates.draw(300, generator(), dates.validation_days)
    assert {pair.target for pair in pairs} <= held_out


def test_a_seed_decides_the_draws_and_they_hardly_repeat(dates):
    pairs = dates.draw(1000, generator(1), dates.train_days)
    assert pairs == dates.draw(1000, generator(1), dates.train_days)
    assert pairs[:50] != dates.draw(50, generator(2), dates.train_days)
    assert len({pair.source for pair in pairs}) > 990


def test_the_tokenizers_can_write_every_date(dates):
    source, target = dates.tokenizers()
    for day in range(0, 73_049, 397):
        for form in dates.forms[day % 5 :: 5]:
            pair = dates.write(dates.FIRST_DAY + datetime.timedelta(day), form)
            assert source.decode(source.encode(pair.source)) == pair.source
            assert target.decode(target.encode(pair.target)) == pair.target


# Refusals


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"readable file, got .*none\.txt: No such file"):
        text_file(tmp_path / "none.txt")


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="readable file, got .*: Is a directory"):
        text_file(tmp_path)


@pytest.mark.parametrize("content", ["", " \n\t \n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "empty.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"got an empty file: .*empty\.txt"):
        text_file(path)


def test_a_file_in_another_encoding_is_refused_with_the_place(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(ValueError, match=r"UTF-8, got an invalid byte at offset 2 of .*latin\.txt"):
        text_file(path)


def test_a_text_too_short_to_split_is_refused():
    with pytest.raises(ValueError, match="at least 20 characters, got 19 in short"):
        split_text("short", "x" * 19)
    assert MIN_TEXT_LENGTH == 20


def test_a_text_shorter_than_a_window_is_refused():
    with pytest.raises(ValueError, match="longer than the windows .* got 5 tokens, length=5"):
        language_model_batches(torch.arange(5), 2, 5, generator())


@pytest.mark.parametrize(("total", "length"), [(1, 4), (5, 1)])
def test_windows_with_nothing_to_predict_are_refused(total, length):
    with pytest.raises(ValueError, match=f"got {total} tokens, length={length}"):
        next(covering_windows(torch.arange(total), 2, length))


def test_an_empty_source_is_refused(tokenizers):
    with pytest.raises(ValueError, match="at least 1 character, got an empty one"):
        source_batch(["ab", ""], tokenizers[0])


def test_a_prompt_without_a_token_is_refused(tokenizers):
    with pytest.raises(ValueError, match="at least one token, got none in prompt 1"):
        prompt_batch(["ab", "", "c"], tokenizers[0])
    with pytest.raises(ValueError, match="at least one prompt, got none"):
        prompt_batch([], tokenizers[0])
