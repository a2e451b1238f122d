"""The input layer: from token ids to vectors that represent a token and its position."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groundup.core.config import AnyConfig
from groundup.core.positions import LearnedPositions, SinusoidalPositions


class InputEmbedding(nn.Module):
    """Token embedding plus position embedding. Rotary attention and ALiBi need only the former.

    With sinusoids, whose features reach 1, token vectors are scaled up by the square
    root of `d_model`, so that neither part dominates.

    Source:
        Vaswani et al. 2017, Attention Is All You Need, sections 3.4, 3.5 and 5.4,
        https://arxiv.org/abs/1706.03762

    """

    def __init__(self, vocab_size: int, max_len: int, config: AnyConfig):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        kinds = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
        kind = kinds.get(config.positions)
        self.positions = None if kind is None else kind(max_len, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.positions == "sinusoidal" else 1.0
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        positions: Int[Tensor, "*batch length"] | None = None,
    ) -> Float[Tensor, "batch length d_model"]:
        """Convert token ids to vectors.

        Args:
            tokens: Token ids.
            positions: Position of each token; by default they are counted from 0.

        """
        x = self.tokens(tokens)
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device)
            x = x + self.positions(positions)
        return self.dropout(x)
