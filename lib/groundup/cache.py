"""Keys and values of tokens already seen, so that the next token need not compute them again.

Three rooms with one door, `append`, which keeps what is new and gives all that may be attended
to. No gradient flows through what is stored: a cache is for inference.

Which one to take? `LayerCache` grows into its room and hands out just what is filled.
`SlidingLayerCache` forgets: it holds the newest tokens only, however long the text.
`StaticLayerCache` always hands out its whole room, so that every step has the same shapes and
can be compiled or recorded as a CUDA graph.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.masks import causal_mask, sliding_window_mask


class LayerCache:
    """The keys and values that one attention layer has seen.

    Room for `max_len` tokens is taken at once, so a step writes in place and copies nothing.

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
    def num_bytes(self) -> int:
        """Memory taken, in bytes."""
        return 2 * self._keys.numel() * self._keys.element_size()

    @property
    def keys(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The keys so far, oldest first."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The values so far, oldest first."""
        return self._values[:, :, : self.length]

    def allowed(self, new: int) -> Bool[Tensor, "{new} k_len"] | Literal["causal"] | None:
        """Say which keys the next `new` tokens may attend to, before they are appended."""
        if new == 1:
            return None  # all that a single token finds is in its past
        if self.length == 0:
            return "causal"
        return causal_mask(new, self.length + new, self._keys.device)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_head"],
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the tokens that came next.

        Returns:
            All keys and all values to attend to, the new ones among them.

        Raises:
            ValueError: If they do not fit, or if the batch is not the one the cache is for.

        """
        new = key.shape[2]
        _require_batch_size(key, self._keys)
        if self.length + new > self.max_len:
            raise ValueError(
                f"a cache holds at most max_len={self.max_len} tokens, "
                f"got {new} more after {self.length}"
            )
        self._keys[:, :, self.length : self.length + new] = key.detach()
        self._values[:, :, self.length : self.length + new] = value.detach()
        self.length += new
        return self.keys, self.values

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let sequence `i` go on from what was sequence `rows[i]`, as a beam search needs."""
        self._keys[:, :, : self.length] = self.keys[rows]
        self._values[:, :, : self.length] = self.values[rows]


class SlidingLayerCache:
    """The keys and values of the newest tokens, for attention with a window.

    It holds `window - 1` tokens: with the token that asks, that is the window. Memory and time
    per token stay the same however long the text gets.

    Args:
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        window: Number of newest tokens that each token attends to, itself included.
        d_head: Width of one head.
        device: Where the room is taken.
        dtype: What the numbers are stored as.

    Source:
        Jiang et al. 2023, Mistral 7B, section 2 (rolling buffer cache),
        https://arxiv.org/abs/2310.06825

    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        window: int,
        d_head: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        self.length = 0
        self.window = window
        self._shape = (batch_size, num_kv_heads, window - 1, d_head)
        self.keys = torch.empty(batch_size, num_kv_heads, 0, d_head, device=device, dtype=dtype)
        self.values = self.keys

    @property
    def num_bytes(self) -> int:
        """Memory taken once the window is full, in bytes."""
        batch_size, num_kv_heads, length, d_head = self._shape
        return 2 * batch_size * num_kv_heads * length * d_head * self.keys.element_size()

    def allowed(self, new: int) -> Bool[Tensor, "{new} k_len"] | None:
        """Say which keys the next `new` tokens may attend to, before they are appended."""
        if new == 1:
            return None
        k_len = self.keys.shape[2] + new
        return sliding_window_mask(new, self.window, k_len, self.keys.device)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_head"],
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the tokens that came next, and forget the oldest.

        Returns:
            All keys and all values to attend to: what was there, then the new ones.

        Raises:
            ValueError: If the batch is not the one the cache is for.

        """
        _require_batch_size(key, self.keys)
        keys = torch.cat((self.keys, key.detach()), dim=2)
        values = torch.cat((self.values, value.detach()), dim=2)
        oldest = max(0, keys.shape[2] - (self.window - 1))
        self.keys, self.values = keys[:, :, oldest:], values[:, :, oldest:]
        self.length += key.shape[2]
        return keys, values

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let sequence `i` go on from what was sequence `rows[i]`, as a beam search needs."""
        self.keys, self.values = self.keys[rows], self.values[rows]


class StaticLayerCache:
    """A room that is handed out whole, with the length kept as a tensor on the device.

    No shape and no number that Python sees depends on how much is filled, so one compiled step,
    or one recorded CUDA graph, serves every token. The price is that attention reads the empty
    part as well, and masks it.

    Args:
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        max_len: Most tokens that fit; the caller counts, because looking would stop the device.
        d_head: Width of one head.
        window: Number of newest tokens that each token attends to; all by default.
        device: Where the room is taken.
        dtype: What the numbers are stored as.

    """

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        d_head: int,
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        shape = (batch_size, num_kv_heads, max_len, d_head)
        self.window = window
        self.length = torch.zeros((), dtype=torch.long, device=device)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        if self.keys.is_cuda and not torch.compiler.is_compiling():
            # torch records no CUDA graph of a step that writes to what it is given, unless it
            # was told that the place stays the same.
            from torch import _dynamo  # takes long to import

            for place in (self.length, self.keys, self.values):
                _dynamo.mark_static_address(place, guard=False)

    @property
    def max_len(self) -> int:
        """Most tokens that fit."""
        return self.keys.shape[2]

    @property
    def num_bytes(self) -> int:
        """Memory taken, in bytes."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def places(self, new: int) -> Int[Tensor, " {new}"]:
        """Give the places of the next `new` tokens, counted from 0."""
        return self.length + torch.arange(new, device=self.keys.device)

    def allowed(self, new: int) -> Bool[Tensor, "{new} max_len"]:
        """Say which keys the next `new` tokens may attend to, before they are appended."""
        distance = self.places(new)[:, None] - torch.arange(self.max_len, device=self.keys.device)
        return distance >= 0 if self.window is None else (distance >= 0) & (distance < self.window)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_head"],
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the tokens that came next.

        Returns:
            The whole room: all keys and all values, the empty places among them.

        """
        places = self.places(key.shape[2])
        self.keys.index_copy_(2, places, key.detach())
        self.values.index_copy_(2, places, value.detach())
        self.length.add_(key.shape[2])
        return self.keys, self.values

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let sequence `i` go on from what was sequence `rows[i]`, as a beam search needs."""
        self.keys.copy_(self.keys[rows])
        self.values.copy_(self.values[rows])


AnyLayerCache = LayerCache | SlidingLayerCache | StaticLayerCache
"""What an attention layer may be given."""


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
        window: Number of newest tokens that each token attends to; all by default.
        is_static: Whether shapes stay the same from step to step, see `StaticLayerCache`.
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
        window: int | None = None,
        is_static: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        def room() -> AnyLayerCache:
            if is_static:
                return StaticLayerCache(*sizes, window, device, dtype)
            if window is not None:
                return SlidingLayerCache(batch_size, num_kv_heads, window, d_head, device, dtype)
            return LayerCache(*sizes, device, dtype)

        sizes = (batch_size, num_kv_heads, max_len, d_head)
        self.max_len = max_len
        self.layers = [room() for _ in range(num_layers)]
        self.cross: list[LayerCache] = []
        if source_max_len is not None:
            sizes_of_source = (batch_size, num_kv_heads, source_max_len, d_head)
            self.cross = [LayerCache(*sizes_of_source, device, dtype) for _ in range(num_layers)]

    @property
    def length(self) -> int | Int[Tensor, ""]:
        """Number of tokens seen so far; a tensor on the device if the cache is static."""
        return self.layers[0].length

    @property
    def num_bytes(self) -> int:
        """Memory taken by keys and values, in bytes."""
        return sum(layer.num_bytes for layer in (*self.layers, *self.cross))

    def allowed(self, new: int) -> Bool[Tensor, "..."] | Literal["causal"] | None:
        """Say which keys the next `new` tokens may attend to, in every layer."""
        return self.layers[0].allowed(new)

    def positions(self, new: int) -> Int[Tensor, " {new}"] | None:
        """Give the positions of the next `new` tokens, or None where `length` tells them."""
        first = self.layers[0]
        return first.places(new) if isinstance(first, StaticLayerCache) else None

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let sequence `i` go on from what was sequence `rows[i]`, as a beam search needs."""
        for layer in (*self.layers, *self.cross):
            layer.reorder(rows)


def _require_batch_size(key: Tensor, stored: Tensor) -> None:
    if key.shape[0] != stored.shape[0]:
        raise ValueError(
            "a cache serves the batch size it was made for, "
            f"got batch_size={key.shape[0]}, made for {stored.shape[0]}"
        )
