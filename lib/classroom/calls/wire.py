"""The bytes that pass between a check and the code under test.

Only tensors, numbers, strings, bytes, containers of them, and handles cross; nothing is ever
unpickled. A message is the length of a JSON header, the header, and the raw bytes of the tensors in
the order in which the header names them.
"""

import json
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_NAMES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"
DTYPES = {name: getattr(torch, name) for name in _NAMES.split()}
MAX_BYTES = 64 * 2**20
MAX_DEPTH = 16
# More than 64 are more than torch itself can compare.
MAX_DIMENSIONS = 16
MAX_INTEGER_BITS = 63
_BYTES_PER_ITEM = 16
_LENGTH = struct.Struct(">Q")
_dispatch_of = operator.attrgetter("__torch_dispatch__")


class CannotCross(ValueError):
    """A value is of a kind, or of a size, that does not pass between check and code."""


@dataclass(frozen=True)
class Handle:
    """Stands for a function that a check lends, which stays in the process of the check.

    Attributes:
        id: Number by which that process finds it.

    """

    id: int


def pack(value: Any) -> bytes:
    """Encode a value as one message.

    Args:
        value: A tensor, number, string, bool, None or `Handle`, bytes, or lists, tuples and
            string-keyed dictionaries of them.

    Raises:
        CannotCross: If something else is in it, or if it is larger than `MAX_BYTES`.

    """
    encoder = _Encoder(MAX_BYTES)
    header = json.dumps(encoder.describe(value, 0)).encode()
    message = _LENGTH.pack(len(header)) + header + b"".join(encoder.blobs)
    if len(message) > MAX_BYTES:
        raise _too_large()
    return message


