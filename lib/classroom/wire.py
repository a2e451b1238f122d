"""The bytes that pass between a check and the code under test.

Tensors, numbers, strings, containers of them, and handles: nothing else crosses, and nothing is
ever unpickled. A message is the length of a JSON header, the header, and the raw bytes of the
tensors in the order in which the header names them.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}
MAX_BYTES = 64 * 2**20
MAX_DEPTH = 16
_LENGTH = struct.Struct(">Q")


class CannotCross(ValueError):
    """A value is of a kind, or of a size, that does not pass between check and code."""


@dataclass(frozen=True)
class Handle:
    """Stands for an object that stays on the other side.

    Attributes:
        id: Number under which the side that keeps the object finds it again.
        owner: `checks` or `subject`: who keeps the object.

    """

    id: int
    owner: str


def pack(value: Any) -> bytes:
    """Turn a value into one message.

    Args:
        value: A tensor, number, string, bool, None or `Handle`, or lists, tuples and
            string-keyed dictionaries of them.

    Raises:
        CannotCross: If something else is in it, or if it is larger than `MAX_BYTES`.

    """
    blobs: list[bytes] = []
    header = json.dumps(_describe(value, blobs, 0)).encode()
    message = _LENGTH.pack(len(header)) + header + b"".join(blobs)
    if len(message) > MAX_BYTES:
        raise CannotCross(
            f"a value may hold at most {MAX_BYTES:,} bytes, this one holds {len(message):,}"
        )
    return message


def unpack(message: bytes, resolve: Callable[[Handle], Any] = lambda handle: handle) -> Any:
    """Rebuild the value of one message; what comes back shares no memory with the original.

    Args:
        message: What `pack` made, or what claims to be that.
        resolve: Turns each handle into what it stands for on this side.

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
        reader = _Reader(memoryview(message)[start:], resolve)
        value = reader.build(json.loads(message[_LENGTH.size : start]), 0)
        if reader.position != len(reader.blob):
            raise ValueError("bytes left over")
        return value
    except CannotCross:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, struct.error, RecursionError) as error:
        raise CannotCross(f"these bytes are not a message: {error}") from None


def _describe(value: Any, blobs: list[bytes], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise CannotCross(f"a value may be nested at most {MAX_DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return _describe_tensor(value, blobs)
    if type(value) is Handle:
        return {"handle": value.id, "owner": value.owner}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_describe(item, blobs, depth + 1) for item in value]}
    if isinstance(value, dict):
        if not all(type(key) is str for key in value):
            raise CannotCross("the keys of a dictionary must be strings")
        return {"dict": [[k, _describe(v, blobs, depth + 1)] for k, v in value.items()]}
    raise CannotCross(f"{_kind_of(value)} cannot be handed over: use a torch.Tensor or a number")


def _describe_tensor(value: Tensor, blobs: list[bytes]) -> dict[str, Any]:
    name = str(value.dtype).removeprefix("torch.")
    if name not in DTYPES or value.layout is not torch.strided or value.is_quantized:
        raise CannotCross(f"a tensor of dtype {name} and layout {value.layout} cannot be read")
    if value.device.type != "cpu":
        raise CannotCross(f"a tensor on {value.device.type} cannot be read: move it to the CPU")
    if value.numel() * value.element_size() > MAX_BYTES:
        raise CannotCross(f"a tensor of shape {tuple(value.shape)} is too large to hand over")
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    blobs.append(flat.view(torch.uint8).numpy().tobytes())
    return {"tensor": name, "shape": list(value.shape)}


def _kind_of(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


@dataclass
class _Reader:
    blob: memoryview
    resolve: Callable[[Handle], Any]
    position: int = 0

    def build(self, description: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if not isinstance(description, dict):
            if isinstance(description, list):
                raise ValueError("a bare list")
            return description
        if "tensor" in description:
            return self._tensor(DTYPES[description["tensor"]], description["shape"])
        if "handle" in description:
            return self.resolve(Handle(int(description["handle"]), str(description["owner"])))
        if "dict" in description:
            return {str(k): self.build(v, depth + 1) for k, v in description["dict"]}
        kind = list if "list" in description else tuple
        return kind(self.build(item, depth + 1) for item in description[kind.__name__])

    def _tensor(self, dtype: torch.dtype, shape: list[int]) -> Tensor:
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("a shape that is no list of sizes")
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        end = self.position + num_bytes
        if end > len(self.blob):
            raise ValueError("fewer bytes than the shapes need")
        data = bytearray(self.blob[self.position : end])
        self.position = end
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
