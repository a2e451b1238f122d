import json
import random
from collections import Counter
from itertools import pairwise
from pydoc_data.topics import topics

import pytest
import tokenizers as huggingface
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from groundup.data import tokenizers
from groundup.data.texts import python_reference
from groundup.data.tokenizers import (
    BOS,
    EOS,
    MASK,
    PAD,
    UNKNOWN,
    BytePairTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    PublishedTokenizer,
    Tokenizer,
)

TEXT = "\n".join(topics[topic] for topic in ("if", "while", "with"))


@pytest.fixture(scope="module")
def byte_pair():
    return BytePairTokenizer.fit(TEXT, 500, [PAD, BOS, EOS])


def by_the_library(text, vocab_size, special_tokens=()):
    """Train the tokenizer of the `tokenizers` library, which has special tokens first."""
    model = huggingface.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    choices = {"special_tokens": list(special_tokens), "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **choices)
    model.train_from_iterator([text], trainer)
    return model


@pytest.fixture(scope="module")
def published():
    """A `tokenizer.json` in the manner of GPT-2's and Qwen's, with special tokens at its end."""
    model = by_the_library(TEXT, 497)
    model.add_special_tokens([PAD, BOS, EOS])
    return PublishedTokenizer(model.to_str())


@pytest.fixture(params=["character", "byte", "byte-pair", "published"])
def any_kind(request, byte_pair, published):
    kinds = {"character": CharacterTokenizer.fit(TEXT, [PAD, BOS, EOS])}
    kinds |= {"byte": ByteTokenizer([PAD, BOS, EOS]), "byte-pair": byte_pair}
    return (kinds | {"published": published})[request.param]


def random_texts(number, seed=0):
    """Strings of any code points, with those that tokenizers stumble over among them."""
    tricky = [
        "\0",
        "\r\n",
        "\r",
        "\n\n",
        " ",
        "   ",
        "\t",
        "\u0085",
        "\u2028",
        "\xa0",
        "\xad",
        "Ġ",
        "Ċ",
    ]
    tricky += [
        "e\u0301",
        "\u0301",
        "\u200d",
        "👩\u200d👩\u200d👧",
        "🇫🇷",
        "\ufeff",
        "\ufffd",
        "\uffff",
        "\U0010ffff",
    ]
    tricky += [
        "<pad>",
        "<eos>",
        "<|endoftext|>",
        "don't",
        "'S",
        "12 345",
        "ﬁ",
        "İ",
        "日本語",
        "العربية",
        "#version",
    ]
    pick = random.Random(seed)
    ends = [0x80, 0x800, 0xD800, 0x110000]
    for _ in range(number):
        length = pick.randrange(12)
        parts = []
        for _ in range(length):
            code = pick.randrange(pick.choice(ends))
            known = pick.choice(tricky) if pick.random() < 0.5 else chr(code)
            parts.append("?" if "\ud800" <= known[0] <= "\udfff" else known)
        yield "".join(parts)


# Characters, by hand


def test_characters_are_numbered_in_order_of_their_code_points():
    tokenizer = CharacterTokenizer.fit("banana split")
    assert tokenizer.characters == tuple(" abilnpst")
    assert tokenizer.encode("ban") == [2, 1, 5]
    assert tokenizer.vocab_size == 9


def test_special_tokens_come_before_the_characters():
    tokenizer = CharacterTokenizer("xyz", [PAD, BOS, EOS])
    assert [tokenizer.id_of(token) for token in (PAD, BOS, EOS, "x", "z")] == [0, 1, 2, 3, 5]
    assert tokenizer.encode("zx") == [5, 3]


def test_several_texts_share_one_vocabulary():
    assert CharacterTokenizer.fit(["cab", "bad"]).characters == tuple("abcd")


def test_special_tokens_are_silent_when_decoded():
    tokenizer = CharacterTokenizer("xy", [PAD, BOS, EOS, MASK])
    assert tokenizer.decode([1, 4, 3, 5, 2, 0, 0]) == "xy"


def test_an_unknown_character_is_kept_as_a_mark_when_that_was_chosen():
    tokenizer = CharacterTokenizer("xy", [PAD, UNKNOWN])
    assert tokenizer.encode("x☃y") == [2, 1, 3]
    assert tokenizer.decode([2, 1, 3]) == "x\N{REPLACEMENT CHARACTER}y"


# Characters, laws


@pytest.mark.parametrize("special", [[], [PAD], [PAD, BOS, EOS, UNKNOWN]])
def test_decoding_undoes_encoding(special):
    text = "Grüße,\n\t日本語 and e\u0301 🙂 — “quoted”"
    tokenizer = CharacterTokenizer.fit(text, special)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == len(set(text)) + len(special)


def test_the_order_of_the_text_does_not_matter():
    assert CharacterTokenizer.fit("dcba").to_dict() == CharacterTokenizer.fit("abcdabcd").to_dict()


def test_a_record_survives_json():
    tokenizer = CharacterTokenizer.fit("naïve\n🙂", [PAD, EOS])
    again = CharacterTokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert again.to_dict() == tokenizer.to_dict()
    assert again.encode("🙂ï") == tokenizer.encode("🙂ï")


# Characters, refusals


def test_an_unknown_character_is_named_with_its_place():
    tokenizer = CharacterTokenizer.fit("abc")
    message = r"vocabulary of 3 characters, got '☃' \(U\+2603\) at position 2"
    with pytest.raises(ValueError, match=message):
        tokenizer.encode("ab☃")


@pytest.mark.parametrize("index", [-1, 5])
def test_an_id_outside_the_vocabulary_is_refused(index):
    with pytest.raises(ValueError, match=f"ids must be from 0 to 4, got {index}"):
        CharacterTokenizer("xyz", [PAD, EOS]).decode([2, index])


def test_a_token_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="must contain the token, got '<eos>'"):
        CharacterTokenizer("xyz", [PAD]).id_of(EOS)


