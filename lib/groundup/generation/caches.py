"""Two alternatives to the growing KV cache: each is a `kind` for a model's `new_cache`.

`SlidingLayerCache` holds only the newest tokens, however long the sequence. `StaticLayerCache`
always returns its whole buffer, so that every step has the same shapes and can be compiled or
captured in a CUDA graph.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.core.cache import KeyValueCache, LayerCache, require_batch_size
from groundup.core.masks import sliding_window_mask


class _WholeLayerCache(LayerCache):
    """A cache that exposes its buffers in full."""

    @property
    def keys(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The buffer of keys."""
        return self._keys

    @property
    def values(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The buffer of values."""
        return self._values


class SlidingLayerCache(_WholeLayerCache):
    """A cache of the newest tokens' keys and values, for sliding-window attention.

    It holds `window - 1` tokens, which with the query's own token make up the window. Memory and
    time per token are constant, however long the sequence.

    Args:
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        max_len: Longest sequence; the memory depends only on `window`.
        d_head: Width of one head.
        window: Number of newest tokens that each token attends to, itself included.
        device: Where the buffers are allocated.
        dtype: Data type of the buffers.

    Raises:
        ValueError: If `window` is None.

    Source:
        Jiang et al. 2023, Mistral 7B, section 2 (rolling buffer cache),
        https://arxiv.org/abs/2310.06825

    """

    window: int

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
        if window is None:
            raise ValueError("a sliding cache needs a window, got window=None")
        super().__init__(batch_size, num_kv_heads, 0, d_head, window, device, dtype)
        self.max_len = max_len

    @property
    def num_kept(self) -> int:
        """Number of cached keys, which come before those of the next tokens."""
        return self._keys.shape[2]

    @property
    def num_bytes(self) -> int:
        """Memory of the buffers once the window is full, in bytes."""
        batch_size, num_kv_heads, _, d_head = self._keys.shape
        num_numbers = batch_size * num_kv_heads * (self.window - 1) * d_head
        return 2 * num_numbers * self._keys.element_size()

    def allowed(self, new: int) -> Bool[Tensor, "{new} k_len"] | None:
        """Return the mask of the next `new` tokens, before appending them; None for one token."""
        if new == 1:
            return None
        return sliding_window_mask(new, self.window, self.num_kept + new, self._keys.device)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_head"],
    ) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the next tokens, and drop those that leave the window.

        Returns:
            The keys and the values to attend to: the cached ones, then the new ones.

        Raises:
            ValueError: If the batch size differs from the cache's.

        """
        require_batch_size(key, self._keys)
        keys = torch.cat((self._keys, key.detach()), dim=2)
        values = torch.cat((self._values, value.detach()), dim=2)
        oldest = max(0, keys.shape[2] - (self.window - 1))
        self._keys, self._values = keys[:, :, oldest:], values[:, :, oldest:]
        self.length += key.shape[2]
        return keys, values


class StaticLayerCache(_WholeLayerCache):
    """A cache that returns its whole buffer, and keeps its length in a tensor on the device.

    No shape and no Python number depends on how much of the buffer is filled, so one compiled
    step or one CUDA graph serves every token. The price is that attention also reads the empty
    part, which is masked.

    Args:
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        max_len: Capacity in tokens. Not checked, because reading the length would synchronise the
            device: the caller must count.
        d_head: Width of one head.
        window: Number of newest tokens that each token attends to; None for all.
        device: Where the buffers are allocated.
        dtype: Data type of the buffers.

    """

    length: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]

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
        super().__init__(batch_size, num_kv_heads, max_len, d_head, window, device, dtype)
        self.length = torch.zeros((), dtype=torch.long, device=device)
        if self._keys.is_cuda and not torch.compiler.is_compiling():
            # torch captures no CUDA graph of a step that writes to its inputs, unless their
            # addresses are marked as constant.
            from torch import _dynamo  # slow to import

            for tensor in (self.length, self._keys, self._values):
                _dynamo.mark_static_address(tensor, guard=False)

    @property
    def num_kept(self) -> Int[Tensor, ""]:
        """Index of the next token in the buffer; a copy, because `append` adds in place."""
        return self.length.clone()

    def allowed(self, new: int) -> Bool[Tensor, "{new} {self.max_len}"]:
        """Return the mask of the next `new` tokens, before they are appended."""
        index = torch.arange(self.max_len, device=self._keys.device)
        distance = (self.length + index[:new])[:, None] - index
        return distance >= 0 if self.window is None else (distance >= 0) & (distance < self.window)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_head"],
    ) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the next tokens.

        Returns:
            The whole buffers of keys and values, including the empty part.

        """
        index = self.length + torch.arange(key.shape[2], device=key.device)
        self._keys.index_copy_(2, index, key.detach())
        self._values.index_copy_(2, index, value.detach())
        self.length.add_(key.shape[2])
        return self._keys, self._values


def reorder(cache: KeyValueCache, rows: Int[Tensor, " batch"]) -> None:
    """Copy the past of sequence `rows[i]` to sequence `i`, as beam search needs.

    Args:
        cache: A cache of any kind; changed in place.
        rows: For each sequence, the index of the one that it continues.

    """
    for layer in (*cache.layers, *cache.cross):
        for stored in (layer.keys, layer.values):
            stored.copy_(stored[rows])
