import json

import pytest

from groundup.tokenizers import BOS, EOS, PAD, UNKNOWN, CharacterTokenizer

# By hand


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
    tokenizer = CharacterTokenizer("xy", [PAD, BOS, EOS])
    assert tokenizer.decode([1, 3, 4, 2, 0, 0]) == "xy"


def test_an_unknown_character_is_kept_as_a_mark_when_that_was_chosen():
    tokenizer = CharacterTokenizer("xy", [PAD, UNKNOWN])
    assert tokenizer.encode("x☃y") == [2, 1, 3]
    assert tokenizer.decode([2, 1, 3]) == "x\N{REPLACEMENT CHARACTER}y"


# Laws


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


# Refusals


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
    with pytest.raises(ValueError, match="must hold the token asked for, got '<eos>'"):
        CharacterTokenizer("xyz", [PAD]).id_of(EOS)


@pytest.mark.parametrize(
    ("characters", "special", "message"),
    [
        ("", [], "needs at least one character"),
        (["a", "bc"], [], "must be one character, got 'bc'"),
        ("abca", [], "listed once, got 'a' twice"),
        ("abc", [PAD, PAD], "listed once, got '<pad>' twice"),
        ("abc", ["<mask>"], "must be among <pad> <bos> <eos> <unknown>, got '<mask>'"),
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
        ({"merges": []}, "has the fields .*, got .*'merges'"),
    ],
)
def test_the_record_of_another_tokenizer_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        CharacterTokenizer.from_dict(CharacterTokenizer("ab").to_dict() | change)