@pytest.mark.parametrize(
    ("characters", "special", "message"),
    [
        ("", [], "needs at least one character"),
        (["a", "bc"], [], "must be one character, got 'bc'"),
        ("abca", [], "listed once, got 'a' twice"),
        ("abc", [PAD, PAD], "listed once, got '<pad>' twice"),
        ("abc", ["<sep>"], "must be among <pad> <bos> <eos> <unknown> <mask>, got '<sep>'"),
    ],
)
def test_an_impossible_vocabulary_is_refused(characters, special, message):
    with pytest.raises(ValueError, match=message):
        CharacterTokenizer(characters, special)


def test_an_empty_text_is_refused():
    with pytest.raises(ValueError, match="needs at least one character"):
        CharacterTokenizer.fit("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "byte-pair"}, "kind of tokenizer must be character, got 'byte-pair'"),
        ({"merges": []}, "must have the fields .*, got .*'merges'"),
    ],
)
def test_the_record_of_another_tokenizer_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CharacterTokenizer.from_dict(CharacterTokenizer("ab").to_dict() | change)


# Bytes, by hand


def test_a_byte_s_id_is_its_value_and_special_tokens_follow():
    tokenizer = ByteTokenizer([PAD, BOS, EOS])
    assert tokenizer.encode("Aé🙂") == [65, 0xC3, 0xA9, 0xF0, 0x9F, 0x99, 0x82]
    assert [tokenizer.id_of(token) for token in ("A", "\n", PAD, BOS, EOS)] == [
        65,
        10,
        256,
        257,
        258,
    ]
    assert tokenizer.vocab_size == 259


def test_bytes_that_are_no_utf_8_are_marked():
    tokenizer = ByteTokenizer([PAD])
    assert tokenizer.decode([65, 0xFF, 66]) == "A\ufffdB"
    assert tokenizer.decode([0xF0, 0x9F, 0x99]) == "\ufffd"
    assert tokenizer.decode([0xC3, 256, 0xA9]) == "é"


def test_a_character_streams_when_its_last_byte_has_come():
    tokenizer = ByteTokenizer()
    seen = []

    def ids():
        for byte in "é🙂!".encode():
            seen.append(byte)
            yield byte

    assert [(text, len(seen)) for text in tokenizer.decode_stream(ids())] == [
        ("é", 2),
        ("🙂", 6),
        ("!", 7),
    ]
    assert list(tokenizer.decode_stream([65, 0xF0, 0x9F])) == ["A", "\ufffd"]


def test_a_piece_that_is_part_of_a_character_is_shown_as_bytes():
    assert ByteTokenizer().pieces("aé") == ["a", r"\xc3", r"\xa9"]


# Byte pairs, by hand


def test_the_most_frequent_pair_is_joined_first():
    tokenizer = BytePairTokenizer.fit("abababcabc", 258)
    record = tokenizer.to_dict()
    assert record["merges"][0] == ["a", "b"]
    assert record["pieces"][256] == "ab"
    assert record["merges"][1] in (["ab", "ab"], ["ab", "c"])  # two of each
    assert tokenizer.vocab_size == 258


