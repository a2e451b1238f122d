"""The sizes and settings that describe a model, checked when a configuration is created."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

Activation = Literal["relu", "gelu", "gelu_tanh", "squared_relu", "swiglu", "geglu", "geglu_tanh"]
"""The nonlinearity inside a feed-forward network; the last three have a gate."""
Norm = Literal["layer", "rms"]
"""How a token's features are normalised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Config:
    """What the three architectures have in common."""

    vocab_size: int
    """Number of different tokens that can be predicted."""
    max_len: int
    """Longest sequence that is predicted, in tokens."""
    d_model: int
    """Width of a token."""
    num_layers: int
    """Number of blocks; in an encoder-decoder, those of the decoder."""
    num_heads: int
    """Number of query heads."""
    num_kv_heads: int | None = None
    """Number of key and value heads, a divisor of num_heads; None for num_heads."""
    head_width: int | None = None
    """Width of one head; None for d_model / num_heads."""
    d_ff: int
    """Width inside the feed-forward network."""
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "none"]
    """How positions are represented."""
    rotary_base: float = 10_000.0
    """Sets the slowest rotation of rotary positions."""
    rotary_frequencies: tuple[float, ...] | None = None
    """Radians per token of each pair of features; None for those that rotary_base gives."""
    rotary_scale: float = 1.0
    """Multiplies rotated queries and keys."""
    norm: Norm = "layer"
    """How a token's features are normalised."""
    norm_eps: float = 1e-5
    """Added to a variance or mean square before dividing by its square root, also in qk_norm."""
    norm_order: Literal["pre", "post"]
    """Whether a sub-layer's input is normalised, or the residual stream after it."""
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head."""
    activation: Activation
    """The nonlinearity inside the feed-forward network; the last three have a gate."""
    bias: bool = True
    """Whether the linear layers inside the blocks have a bias."""
    dropout: float
    """Probability that a feature of a sub-layer's output is dropped in training."""
    attention_dropout: float = 0.0
    """Probability that an attention weight is dropped in training."""
    tie_embeddings: bool
    """Whether the embedding matrix is also the unembedding matrix."""
    zero_init_outputs: bool = False
    """Whether the output of each sub-layer starts at zero rather than small."""

    def __post_init__(self):
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type is int or (field.type == int | None and value is not None):
                is_positive = type(value) is int and value > 0
                require(is_positive, f"{name} must be a positive integer", **{name: value})
            if get_origin(field.type) is Literal:
                require_choice(get_args(field.type), **{name: value})
        if self.head_width is None:
            require_multiple(d_model=self.d_model, num_heads=self.num_heads)
        require_multiple(num_heads=self.num_heads, num_kv_heads=self.kv_heads)
        require_dropout(dropout=self.dropout, attention_dropout=self.attention_dropout)
        require(self.rotary_base > 0, "rotary_base must be positive", rotary_base=self.rotary_base)
        require(self.norm_eps > 0, "norm_eps must be positive", norm_eps=self.norm_eps)
        is_even = self.positions != "rotary" or self.d_head % 2 == 0
        require(is_even, "rotary positions need an even d_head", d_head=self.d_head)
        own = self.rotary_frequencies
        fits = own is None or 2 * len(own) == self.d_head
        require(fits, "each pair needs its frequency", rotary_frequencies=own, d_head=self.d_head)
        is_even = self.positions != "sinusoidal" or self.d_model % 2 == 0
        require(is_even, "sinusoidal positions need an even d_model", d_model=self.d_model)

    @property
    def d_head(self) -> int:
        """Width of one head: head_width, or else d_model / num_heads."""
        return self.d_model // self.num_heads if self.head_width is None else self.head_width

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads: num_kv_heads, or else num_heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderOnlyConfig(_Config):
    """A model that continues a sequence."""

    window: int | None = None
    """Number of newest tokens that each token attends to, itself included; None for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderOnlyConfig(_Config):
    """A model that reads a sequence in both directions and predicts something about it."""

    num_outputs: int | None = None
    """Logits per answer, such as the number of classes; None for vocab_size."""
    answers: Literal["tokens", "sequence"] = "tokens"
    """Whether each token gets an answer, or the whole sequence."""

    def __post_init__(self):
        _Config.__post_init__(self)  # super() does not find its class in a slotted dataclass
        can_tie = not self.tie_embeddings or self.num_outputs in (None, self.vocab_size)
        rule = "tie_embeddings needs an answer for each token of the vocabulary"
        require(can_tie, rule, num_outputs=self.num_outputs, vocab_size=self.vocab_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig(_Config):
    """A model that reads one sequence and generates another."""

    source_vocab_size: int
    """Number of different tokens that can be read."""
    source_max_len: int
    """Longest sequence that is read, in tokens."""
    num_encoder_layers: int
    """Number of blocks of the encoder."""
    tie_source_embeddings: bool = False
    """Whether source and target use one vocabulary and one embedding matrix."""

    def __post_init__(self):
        _Config.__post_init__(self)
        sizes = {"source_vocab_size": self.source_vocab_size, "vocab_size": self.vocab_size}
        can_tie = not self.tie_source_embeddings or self.source_vocab_size == self.vocab_size
        require(can_tie, "tie_source_embeddings needs one vocabulary", **sizes)


AnyConfig = DecoderOnlyConfig | EncoderOnlyConfig | EncoderDecoderConfig
"""The configuration of any of the three models."""


def require(holds: bool, rule: str, **values: Any) -> None:
    """Raise an error that states a rule and the values that break it, unless the rule holds.

    Raises:
        ValueError: If `holds` is False.

    """
    if not holds:
        got = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ValueError(f"{rule}, got {got}")


def require_choice(choices: Iterable[str], **value: Any) -> None:
    """Refuse a value that is none of the choices."""
    [(name, chosen)] = value.items()
    require(chosen in choices, f"{name} must be one of {', '.join(choices)}", **value)


def require_multiple(**values: int) -> None:
    """Refuse a first value that is not a multiple of the second, or a second below 1."""
    (name, value), (of_name, of) = values.items()
    require(of >= 1 and value % of == 0, f"{name} must be a multiple of {of_name}", **values)


def require_dropout(**values: float) -> None:
    """Refuse a dropout rate below 0, or of 1 or more."""
    for name, value in values.items():
        require(0 <= value < 1, f"{name} must be at least 0 and below 1", **{name: value})
