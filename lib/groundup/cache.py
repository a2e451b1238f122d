"""Keys and values of tokens already seen, so that the next token need not compute them again."""

import torch
from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """The keys and values that one attention layer has seen.

    Room for `max_len` tokens is taken at once, so a step writes in place and copies nothing.
    No gradient flows through what is stored: a cache is for inference.

    Args:
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        max_len: Most tokens that fit.
        d_head: Width of one head.
        device: Where the room is taken.
        dtype: What the numbers are stored as.

    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        d_head: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        shape = (batch_size, num_kv_heads, max_len, d_head)
        self.length = 0
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def max_len(self) -> int:
        """Most tokens that fit."""
        return self._keys.shape[2]

    @property
    def keys(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The keys so far, oldest first."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The values so far, oldest first."""
        return self._values[:, :, : self.length]

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_head"],
    ) -> None:
        """Keep the keys and values of the tokens that came next.

        Raises:
            ValueError: If they do not fit, or if the batch is not the one the cache is for.

        """
        batch_size, new = key.shape[0], key.shape[2]
        if batch_size != self._keys.shape[0]:
            raise ValueError(
                "a cache serves the batch size it was made for, "
                f"got batch_size={batch_size}, made for {self._keys.shape[0]}"
            )
        if self.length + new > self.max_len:
            raise ValueError(
                f"a cache holds at most max_len={self.max_len} tokens, "
                f"got {new} more after {self.length}"
            )
        self._keys[:, :, self.length : self.length + new] = key.detach()
        self._values[:, :, self.length : self.length + new] = value.detach()
        self.length += new


class KeyValueCache:
    """What a whole model has seen. Made by the model's `new_cache`, passed to each call.

    Args:
        num_layers: Number of blocks; each has a cache of its own.
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        max_len: Most tokens that fit.
        d_head: Width of one head.
        source_max_len: Longest source, for a model with cross attention. Its keys and values
            come with the first call, from the encoder's output, and are only read after that.
        device: Where the room is taken.
        dtype: What the numbers are stored as.

    """

    def __init__(
        self,
        num_layers: int,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        d_head: int,
        source_max_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        def room(length: int) -> list[LayerCache]:
            shape = (batch_size, num_kv_heads, length, d_head)
            return [LayerCache(*shape, device, dtype) for _ in range(num_layers)]

        self.layers = room(max_len)
        self.cross = room(source_max_len) if source_max_len is not None else []

    @property
    def length(self) -> int:
        """Number of tokens seen so far."""
        return self.layers[0].length

    @property
    def max_len(self) -> int:
        """Most tokens that fit."""
        return self.layers[0].max_len
