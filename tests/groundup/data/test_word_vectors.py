import tracemalloc

import pytest
import torch

from groundup.data.word_vectors import WordVectors, embedding_from, read_word_vectors

GLOVE = "the 0.5 -1 2e-1\ncat 1 2 3\nsat -0.25 0 7\n"


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "vectors.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# By hand


def test_a_line_is_a_word_and_its_numbers(write):
    vectors = read_word_vectors(write(GLOVE))
    assert vectors.words == ("the", "cat", "sat")
    expected = torch.tensor([[0.5, -1, 0.2], [1, 2, 3], [-0.25, 0, 7]])
    assert torch.equal(vectors.vectors, expected)
    assert (len(vectors), vectors.id_of("cat")) == (3, 1)
    assert "sat" in vectors and "dog" not in vectors


def test_only_the_words_asked_for_are_kept_in_the_order_of_the_file(write):
    vectors = read_word_vectors(write(GLOVE), words=["sat", "dog", "the"])
    assert vectors.words == ("the", "sat")
    assert vectors.vectors[:, 0].tolist() == [0.5, -0.25]
    assert read_word_vectors(write(GLOVE), words=iter([])).vectors.shape == (0, 3)


@pytest.mark.parametrize("end", ["\n", " \n", "\r\n", " \r\n"])
def test_the_first_line_of_word2vec_and_its_spaces_at_the_end_are_understood(write, end):
    content = "3 3\n" + GLOVE
    vectors = read_word_vectors(write(content.replace("\n", end)))
    assert vectors.words == ("the", "cat", "sat")
    assert torch.equal(vectors.vectors, read_word_vectors(write(GLOVE)).vectors)
    assert read_word_vectors(write(content), words=["cat"], d_model=3).words == ("cat",)


def test_words_may_have_spaces_in_them(write):
    content = "the 1 2\n. . . 3 4\nat name@domain.com 5 6\n"
    vectors = read_word_vectors(write(content))
    assert vectors.words == ("the", ". . .", "at name@domain.com")
    assert vectors.vectors[1:].tolist() == [[3, 4], [5, 6]]
    assert read_word_vectors(write("new york 1 2\nthe 3 4\n"), d_model=2).words == (
        "new york",
        "the",
    )


def test_what_looks_like_the_end_of_a_line_or_a_space_may_be_a_word(write):
    words = ["\x85", "\u2028", "a\xa0b", "\x0b", "\x1c", "5", "1e5", "nan", "İ"]
    content = "".join(f"{word} {i} 1\n" for i, word in enumerate(words))
    vectors = read_word_vectors(write(content))
    assert list(vectors.words) == words
    assert vectors.vectors[:, 0].tolist() == list(range(9))


def test_the_last_line_needs_no_end(write):
    assert read_word_vectors(write("the 1 2\ncat 3 4")).vectors.tolist() == [[1, 2], [3, 4]]


def test_with_one_number_per_word_the_first_line_is_a_word_when_that_is_said(write):
    content = "7 2\n8 3\n"
    assert read_word_vectors(write(content), d_model=1).words == ("7", "8")
    with pytest.raises(ValueError, match="a word and 2 numbers, got 2 fields in line 2 of"):
        read_word_vectors(write(content))


