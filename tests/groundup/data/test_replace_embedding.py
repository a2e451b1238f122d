import pytest
import torch
from torch import nn

from groundup import presets
from groundup.core.models import DecoderOnly, EncoderDecoder
from groundup.data.word_vectors import replace_embedding

SIZES = {"vocab_size": 19, "max_len": 11, "d_model": 12, "num_heads": 3, "d_ff": 13}
SOURCE = {"source_vocab_size": 19, "source_max_len": 17}


def decoder_only(tie_embeddings):
    choices = {"positions": "learned", "tie_embeddings": tie_embeddings}
    config = presets.decoder_only("tiny", **SIZES, **choices)
    return DecoderOnly(config, torch.Generator().manual_seed(0)).double()


def encoder_decoder(**ties):
    config = presets.encoder_decoder("tiny", **SIZES, **SOURCE, **ties)
    return EncoderDecoder(config, torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("is_frozen", [True, False])
def test_word_vectors_replace_the_input_embedding(tokens, normal, is_frozen):
    model, numbers = decoder_only(tie_embeddings=False), tokens(19, 2, 7)
    before = model(numbers)
    vectors = normal(19, 12)
    replace_embedding(model, nn.Embedding.from_pretrained(vectors.clone(), freeze=is_frozen))
    after = model(numbers)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(
        model.embedding(numbers), vectors[numbers] + model.embedding.positions(torch.arange(7))
    )
    after.sum().backward()
    assert (model.embedding.tokens.weight.grad is None) == is_frozen


def test_the_source_embedding_can_be_replaced_alone(normal):
    model = encoder_decoder(tie_embeddings=True)
    table = nn.Embedding.from_pretrained(normal(19, 12))
    replace_embedding(model, table, "source_embedding")
    assert model.source_embedding.tokens is table and model.embedding.tokens is not table


# Refusals


def test_word_vectors_for_another_vocabulary_or_width_are_refused():
    for rows, width in ((18, 12), (19, 13)):
        message = f"one row per token and be d_model wide, got .{rows}, {width}. instead of .19, 12"
        with pytest.raises(ValueError, match=message):
            replace_embedding(decoder_only(tie_embeddings=False), nn.Embedding(rows, width))


def test_a_tied_embedding_is_not_replaced():
    message = "got a model with tied embeddings"
    with pytest.raises(ValueError, match=message):
        replace_embedding(decoder_only(tie_embeddings=True), nn.Embedding(19, 12))
    shared = encoder_decoder(tie_embeddings=False, tie_source_embeddings=True)
    for name in ("embedding", "source_embedding"):
        with pytest.raises(ValueError, match=message):
            replace_embedding(shared, nn.Embedding(19, 12), name)