def merges_by_hand(text, num_merges):
    """Join the most frequent pair of the smallest ids, and count all pairs again."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    words = Counter(tuple(word) for word, _ in split(text))
    id_of = {character: number for number, character in enumerate(sorted(tokenizers._BYTE_OF))}
    merges = []
    while len(merges) < num_merges:
        counts = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                counts[pair] += times
        if not counts:
            break
        merges.append(min(counts, key=lambda pair: (-counts[pair], *map(id_of.get, pair))))
        id_of["".join(merges[-1])] = len(id_of)
        words = Counter({joined(word, merges[-1]): times for word, times in words.items()})
    return merges


def joined(word, pair):
    """Replace each occurrence of a pair, from left to right, by one token."""
    tokens = []
    for token in word:
        if tokens and (tokens[-1], token) == pair:
            tokens[-1] += token
        else:
            tokens.append(token)
    return tuple(tokens)


def test_merges_are_those_by_hand_and_by_the_library_one_by_one():
    corpus = python_reference().train[:30_000]
    ours = BytePairTokenizer.fit(corpus, 470, [PAD, BOS, EOS])
    theirs = json.loads(by_the_library(corpus, 470, [PAD, BOS, EOS]).to_str())["model"]["merges"]
    found = ours.to_dict()["merges"]
    assert len(found) == 211
    for number, merges in enumerate(zip(merges_by_hand(corpus, 211), found, theirs, strict=True)):
        assert len(set(map(tuple, merges))) == 1, f"merge {number}: {merges}"


def test_text_that_was_not_learned_from_is_encoded_as_by_the_library():
    """The library has the special tokens before all others, ours after."""
    data = python_reference()
    ours = BytePairTokenizer.fit(data.train[:60_000], 600, [PAD, BOS, EOS])
    theirs = by_the_library(data.train[:60_000], 600, [PAD, BOS, EOS])
    theirs.encode_special_tokens = True  # `<eos>` in a text is text
    for text in [data.validation[:6_000], *random_texts(300, seed=3)]:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert [index + 3 for index in ours.encode(text)] == ids
        assert ours.decode(ours.encode(text)) == theirs.decode(ids) == text
    assert [ours.id_of(token) for token in (PAD, BOS, EOS)] == [597, 598, 599]
    assert [theirs.token_to_id(token) for token in (PAD, BOS, EOS)] == [0, 1, 2]
    assert theirs.decode([1, *theirs.encode("if").ids, 2]) == "if"
    assert ours.decode([598, *ours.encode("if"), 599]) == "if"


@pytest.mark.parametrize("alphabet", ["ab", "abc", "abcdé☃ "])
def test_equally_frequent_pairs_are_joined_in_the_same_order_by_hand(alphabet):
    pick = random.Random(len(alphabet))
    for _ in range(40):
        text = "".join(pick.choices(alphabet, k=pick.randrange(2, 120)))
        found = BytePairTokenizer.fit(text, 256 + 31).to_dict()["merges"]
        assert [tuple(merge) for merge in found] == merges_by_hand(text, 31)


def test_a_frequent_word_becomes_one_token_with_the_space_before_it(byte_pair):
    assert byte_pair.pieces("the statement and an ox") == [
        "the",
        " statement",
        " and",
        " an",
        " o",
        "x",
    ]
    assert byte_pair.encode(" statement") == [byte_pair.id_of(" statement")]


def test_special_tokens_of_byte_pairs_come_last_and_are_silent(byte_pair):
    assert byte_pair.vocab_size == 500
    assert [byte_pair.id_of(token) for token in (PAD, BOS, EOS)] == [497, 498, 499]
    assert byte_pair.decode([498, *byte_pair.encode("with"), 499, 497]) == "with"


def test_a_special_token_may_look_like_a_piece_that_was_learned():
    tokenizer = BytePairTokenizer.fit("<pad>" * 50, 270, [PAD])
    ids = tokenizer.encode("<pad>")
    assert tokenizer.id_of(PAD) == tokenizer.vocab_size - 1
    assert tokenizer.id_of(PAD) not in ids
    assert tokenizer.decode(ids) == "<pad>"


def test_a_short_text_gives_fewer_tokens_than_were_asked_for():
    assert BytePairTokenizer.fit("aaaa", 1000, [EOS]).vocab_size == 256 + 2 + 1


def test_several_texts_are_learned_from_together():
    alone = BytePairTokenizer.fit(["abab", "abcd"], 260).to_dict()
    assert alone["merges"][0] == ["a", "b"]
    assert len(alone["merges"]) == 4


def test_bytes_are_spelled_as_gpt_2_does():
    record = BytePairTokenizer.fit(" \n\n é é é", 256).to_dict()
    spelled = record["pieces"]
    assert len(spelled) == 256 and "".join(spelled).isprintable()
    assert [spelled.index(character) for character in "!~¡¬®ÿĀ"] == [0, 93, 94, 105, 106, 187, 188]
    # GPT-2 writes space, line feed, 0x7F, NBSP and soft hyphen so; é is C3 A9.
    spelling = {value: key for key, value in tokenizers._BYTE_OF.items()}
    assert "".join(spelling[value] for value in b" \n\x7f\xa0\xad\xc3\xa9") == "ĠĊġłŃÃ©"


# Byte pairs, laws


def test_every_string_comes_back_from_bytes_and_from_byte_pairs(byte_pair):
    both = (ByteTokenizer(), byte_pair)
    for text in random_texts(1000):
        for tokenizer in both:
            assert tokenizer.decode(tokenizer.encode(text)) == text
            assert "".join(tokenizer.decode_stream(tokenizer.encode(text))) == text


def test_whatever_the_order_of_ids_a_stream_says_what_decoding_says(any_kind):
    pick = random.Random(1)
    for length in range(60):
        ids = pick.choices(range(any_kind.vocab_size), k=length)
        assert "".join(any_kind.decode_stream(ids)) == any_kind.decode(ids)


def test_nothing_that_is_written_encodes_to_a_special_token(any_kind):
    special = {any_kind.id_of(token) for token in (PAD, BOS, EOS)}
    assert not special & set(any_kind.encode("pad bos eos"))
    for tokenizer in (ByteTokenizer([EOS]), BytePairTokenizer.fit("<eos>" * 9, 300, [EOS])):
        assert tokenizer.id_of(EOS) not in tokenizer.encode("<eos>")


def test_pieces_are_the_text_in_order(any_kind):
    text = "while x: pass"
    assert "".join(any_kind.pieces(text)) == text
    assert len(any_kind.pieces(text)) == len(any_kind.encode(text))


def test_learning_twice_gives_the_same_tokens(byte_pair):
    assert BytePairTokenizer.fit(TEXT, 500, [PAD, BOS, EOS]).to_dict() == byte_pair.to_dict()


def test_more_tokens_write_a_text_shorter(byte_pair):
    few = BytePairTokenizer.fit(TEXT, 300)
    assert len(byte_pair.encode(TEXT)) < len(few.encode(TEXT)) < len(TEXT.encode())


def test_every_kind_offers_what_a_tokenizer_offers(any_kind):
    assert isinstance(any_kind, Tokenizer)
    assert any_kind.special_tokens == (PAD, BOS, EOS)
    assert not isinstance("text", Tokenizer)


def test_every_kind_survives_json(any_kind):
    record = json.loads(json.dumps(any_kind.to_dict()))
    again = tokenizers.from_dict(record)
    assert type(again) is type(any_kind)
    assert again.to_dict() == any_kind.to_dict() == record
    assert again.encode(TEXT[:999]) == any_kind.encode(TEXT[:999])
    assert again.id_of(EOS) == any_kind.id_of(EOS)


# Published tokenizers, by hand


def test_a_published_tokenizer_in_the_manner_of_llama_keeps_its_start_and_its_spaces():
    words = ["<unk>", "<s>", "▁the", "▁cat", "s", "▁"]
    model = huggingface.Tokenizer(
        models.WordPiece(
            {word: index for index, word in enumerate(words)},
            unk_token="<unk>",
            continuing_subword_prefix="",
        )
    )
    model.pre_tokenizer, model.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    model.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    model.add_special_tokens(["<unk>", "<s>"])
    tokenizer = PublishedTokenizer(model.to_str())
    assert tokenizer.special_tokens == ("<unk>", "<s>")
    assert tokenizer.prompt_start == [1]
    assert tokenizer.encode("the cats the") == [2, 3, 4, 2]
    assert tokenizer.pieces("the cats") == ["the", " cat", "s"]
    assert list(tokenizer.decode_stream([1, 2, 3, 4, 2])) == ["the", " cat", "s", " the"]
    assert tokenizer.id_of("the") == 2 and tokenizer.id_of("<s>") == 1
    with pytest.raises(ValueError, match="must contain the token, got 'the cat'"):
        tokenizer.id_of("the cat")


@pytest.mark.parametrize("description", ["", "{}", "not JSON"])
def test_a_file_that_describes_no_tokenizer_is_refused(description):
    with pytest.raises(ValueError, match="tokenizer.json must describe a tokenizer, got "):
        PublishedTokenizer(description)


# GPT-2's files, by hand


@pytest.fixture
def gpt2_files(tmp_path, byte_pair):
    """Write the tokens of a tokenizer as GPT-2's are, with its end of text."""
    record = byte_pair.to_dict()
    vocab = {piece: index for index, piece in enumerate([*record["pieces"], "<|endoftext|>"])}
    vocab_path, merges_path = tmp_path / "vocab.json", tmp_path / "merges.txt"
    vocab_path.write_text(json.dumps(vocab), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in record["merges"])]
    merges_path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return vocab_path, merges_path


