import math

import pytest
import torch

from groundup.core.embedding import InputEmbedding
from groundup.core.positions import sinusoidal_table
from groundup.presets import decoder_only


@pytest.fixture
def embedding(shaken):
    """Read 19 tokens, up to 11 at a time, as vectors of 12 features."""

    def build(positions="learned", dropout=0.0):
        config = decoder_only(
            "tiny",
            vocab_size=19,
            max_len=11,
            d_model=12,
            num_heads=3,
            positions=positions,
            dropout=dropout,
        )
        return shaken(InputEmbedding(19, 11, config))

    return build


# By hand


def test_sinusoids_are_added_to_token_vectors_of_their_own_size(embedding):
    reads = embedding(positions="sinusoidal")
    numbers = torch.tensor([[3, 3, 7]])
    table = sinusoidal_table(5, 12).double()[2:]
    expected = reads.tokens.weight[[3, 3, 7]] * math.sqrt(12) + table
    torch.testing.assert_close(reads(numbers, torch.arange(2, 5)), expected[None])


def test_learned_positions_are_added_to_unscaled_token_vectors(embedding):
    reads = embedding(positions="learned")
    expected = reads.tokens.weight[[3, 3, 7]] + reads.positions.table.weight[2:5]
    torch.testing.assert_close(reads(torch.tensor([[3, 3, 7]]), torch.arange(2, 5)), expected[None])


# Laws


def test_dropout_acts_on_the_sum_of_tokens_and_positions(embedding):
    reads = embedding(dropout=0.5, positions="sinusoidal")
    numbers = torch.arange(11)[None]
    whole = reads.eval()(numbers)
    torch.manual_seed(0)
    seen = reads.train()(numbers) / whole
    assert ((seen == 0) | ((seen - 2).abs() < 1e-9)).all()
    assert 0.3 < (seen == 0).double().mean() < 0.7


@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
def test_where_attention_tells_the_order_only_meanings_are_read(embedding, positions):
    reads, numbers = embedding(positions), torch.tensor([[3, 5, 3]])
    torch.testing.assert_close(reads(numbers), reads.tokens.weight[numbers])


def test_positions_may_be_given_one_by_one(embedding):
    reads, numbers = embedding(), torch.tensor([[3, 5, 7]])
    given = reads(numbers, positions=torch.tensor([[4, 5, 6]]))
    torch.testing.assert_close(given, reads(numbers, torch.arange(4, 7)))
    assert not torch.allclose(given, reads(numbers))