def test_what_was_not_asked_for_is_not_kept(write):
    path = write("".join(f"w{i} {' '.join(['0.125'] * 100)}\n" for i in range(2000)))
    tracemalloc.start()
    vectors = read_word_vectors(path, words=["w7", "w1999"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert vectors.words == ("w7", "w1999")
    assert peak < path.stat().st_size / 8


# Embeddings


@pytest.fixture
def vectors(normal):
    words = [f"w{i}" for i in range(200)]
    rows = normal(200, 5, dtype=torch.float32) * torch.tensor([1, 2, 3, 5, 7]) + 11
    return WordVectors(words, rows)


def test_known_words_keep_their_vectors_in_the_order_of_the_vocabulary(vectors):
    embedding = embedding_from(vectors, ["w7", "<pad>", "w3"], False, generator())
    assert torch.equal(embedding.weight[0], vectors.vectors[7])
    assert torch.equal(embedding.weight[2], vectors.vectors[3])
    assert (embedding.num_embeddings, embedding.embedding_dim) == (3, 5)
    assert torch.equal(embedding(torch.tensor([2])), vectors.vectors[3:4])


def test_unknown_words_get_vectors_as_large_as_the_others(vectors):
    embedding = embedding_from(vectors, [f"x{i}" for i in range(10_000)], True, generator())
    std, mean = torch.std_mean(vectors.vectors, dim=0, correction=0)
    assert torch.allclose(embedding.weight.mean(dim=0), mean, atol=0.3)
    assert torch.allclose(embedding.weight.std(dim=0), std, rtol=0.05)


def test_a_seed_decides_the_vectors_of_unknown_words(vectors):
    words = ["x", "w2", "y"]
    once, again, other = (
        embedding_from(vectors, words, True, generator(seed)).weight for seed in (1, 1, 2)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once[0], other[0])
    assert not torch.equal(once[0], once[2])


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_vectors_stay_as_they_are_and_others_learn(vectors, frozen):
    embedding = embedding_from(vectors, ["w0", "x", "w1"], frozen, generator())
    model = torch.nn.Sequential(embedding, torch.nn.Linear(5, 2))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model(torch.tensor([0, 1, 2])).square().sum().backward()
    optimizer.step()
    changed = [not torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True)]
    assert changed == [not frozen, True, True]


def test_learning_does_not_write_into_the_vectors_that_were_read(vectors):
    kept = vectors.vectors.clone()
    embedding = embedding_from(vectors, list(vectors.words), False, generator())
    with torch.no_grad():
        embedding.weight.zero_()
    assert torch.equal(vectors.vectors, kept)


# Refusals


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dog 1 2", "a word and 3 numbers, got 3 fields in line 2 of"),
        ("dog 1 2 3 4", "a word and 3 numbers, got 5 fields in line 2 of"),
        ("dog", "a word and 3 numbers, got 1 fields in line 2 of"),
        ("", "a word and 3 numbers, got 0 fields in line 2 of"),
        (" 1 2 3", "a word and 3 numbers, got 3 fields in line 2 of"),
        ("dog 1 x 3", "made of numbers, got 'x' in line 2 of"),
        ("dog 1  3", "made of numbers, got '' in line 2 of"),
        ("dog 1 nan 3", "must be finite, got nan in line 2 of"),
        ("dog 1 2 -inf", "must be finite, got -inf in line 2 of"),
        ("dog 1e39 2 3", "must be finite, got 1e39 in line 2 of"),
        ("the 1 2 3", "listed once, got 'the' in line 1 and in line 2 of"),
        (b"d\xffg 1 2 3", r"must be UTF-8, got b'd\\xffg' in line 2 of"),
    ],
)
def test_a_bad_line_is_named_with_its_number(write, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(b"the 1 2 3\n" + line + b"\ncat 1 2 3\n")
    with pytest.raises(ValueError, match=message + r" .*vectors\.txt"):
        read_word_vectors(path)
    with pytest.raises(ValueError, match=message.replace("2 of", "3 of").replace("1 and", "2 and")):
        read_word_vectors(write(b"3 3\n" + path.read_bytes()))


def test_a_bad_line_of_the_wrong_length_is_named_though_nobody_asked_for_its_word(write):
    with pytest.raises(ValueError, match="got 2 fields in line 3 of"):
        read_word_vectors(write("the 1 2\ncat 3 4\ndog 5\n"), words=["the"])


def test_a_first_line_that_cannot_be_understood_says_what_would_help(write):
    with pytest.raises(ValueError, match="got 'york' in line 1 of .*; .* set d_model"):
        read_word_vectors(write("new york 1 2\n"))
    with pytest.raises(ValueError, match="a word and its numbers, got b'the' first in"):
        read_word_vectors(write("the"))


def test_a_file_shorter_or_longer_than_its_first_line_says_is_refused(write):
    for said in (2, 4):
        with pytest.raises(ValueError, match=f"must give the number .*, got {said} for 3 words"):
            read_word_vectors(write(f"{said} 3\n{GLOVE}"))


def test_another_width_than_the_first_line_says_is_refused(write):
    with pytest.raises(ValueError, match="got d_model=5, in the file 3"):
        read_word_vectors(write(f"3 3\n{GLOVE}"), d_model=5)
    with pytest.raises(ValueError, match="a word and 5 numbers, got 4 fields in line 1"):
        read_word_vectors(write(GLOVE), d_model=5)
    with pytest.raises(ValueError, match="d_model must be at least 1, got d_model=0"):
        read_word_vectors(write(GLOVE), d_model=0)


def test_an_empty_file_is_refused(write):
    with pytest.raises(ValueError, match=r"at least one line, got an empty file: .*vectors\.txt"):
        read_word_vectors(write(""))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"readable file, got .*none\.txt: No such file"):
        read_word_vectors(tmp_path / "none.txt")


def test_a_word_without_a_vector_is_refused(vectors):
    with pytest.raises(ValueError, match="must have a vector, got 'x'"):
        vectors.id_of("x")


def test_words_and_vectors_must_be_as_many():
    with pytest.raises(ValueError, match="every word must have a vector, got 1 words, 2 vectors"):
        WordVectors(["a"], torch.zeros(2, 3))
    with pytest.raises(ValueError, match="listed once, got 'a' twice"):
        WordVectors(["a", "b", "a"], torch.zeros(3, 2))


def test_an_embedding_from_nothing_is_refused():
    with pytest.raises(ValueError, match="made from at least one vector, got none"):
        embedding_from(WordVectors([], torch.zeros(0, 3)), ["a"], True, generator())