def test_gpt_2_files_give_its_ids_and_its_end_of_text_becomes_eos(gpt2_files, byte_pair):
    tokenizer = BytePairTokenizer.from_gpt2_files(*gpt2_files)
    assert tokenizer.encode(TEXT) == byte_pair.encode(TEXT)
    assert tokenizer.special_tokens == (EOS,)
    assert tokenizer.id_of(EOS) == tokenizer.vocab_size - 1 == 497


def test_gpt_2_files_mean_here_what_they_mean_to_hugging_face(gpt2_files):
    import transformers

    ours = BytePairTokenizer.from_gpt2_files(*gpt2_files)
    vocab, merges = map(str, gpt2_files)
    theirs = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    for text in random_texts(300, seed=2):
        if "<|endoftext|>" not in text:
            assert ours.encode(text) == theirs.encode(text)


# Bytes and byte pairs, refusals


@pytest.mark.parametrize("kind", ["byte", "byte-pair"])
def test_half_a_surrogate_pair_is_refused_with_its_place(kind, byte_pair):
    tokenizer = ByteTokenizer() if kind == "byte" else byte_pair
    with pytest.raises(ValueError, match=r"surrogate pair \(U\+D83D\) at position 2"):
        tokenizer.encode("ab\ud83d")


@pytest.mark.parametrize("index", [-1, 500])
def test_an_id_outside_the_byte_pairs_is_refused(byte_pair, index):
    for decode in (byte_pair.decode, lambda ids: list(byte_pair.decode_stream(ids))):
        with pytest.raises(ValueError, match=f"ids must be from 0 to 499, got {index}"):
            decode([3, index])


