"""What a model is made of: sizes and choices, checked once, when they are written down."""

from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

Config = TypeVar("Config", bound="_Config")
Activation = Literal["relu", "gelu", "gelu_tanh", "squared_relu", "swiglu", "geglu"]
"""The bend inside a feed-forward network; the last two have a gate."""
Norm = Literal["layer", "rms"]
"""What keeps the size of a token's features in bounds."""

_RULES: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int | None: ("an integer or None", lambda value: value is None or type(value) is int),
    float: ("a number", lambda value: type(value) in (int, float)),
    bool: ("True or False", lambda value: type(value) is bool),
}
"""What a field of a type may be; whole numbers and choices among words are looked at apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Config:
    """What both architectures have in common."""

    PRESETS: ClassVar[tuple[str, ...]]

    vocab_size: int
    """Number of different tokens that can be predicted."""
    max_len: int
    """Longest sequence that is predicted, in tokens."""
    d_model: int
    """Width of a token."""
    num_layers: int
    """Number of blocks that predict; an encoder is counted apart."""
    num_heads: int
    """Number of query heads."""
    num_kv_heads: int | None = None
    """Number of key and value heads, a divisor of num_heads; None for num_heads."""
    d_ff: int
    """Width inside the feed-forward network."""
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "none"]
    """How a token knows where it stands."""
    rotary_base: float = 10_000.0
    """Sets the slowest turn of rotary positions."""
    norm: Norm = "layer"
    """What keeps the size of a token's features in bounds."""
    norm_eps: float = 1e-5
    """Added to a variance or mean square before it divides."""
    norm_order: Literal["pre", "post"]
    """Whether a sub-layer's input is normalised, or the sum after it."""
    qk_norm: bool = False
    """Whether queries and keys are normalised, head by head."""
    activation: Activation
    """The bend inside the feed-forward network; the last two have a gate."""
    bias: bool = True
    """Whether the linear maps inside the blocks add a constant."""
    dropout: float
    """Share of a sub-layer's output that is dropped in training, from 0 to 1."""
    attention_dropout: float = 0.0
    """Share of the attention weights that is dropped in training, from 0 to 1."""
    tie_embeddings: bool
    """Whether the table that reads tokens also predicts them."""
    zero_init_outputs: bool = False
    """Whether what each sub-layer adds starts at zero rather than small."""

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 1):
                raise ValueError(
                    f"{field.name} must be a positive integer, got {field.name}={value}"
                )
        require_multiple("d_model", self.d_model, "num_heads", self.num_heads)
        if self.num_kv_heads is not None:
            require_multiple("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        for field in fields(self):
            if get_origin(field.type) is Literal:
                _require_choice(field.name, getattr(self, field.name), get_args(field.type))
        for name in ("rotary_base", "norm_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {name}={getattr(self, name)}")
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(
                "rotary positions need an even d_head = d_model / num_heads, "
                f"got d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"sinusoidal positions need an even d_model, got d_model={self.d_model}"
            )
        for name in ("dropout", "attention_dropout"):
            require_share(name, getattr(self, name))

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads, whether it was chosen or follows num_heads."""
        return self.num_kv_heads or self.num_heads

    @classmethod
    def preset(cls: type[Config], name: str, **sizes: Any) -> Config:
        """Look up a preset by name, with the sizes it asks for and any field overridden.

        Raises:
            ValueError: If there is no such preset or field.

        """
        _require_choice("preset", name, cls.PRESETS)
        return getattr(cls, name)(**sizes)

    def to_dict(self) -> dict[str, Any]:
        """List the fields as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[Config], values: dict[str, Any]) -> Config:
        """Undo `to_dict`.

        Raises:
            ValueError: If a field is unknown or missing, or has a value of another type.

        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(values.keys() - known)
        if unknown:
            raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}")
        required = {field.name for field in fields(cls) if field.default is MISSING}
        missing = sorted(required - values.keys())
        if missing:
            raise ValueError(f"{cls.__name__} needs the field {', '.join(missing)}")
        for field in fields(cls):
            rule, holds = _RULES.get(field.type, ("", lambda value: True))
            value = values.get(field.name, field.default)
            if not holds(value):
                raise ValueError(f"{field.name} must be {rule}, got {field.name}={value!r}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderOnlyConfig(_Config):
    """A model that continues a sequence."""

    PRESETS: ClassVar[tuple[str, ...]] = ("tiny", "modern", "llama", "gpt2_small", "gpt2_xl")

    window: int | None = None
    """Number of newest tokens that each token attends to, itself included; None for all."""

    def __post_init__(self):
        _Config.__post_init__(self)  # super() does not find its class in a slotted dataclass
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, got window={self.window}")

    @classmethod
    def tiny(cls, *, vocab_size: int, max_len: int, **overrides: Any) -> "DecoderOnlyConfig":
        """A model that learns something on two CPU cores within minutes."""
        values = {
            "d_model": 128,
            "num_layers": 3,
            "num_heads": 4,
            "d_ff": 512,
            "positions": "rotary",
            "norm_order": "pre",
            "activation": "gelu",
            "dropout": 0.0,
            "tie_embeddings": True,
        }
        return cls.from_dict({"vocab_size": vocab_size, "max_len": max_len} | values | overrides)

    @classmethod
    def modern(cls, *, vocab_size: int, max_len: int, **overrides: Any) -> "DecoderOnlyConfig":
        """A model of 0.8 million parameters, made of the parts that learn fastest.

        Rotary positions, RMSNorm, normalised queries and keys, squared ReLU, no biases, and
        sub-layers that start by adding nothing. Meant for `optimizer="muon"`.

        Source:
            Jordan et al. 2024, modded-nanogpt, https://github.com/KellerJordan/modded-nanogpt

        """
        values = {
            "d_model": 128,
            "num_layers": 4,
            "num_heads": 4,
            "d_ff": 512,
            "positions": "rotary",
            "norm": "rms",
            "norm_order": "pre",
            "qk_norm": True,
            "activation": "squared_relu",
            "bias": False,
            "dropout": 0.0,
            "tie_embeddings": False,
            "zero_init_outputs": True,
        }
        return cls.from_dict({"vocab_size": vocab_size, "max_len": max_len} | values | overrides)

    @classmethod
    def llama(cls, *, vocab_size: int, max_len: int, **overrides: Any) -> "DecoderOnlyConfig":
        """The parts of Llama at the size of `tiny`, two query heads to a key and value head.

        Source:
            Touvron et al. 2023, LLaMA, section 2.2, https://arxiv.org/abs/2302.13971 (rotary,
            RMSNorm, SwiGLU with two thirds of the width); Touvron et al. 2023, Llama 2, section
            2.2, https://arxiv.org/abs/2307.09288 (grouped queries)

        """
        values = {
            "d_model": 128,
            "num_layers": 3,
            "num_heads": 4,
            "num_kv_heads": 2,
            "d_ff": 344,
            "positions": "rotary",
            "norm": "rms",
            "norm_order": "pre",
            "activation": "swiglu",
            "bias": False,
            "dropout": 0.0,
            "tie_embeddings": False,
        }
        return cls.from_dict({"vocab_size": vocab_size, "max_len": max_len} | values | overrides)

    @classmethod
    def gpt2_small(
        cls, *, vocab_size: int = 50257, max_len: int = 1024, **overrides: Any
    ) -> "DecoderOnlyConfig":
        """The smallest GPT-2, 124 million parameters at its own vocabulary.

        Source:
            Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3
            and table 2

        """
        values = {
            "d_model": 768,
            "num_layers": 12,
            "num_heads": 12,
            "d_ff": 3072,
            "positions": "learned",
            "norm_order": "pre",
            "activation": "gelu_tanh",
            "dropout": 0.1,
            "tie_embeddings": True,
        }
        return cls.from_dict({"vocab_size": vocab_size, "max_len": max_len} | values | overrides)

    @classmethod
    def gpt2_xl(
        cls, *, vocab_size: int = 50257, max_len: int = 1024, **overrides: Any
    ) -> "DecoderOnlyConfig":
        """The largest GPT-2, 1.5 billion parameters. Source as in `gpt2_small`."""
        sizes = {"d_model": 1600, "num_layers": 48, "num_heads": 25, "d_ff": 6400}
        return cls.gpt2_small(vocab_size=vocab_size, max_len=max_len, **(sizes | overrides))


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderOnlyConfig(_Config):
    """A model that reads a sequence both ways and says something about it."""

    PRESETS: ClassVar[tuple[str, ...]] = ("tiny", "bert_base")

    num_outputs: int | None = None
    """Logits per answer, such as the number of classes; None for vocab_size."""
    answers: Literal["tokens", "sequence"] = "tokens"
    """Whether each token gets an answer, or the sequence gets one."""

    def __post_init__(self):
        _Config.__post_init__(self)
        if self.num_outputs is not None and self.num_outputs < 1:
            raise ValueError(f"num_outputs must be at least 1, got num_outputs={self.num_outputs}")
        if self.tie_embeddings and self.num_outputs not in (None, self.vocab_size):
            raise ValueError(
                "tie_embeddings needs an answer for each token of the vocabulary, "
                f"got num_outputs={self.num_outputs}, vocab_size={self.vocab_size}"
            )

    @classmethod
    def tiny(cls, *, vocab_size: int, max_len: int, **overrides: Any) -> "EncoderOnlyConfig":
        """A model that learns something on two CPU cores within minutes."""
        values = {
            "d_model": 64,
            "num_layers": 2,
            "num_heads": 4,
            "d_ff": 256,
            "positions": "learned",
            "norm_order": "pre",
            "activation": "gelu",
            "dropout": 0.0,
            "tie_embeddings": False,
        }
        return cls.from_dict({"vocab_size": vocab_size, "max_len": max_len} | values | overrides)

    @classmethod
    def bert_base(
        cls, *, vocab_size: int = 30522, max_len: int = 512, **overrides: Any
    ) -> "EncoderOnlyConfig":
        """The sizes and choices of BERT base, without its sentence pairs and its output layer.

        BERT also drops a tenth of its attention weights; ask for it by `attention_dropout=0.1`.

        Source:
            Devlin et al. 2019, BERT, section 3 and appendix A.2, https://arxiv.org/abs/1810.04805

        """
        values = {
            "d_model": 768,
            "num_layers": 12,
            "num_heads": 12,
            "d_ff": 3072,
            "positions": "learned",
            "norm_eps": 1e-12,
            "norm_order": "post",
            "activation": "gelu",
            "dropout": 0.1,
            "tie_embeddings": True,
        }
        return cls.from_dict({"vocab_size": vocab_size, "max_len": max_len} | values | overrides)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderDecoderConfig(_Config):
    """A model that reads one sequence and writes another."""

    PRESETS: ClassVar[tuple[str, ...]] = ("tiny", "paper_base")

    source_vocab_size: int
    """Number of different tokens that can be read."""
    source_max_len: int
    """Longest sequence that is read, in tokens."""
    num_encoder_layers: int
    """Number of blocks that read."""
    tie_source_embeddings: bool = False
    """Whether source and target are one vocabulary and share one table."""

    def __post_init__(self):
        _Config.__post_init__(self)  # super() does not find its class in a slotted dataclass
        if self.tie_source_embeddings and self.source_vocab_size != self.vocab_size:
            raise ValueError(
                "tie_source_embeddings needs one vocabulary, got "
                f"source_vocab_size={self.source_vocab_size}, vocab_size={self.vocab_size}"
            )

    @classmethod
    def tiny(
        cls,
        *,
        source_vocab_size: int,
        vocab_size: int,
        source_max_len: int,
        max_len: int,
        **overrides: Any,
    ) -> "EncoderDecoderConfig":
        """A model that learns something on two CPU cores within minutes."""
        values = {
            "source_vocab_size": source_vocab_size,
            "vocab_size": vocab_size,
            "source_max_len": source_max_len,
            "max_len": max_len,
            "d_model": 64,
            "num_encoder_layers": 2,
            "num_layers": 2,
            "num_heads": 4,
            "d_ff": 256,
            "positions": "sinusoidal",
            "norm_order": "pre",
            "activation": "relu",
            "dropout": 0.0,
            "tie_embeddings": True,
        }
        return cls.from_dict(values | overrides)

    @classmethod
    def paper_base(
        cls,
        *,
        source_vocab_size: int,
        vocab_size: int,
        source_max_len: int,
        max_len: int,
        **overrides: Any,
    ) -> "EncoderDecoderConfig":
        """The paper's base model; where both vocabularies have one size, they share one table.

        Source:
            Vaswani et al. 2017, Attention Is All You Need, table 3 (base) and section 3.4
            (shared tables), https://arxiv.org/abs/1706.03762

        """
        values = {
            "source_vocab_size": source_vocab_size,
            "vocab_size": vocab_size,
            "source_max_len": source_max_len,
            "max_len": max_len,
            "d_model": 512,
            "num_encoder_layers": 6,
            "num_layers": 6,
            "num_heads": 8,
            "d_ff": 2048,
            "positions": "sinusoidal",
            "norm_order": "post",
            "activation": "relu",
            "dropout": 0.1,
            "tie_embeddings": True,
            "tie_source_embeddings": source_vocab_size == vocab_size,
        }
        return cls.from_dict(values | overrides)


AnyConfig = DecoderOnlyConfig | EncoderOnlyConfig | EncoderDecoderConfig
"""What describes a model, whichever of the three it is."""


def require_multiple(name: str, value: int, of_name: str, of: int) -> None:
    """Refuse what cannot be shared out evenly.

    Raises:
        ValueError: If `value` is no multiple of `of`, or `of` is below 1.

    """
    if of < 1 or value % of:
        raise ValueError(
            f"{name} must be a multiple of {of_name}, got {name}={value}, {of_name}={of}"
        )


def require_share(name: str, value: float) -> None:
    """Refuse to drop less than nothing, or everything.

    Raises:
        ValueError: If `value` is below 0, or not below 1.

    """
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {name}={value}")


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {name}={value}")
