import math
import random

import pytest

from groundup.training.baselines import CharacterNGram

VOCABULARY = "abcdefgh "


@pytest.fixture(scope="module")
def text():
    """Random words, so that some pieces are common and most are rare."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefg", k=draw.randint(1, 5))) for _ in range(60)]
    return " ".join(draw.choices(words, weights=range(1, 61), k=600))


# By hand


def test_a_unigram_is_counts_less_a_discount_that_all_characters_share():
    # "aab": too small to estimate from, so 1/2 is set aside twice: 1 of 3 is spread over abcd.
    model = CharacterNGram("aab", "abcd", order=1)
    by_hand = {"a": 1.5 / 3 + 1 / 12, "b": 0.5 / 3 + 1 / 12, "c": 1 / 12, "d": 1 / 12}
    for character, probability in by_hand.items():
        assert model.probability(character) == pytest.approx(probability)


def test_a_bigram_falls_back_on_the_number_of_ways_a_character_is_reached():
    # "abcbdba" has the pairs ab bc cb bd db ba, each once. Three different characters come
    # before b and one before each of a, c and d: 6 ways, of which 4 times 1/2 is set aside.
    model = CharacterNGram("abcbdba", "abcde", order=2)
    lower = {
        "a": 0.5 / 6 + 2 / 6 / 5,
        "b": 2.5 / 6 + 2 / 6 / 5,
        "c": 0.5 / 6 + 2 / 6 / 5,
        "d": 0.5 / 6 + 2 / 6 / 5,
        "e": 2 / 6 / 5,
    }
    # After b come a, c and d once each: of 3, three times 1/2 is set aside.
    for character, seen in {"a": 1, "b": 0, "c": 1, "d": 1, "e": 0}.items():
        expected = (0.5 * seen + 1.5 * lower[character]) / 3
        assert model.probability(character, "b") == pytest.approx(expected)
        assert model.probability(character, "e") == pytest.approx(lower[character])


def test_discounts_are_estimated_from_how_many_pieces_have_each_count():
    # Counts 1, 2, 3, 4 for 4, 3, 2 and 1 characters: Y = 4 / (4 + 6), and so on.
    text = "abcd" + "eeffgg" + "hhhiii" + "jjjj"
    model = CharacterNGram(text, "abcdefghijk", order=1)
    d1, d2, d3 = 1 - 2 * 0.4 * 3 / 4, 2 - 3 * 0.4 * 2 / 3, 3 - 4 * 0.4 * 1 / 2
    set_aside = 4 * d1 + 3 * d2 + 3 * d3
    assert model.probability("k") == pytest.approx(set_aside / 20 / 11)
    for character, kept in {"a": 1 - d1, "e": 2 - d2, "h": 3 - d3, "j": 4 - d3}.items():
        assert model.probability(character) == pytest.approx((kept + set_aside / 11) / 20)


def test_bits_are_averaged_over_all_characters_but_the_first():
    model = CharacterNGram("aab", "abcd", order=1)
    bits = -math.log2(1.5 / 3 + 1 / 12) - math.log2(1 / 12)
    assert model.bits_per_character("bac") == pytest.approx(bits / 2)


# Laws


@pytest.mark.parametrize("order", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("context", ["", "a", "ab c", "fedcba", "hhhhhh", "??", "b" * 11])
def test_probabilities_are_positive_and_sum_to_one_after_any_context(text, order, context):
    model = CharacterNGram(text, VOCABULARY, order)
    probabilities = [model.probability(character, context) for character in VOCABULARY]
    assert min(probabilities) > 0
    assert sum(probabilities) == pytest.approx(1, abs=1e-12)


def test_every_context_of_the_text_gives_a_distribution(text):
    model = CharacterNGram(text, VOCABULARY)
    for i in range(4, 204):
        total = sum(model.probability(character, text[i - 4 : i]) for character in VOCABULARY)
        assert total == pytest.approx(1, abs=1e-12)


def test_only_the_last_characters_of_a_context_count(text):
    model = CharacterNGram(text, VOCABULARY, order=3)
    assert model.probability("a", "hfde b") == model.probability("a", " b")


def test_a_longer_context_helps_where_words_repeat(text):
    cut = len(text) * 9 // 10
    bits = [
        CharacterNGram(text[:cut], VOCABULARY, order).bits_per_character(text[cut:])
        for order in (1, 2, 3, 5)
    ]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] < math.log2(len(VOCABULARY))


# Refusals


@pytest.mark.parametrize(
    ("text", "vocabulary", "order", "message"),
    [
        ("abc", "abc", 0, "order must be at least 1, got order=0"),
        ("abc", "abc", 5, "at least as long as order, got 3 characters, order=5"),
        ("abcabc", "ab", 2, "must be in the vocabulary, got 'c'"),
    ],
)
def test_what_cannot_be_counted_is_refused(text, vocabulary, order, message):
    with pytest.raises(ValueError, match=message):
        CharacterNGram(text, vocabulary, order)


def test_a_character_outside_the_vocabulary_is_refused(text):
    with pytest.raises(ValueError, match="must be in the vocabulary, got 'z'"):
        CharacterNGram(text, VOCABULARY).probability("z", "ab")


def test_a_text_with_nothing_to_predict_is_refused(text):
    with pytest.raises(ValueError, match="at least 2 characters, got 1"):
        CharacterNGram(text, VOCABULARY).bits_per_character("a")