def test_a_token_that_no_kind_has_is_refused(any_kind):
    for token in (MASK, "pq\x00", ""):
        with pytest.raises(ValueError, match="must contain the token, got "):
            any_kind.id_of(token)


@pytest.mark.parametrize("make", [ByteTokenizer, lambda s: BytePairTokenizer.fit("ab", 300, s)])
def test_bytes_leave_nothing_unknown_so_that_the_token_for_it_is_refused(make):
    with pytest.raises(ValueError, match="among <pad> <bos> <eos> <mask>, got '<unknown>'"):
        make([UNKNOWN])
    with pytest.raises(ValueError, match="listed once, got '<eos>' twice"):
        make([EOS, EOS])


@pytest.mark.parametrize(("vocab_size", "special"), [(255, []), (257, [PAD, EOS]), (0, [])])
def test_a_vocabulary_too_small_for_all_bytes_is_refused(vocab_size, special):
    smallest = 256 + len(special)
    message = rf"at least 256 \+ {len(special)} = {smallest} .*, got vocab_size={vocab_size}"
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer.fit("abc", vocab_size, special)


@pytest.mark.parametrize("text", ["", [], ["", ""]])
def test_byte_pairs_of_nothing_are_refused(text):
    with pytest.raises(ValueError, match="at least one character to learn from, got none"):
        BytePairTokenizer.fit(text, 300)