def unpack(message: bytes, resolve: Callable[[Handle], Any] = lambda handle: handle) -> Any:
    """Decode the value of one message; it shares no memory with the original.

    Args:
        message: What `pack` returned, or bytes that claim to be that.
        resolve: Returns the object that a handle stands for in this process.

    Raises:
        CannotCross: If the bytes are not a message.

    """
    try:
        if len(message) > MAX_BYTES:
            raise ValueError("longer than the limit")
        (length,) = _LENGTH.unpack_from(message)
        start = _LENGTH.size + length
        if start > len(message):
            raise ValueError("header longer than the message")
        decoder = _Decoder(memoryview(message)[start:], resolve)
        value = decoder.build(json.loads(message[_LENGTH.size : start]), 0)
        if decoder.position != len(decoder.blob):
            raise ValueError("bytes left over")
        return value
    except CannotCross:
        raise
    except (
        ArithmeticError,
        KeyError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise CannotCross(f"these bytes are not a message: {error}") from None


def _too_large() -> CannotCross:
    return CannotCross(f"a value may hold at most {MAX_BYTES:,} bytes; this one holds more")


@dataclass
class _Encoder:
    """Describes values for the header, collects the bytes of tensors, and counts both.

    Counting as it goes stops values that are small in memory and huge when encoded, such as a list
    that holds another list ten times, which holds another one ten times.
    """

    bytes_left: int
    blobs: list[bytes] = field(default_factory=list)

    def describe(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise CannotCross(f"a value may be nested at most {MAX_DEPTH} levels deep")
        self._count(_BYTES_PER_ITEM)
        if value is None or type(value) is bool:
            return value
        if type(value) is int:
            if value.bit_length() > MAX_INTEGER_BITS:
                raise CannotCross("an integer must fit into 64 bits")
            return value
        if isinstance(value, float):
            # A subclass such as numpy's float64 is encoded as its number.
            return value
        if type(value) is str:
            self._count(len(value))
            return value
        if type(value) is bytes:
            self._count(len(value))
            return {"bytes": value.hex()}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if type(value) is Handle:
            return {"handle": value.id}
        # Iterate with the built-in types' own methods: a subclass may override them.
        if isinstance(value, list):
            return {"list": [self.describe(item, depth + 1) for item in list.__iter__(value)]}
        if isinstance(value, tuple):
            return {"tuple": [self.describe(item, depth + 1) for item in tuple.__iter__(value)]}
        if isinstance(value, dict):
            return {"dict": [self._entry(*entry, depth + 1) for entry in dict.items(value)]}
        raise CannotCross(f"{_kind_of(value)} cannot be passed: use a torch.Tensor or a number")

    def _entry(self, key: Any, value: Any, depth: int) -> list[Any]:
        if type(key) is not str:
            raise CannotCross("the keys of a dictionary must be strings")
        self._count(len(key))
        return [key, self.describe(value, depth)]

    def _tensor(self, value: Tensor) -> dict[str, Any]:
        if _dispatch_of(type(value)) is not _dispatch_of(Tensor):
            raise CannotCross(f"{_kind_of(value)} cannot be read: use a plain torch.Tensor")
        try:
            # A subclass may override any operation: read the plain tensor.
            with torch._C.DisableTorchFunctionSubclass():
                plain = Tensor.detach(value)
            if plain.device.type not in ("cpu", "meta"):
                raise CannotCross(
                    f"a tensor on {plain.device.type} cannot be read: move it to the CPU"
                )
            name = str(plain.dtype).removeprefix("torch.")
            if name not in DTYPES or plain.layout is not torch.strided or plain.is_nested:
                raise CannotCross(
                    f"a tensor of dtype {name} and layout {plain.layout} cannot be read"
                )
            if plain.dim() > MAX_DIMENSIONS:
                raise CannotCross(
                    f"a tensor may have at most {MAX_DIMENSIONS} dimensions; this one has "
                    f"{plain.dim()}"
                )
            # Count before copying: an expanded tensor takes little memory until then.
            self._count(plain.numel() * plain.element_size())
            if plain.is_meta:  # it has no numbers
                return {"tensor": name, "shape": list(plain.shape), "meta": True}
            flat = plain.resolve_neg().contiguous().reshape(-1)
            self.blobs.append(flat.view(torch.uint8).numpy().tobytes())
            return {"tensor": name, "shape": list(plain.shape)}
        except (RuntimeError, TypeError) as error:
            reason = str(error).split("\n")[0]
            raise CannotCross(f"this kind of tensor cannot be read: {reason}") from None

    def _count(self, num_bytes: int) -> None:
        self.bytes_left -= num_bytes
        if self.bytes_left < 0:
            raise _too_large()


def _kind_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


@dataclass
class _Decoder:
    blob: memoryview
    resolve: Callable[[Handle], Any]
    position: int = 0

    def build(self, description: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if not isinstance(description, dict):
            if isinstance(description, list):
                raise ValueError("a bare list")
            if isinstance(description, int) and description.bit_length() > MAX_INTEGER_BITS:
                raise ValueError("an integer beyond 64 bits")
            return description
        if "tensor" in description:
            dtype, shape = DTYPES[description["tensor"]], description["shape"]
            return self._tensor(dtype, shape, bool(description.get("meta")))
        if "handle" in description:
            return self.resolve(Handle(int(description["handle"])))
        if "bytes" in description:
            return bytes.fromhex(description["bytes"])
        if "dict" in description:
            return {self._key(k): self.build(v, depth + 1) for k, v in description["dict"]}
        kind = list if "list" in description else tuple
        return kind(self.build(item, depth + 1) for item in description[kind.__name__])

    def _key(self, key: Any) -> str:
        if type(key) is not str:
            raise ValueError("a key that is not a string")
        return key

    def _tensor(self, dtype: torch.dtype, shape: list[int], is_meta: bool) -> Tensor:
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("a shape that is not a list of sizes")
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {len(shape)} dimensions")
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        if is_meta and num_bytes <= MAX_BYTES:
            return torch.empty(shape, dtype=dtype, device="meta")
        end = self.position + num_bytes
        if end > len(self.blob):
            raise ValueError("fewer bytes than the shapes need")
        data = bytearray(self.blob[self.position : end])
        self.position = end
        if not data:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(data, dtype=torch.uint8)
        # A bool that is neither 0 nor 1 would make two equal answers differ.
        flat = flat != 0 if dtype is torch.bool else flat.view(dtype)
        return flat.reshape(shape)
