"""Keys and values of earlier tokens, stored so that they need not be computed again.

No gradient flows through what is stored: a cache is for inference. The cache here keeps every
token. `generation.caches` has two alternatives: one keeps only the newest tokens, and the
other has shapes that never change.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.core.config import AnyConfig, DecoderOnlyConfig, EncoderDecoderConfig, require
from groundup.core.masks import sliding_window_mask


class LayerCache:
    """The keys and values of one attention layer.

    Memory for `max_len` tokens is allocated at once, so a step writes in place and copies nothing.

    Args:
        batch_size: Number of sequences.
        num_kv_heads: Number of key and value heads.
        max_len: Capacity in tokens.
        d_head: Width of one head.
        window: Number of newest tokens that each token attends to; None for all.
        device: Where the buffers are allocated.
        dtype: Data type of the buffers.

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
        self.max_len, self.window = max_len, window
        self.length = 0
        """Number of tokens seen so far."""
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def keys(self) -> Float[Tensor, "batch kv_heads length d_head"]:
        """The keys so far, oldest first."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Float[Tensor, "batch kv_heads length d_value"]:
        """The values so far, oldest first."""
        return self._values[:, :, : self.length]

    @property
    def num_kept(self) -> int | Int[Tensor, ""]:
        """Number of keys that come before those of the next token."""
        return self.length

    @property
    def num_bytes(self) -> int:
        """Memory allocated, in bytes."""
        return 2 * self._keys.numel() * self._keys.element_size()

    def allowed(self, new: int) -> Bool[Tensor, "{new} k_len"] | None:
        """Return the mask of the next `new` tokens, before they are appended.

        None allows the whole past. Attention itself hides later tokens.
        """
        k_len = self.length + new
        if self.window is None or k_len <= self.window:
            return None
        return sliding_window_mask(new, self.window, k_len, self._keys.device)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_value"],
    ) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the next tokens.

        Returns:
            All keys and all values to attend to, the new ones last.

        Raises:
            ValueError: If they do not fit, or if the batch size differs from the cache's.

        """
        require_batch_size(key, self._keys)
        start, end = self.length, self.length + key.shape[2]
        rule = "a cache must not hold more than max_len tokens"
        require(end <= self.max_len, rule, tokens=end, max_len=self.max_len)
        self._keys[:, :, start:end] = key.detach()
        self._values[:, :, start:end] = value.detach()
        self.length = end
        return self.keys, self.values


class KeyValueCache:
    """The caches of a whole model, made by its `new_cache` and passed to each call.

    Args:
        config: The model's.
        batch_size: Number of sequences.
        max_len: Capacity in tokens; by default as many as the model allows.
        kind: How a layer of self-attention stores its keys and values. Cross-attention always
            uses a `LayerCache`, which the first call fills from the encoder's output.
        device: Where the buffers are allocated.
        dtype: Data type of the buffers.

    Raises:
        ValueError: If `max_len` is below 1 or above the model's own.

    """

    def __init__(
        self,
        config: AnyConfig,
        batch_size: int,
        max_len: int | None = None,
        kind: type[LayerCache] = LayerCache,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        max_len = config.max_len if max_len is None else max_len
        rule = "a cache must hold from 1 to as many tokens as the model"
        lengths = {"max_len": max_len, "the model's max_len": config.max_len}
        require(1 <= max_len <= config.max_len, rule, **lengths)

        def layers(kind: type[LayerCache], max_len: int, window: int | None) -> list[LayerCache]:
            sizes = (batch_size, config.kv_heads, max_len, config.d_head, window)
            return [kind(*sizes, device, dtype) for _ in range(config.num_layers)]

        window = config.window if isinstance(config, DecoderOnlyConfig) else None
        source_len = config.source_max_len if isinstance(config, EncoderDecoderConfig) else None
        self.layers = layers(kind, max_len, window)
        self.cross = [] if source_len is None else layers(LayerCache, source_len, None)

    @property
    def length(self) -> int | Int[Tensor, ""]:
        """Number of tokens seen so far."""
        return self.layers[0].length

    @property
    def num_bytes(self) -> int:
        """Memory of keys and values, in bytes."""
        return sum(layer.num_bytes for layer in (*self.layers, *self.cross))

    def allowed(self, new: int) -> Bool[Tensor, "..."] | None:
        """Return the mask of the next `new` tokens, in every layer; see `LayerCache.allowed`."""
        return self.layers[0].allowed(new)


def require_batch_size(key: Tensor, stored: Tensor) -> None:
    """Refuse a batch size other than the cache's, which might broadcast."""
    rule = "a cache serves the batch size it was made for"
    sizes = {"batch_size": key.shape[0], "cache.batch_size": stored.shape[0]}
    require(key.shape[0] == stored.shape[0], rule, **sizes)