def test_learning_from_half_a_surrogate_pair_is_refused():
    with pytest.raises(ValueError, match=r"U\+DC00\) at position 1"):
        BytePairTokenizer.fit(["fine", "x\udc00"], 300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["pieces"].remove("a"), "every byte must have a token, got none for byte 97"),
        (lambda r: r["pieces"].append("a"), "listed once, got 'a' twice"),
        (lambda r: r["pieces"].append("a b"), "must be in GPT-2's byte characters, got 'a b'"),
        (lambda r: r["pieces"].append(""), "must be in GPT-2's byte characters, got ''"),
        (lambda r: r["merges"].append(["q", "x"]), r"two tokens to a third, got \['q', 'x'\]"),
        (lambda r: r["merges"].append(["a"]), r"two tokens to a third, got \['a'\]"),
        (lambda r: r["merges"].append(r["merges"][0]), "listed once, got 'a b' twice"),
        (lambda r: r.pop("merges"), "byte-pair tokenizer must have the fields"),
        (lambda r: r.update(kind="byte"), "byte tokenizer must have the fields"),
        (
            lambda r: r.update(kind="words"),
            "among character, byte, byte-pair, published, got 'words'",
        ),
        (lambda r: r.pop("kind"), "among character, byte, byte-pair, published, got None"),
    ],
)
def test_a_record_that_is_wrong_is_refused(change, message):
    record = BytePairTokenizer.fit("abababcabc", 258).to_dict()
    change(record)
    with pytest.raises(ValueError, match=message):
        tokenizers.from_dict(record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("{", "{\n\noops "), r"JSON, got .* in line 3 of .*vocab\.json"),
        (lambda text: "[]", r"no mapping in .*vocab\.json"),
        (
            lambda text: text.replace(": 7,", ": 7000,"),
            r"from 0 to 497, .* got 7000 for '\(' in .*json",
        ),
        (lambda text: text.replace(": 7,", ': "7",'), r"got '7' for '\(' in .*vocab\.json"),
        (lambda text: text.replace(": 7,", ": 8,"), r"got 8 for '\(' and '\)' in .*vocab\.json"),
        (
            lambda text: text.replace("<|endoftext|>", "<|end|>"),
            r"got '<\|end\|>' in .*vocab\.json",
        ),
    ],
)
def test_a_wrong_vocabulary_of_gpt_2_is_named(gpt2_files, change, message):
    vocab_path, merges_path = gpt2_files
    vocab_path.write_text(change(vocab_path.read_text()))
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer.from_gpt2_files(vocab_path, merges_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a b c", r"got 'a b c' in line 5 of .*merges\.txt"),
        ("", r"got '' in line 5 of .*merges\.txt"),
        (" a", r"got ' a' in line 5 of .*merges\.txt"),
        ("a 日", r"got '日' in line 5 of .*merges\.txt"),
        ("#version: 0.2", r"got '#version:' in line 5 of .*merges\.txt"),
        ("q q", r"got 'qq' in line 5 of .*merges\.txt"),
        (3, r"in lines 3 and 5 of .*merges\.txt"),
    ],
)
def test_a_wrong_merge_of_gpt_2_is_named_with_its_line(gpt2_files, line, message):
    vocab_path, merges_path = gpt2_files
    lines = merges_path.read_text().split("\n")
    lines[4] = lines[line - 1] if isinstance(line, int) else line
    merges_path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer.from_gpt2_files(vocab_path, merges_path)


def test_a_token_of_gpt_2_that_nothing_makes_is_refused(gpt2_files):
    vocab_path, merges_path = gpt2_files
    lines = merges_path.read_text().split("\n")
    merges_path.write_text("\n".join(lines[:-2]))  # the last piece is made no more
    with pytest.raises(ValueError, match=r"must be among .* <mask>, got .* in .*vocab\.json"):
        BytePairTokenizer.from_gpt2_files(vocab_path, merges_path)
    merges_path.write_text("\n".join([*lines[:3], *lines[4:]]))  # nor is one in the middle
    with pytest.raises(ValueError, match=r"must have the last ids, .* in .*vocab\.json"):
        BytePairTokenizer.from_gpt2_files(vocab_path, merges_path)


def test_gpt_2_files_that_cannot_be_read_are_named(gpt2_files, tmp_path):
    vocab_path, merges_path = gpt2_files
    with pytest.raises(ValueError, match=r"readable, got .*none\.json: No such file"):
        BytePairTokenizer.from_gpt2_files(tmp_path / "none.json", merges_path)
    merges_path.write_bytes("Ġ t".encode("latin-1", "replace") + b"\xff")
    with pytest.raises(
        ValueError, match=r"UTF-8, got an invalid byte at offset 3 of .*merges\.txt"
    ):
        BytePairTokenizer.from_gpt2_files(vocab_path, merges_path)
