"""The way in: token numbers become vectors that say what a token means and where it stands."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.config import AnyConfig
from groundup.positions import LearnedPositions, SinusoidalPositions


class InputEmbedding(nn.Module):
    """What a token means plus where it stands. Rotary attention and ALiBi add the second later.

    Beside sinusoids, whose features have size 1, token vectors are scaled up by the root of
    `d_model`, so that neither drowns the other.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, sections 3.4, 3.5 and 5.4,
        https://arxiv.org/abs/1706.03762

    """

    def __init__(self, vocab_size: int, max_len: int, config: AnyConfig, is_shared: bool):
        super().__init__()
        self.is_shared = is_shared
        tables = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = None
        if config.positions in tables:
            self.positions = tables[config.positions](max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.positions == "sinusoidal" else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        start: int = 0,
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Turn token numbers into vectors.

        Args:
            tokens: Token numbers.
            start: Position of the first token; the others follow.
            positions: Position of each token, instead of `start`.

        """
        x = self.tokens(tokens)
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            x = x + self.positions(positions)
        return self.dropout(x)

    def use_table(self, table: nn.Embedding) -> None:
        """Read tokens with vectors from elsewhere, frozen or not, as `data.embedding_from` makes.

        Raises:
            ValueError: If the table is for another vocabulary or another width, or if the
                model's own also predicts tokens or reads another sequence.

        """
        if self.is_shared:
            raise ValueError(
                "word vectors need a table that only reads, got a model with tied embeddings"
            )
        if table.weight.shape != self.tokens.weight.shape:
            raise ValueError(
                "word vectors must have one row per token and be d_model wide, got "
                f"{tuple(table.weight.shape)} instead of {tuple(self.tokens.weight.shape)}"
            )
        self.tokens = table
