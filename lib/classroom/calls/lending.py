"""Functions of ours that student code may call in another process, with their gradients.

The process that owns a function answers two kinds of request: its value, and the gradients of that
value (`differentiate`). The process that borrows it makes these requests inside what looks like an
ordinary function (`borrowed`). Student code can thus differentiate through a model that lives
elsewhere.

A check may lend right functions and wrong ones, and ask which is which. So what student code finds
of a function is the same for all of them: exceptions do not pass, except those raised on purpose.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# What a check lends is computed by the grader. What that takes grows with the square of a length,
# whatever the bytes are in which the length is written.
MAX_BYTES = 2**18
MAX_LENGTH = 256

Call = Callable[[Sequence[Any], Mapping[str, Any]], Any]
Differentiate = Callable[
    [Sequence[Any], Mapping[str, Any], Sequence[int], Sequence[Tensor]], Sequence[Tensor]
]


class Refused(Exception):
    """Raised on purpose by a function that is lent: student code sees the text.

    Every function that a check may lend in the place of this one must refuse the same.

    Args:
        text: What it refuses, in a sentence.
        kind: The exception that student code sees.

    """

    def __init__(self, text: str, kind: type[Exception] = ValueError):
        super().__init__(text)
        self.kind = kind


def require_small(request: Sequence[Any], num_bytes: int) -> None:
    """Require what is requested of a lent function to be small.

    Raises:
        ValueError: If it takes more than `MAX_BYTES`, or has a length beyond `MAX_LENGTH`.

    """
    if num_bytes > MAX_BYTES:
        raise ValueError(f"this function takes at most {MAX_BYTES:,} bytes")
    if _length(request) > MAX_LENGTH:
        raise ValueError(f"this function takes lengths of at most {MAX_LENGTH}")


def _length(value: Any) -> int:
    """Return the largest length in a value: of a tensor's axis, a list, a text."""
    if isinstance(value, Tensor) and value.is_meta:  # no byte of it has been sent
        return MAX_LENGTH + value.numel()
    if isinstance(value, Tensor):
        return max(value.shape, default=0)
    if isinstance(value, dict):
        return max(len(value), *map(_length, value.values()), *map(len, value), 0)
    if isinstance(value, (list, tuple)):
        return max(len(value), *map(_length, value), 0)
    return len(value) if isinstance(value, str) else 0


def neutrally(function: Callable[..., Any], request: Sequence[Any]) -> Any:
    """Compute what was requested of a lent function, and keep from the code how it failed.

    Args:
        function: Computes it.
        request: The arguments and the named ones, which an error describes, and what else it takes.

    Raises:
        Exception: The `kind` of a `Refused`; else a `RuntimeError` that is worded alike for all
            functions.

    """
    try:
        return function(*request)
    except Refused as reason:
        error = reason.kind(str(reason))
    except Exception:
        error = RuntimeError(f"this function cannot compute with {_described(request[:2])}")
    raise error  # outside, so that it carries no other exception


def _described(value: Any) -> str:
    match value:
        case Tensor():
            return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        case dict():
            return ", ".join(f"{key}={_described(item)}" for key, item in value.items())
        case list() | tuple():
            return ", ".join(filter(None, map(_described, value)))
    return repr(value)[:80]


def differentiate(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    wrt: Sequence[int],
    cotangents: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Differentiate `sum(output * cotangent)` of one call.

    Args:
        function: What is called; returns a tensor, or a tuple or list of tensors.
        args: Its positional arguments.
        kwargs: Its named arguments.
        wrt: Which of the positional arguments to differentiate by; tensors.
        cotangents: One per output, of its shape.

    Returns:
        One gradient per entry of `wrt`, zero where the result does not depend on it.

    """
    given = [
        value.detach().clone().requires_grad_() if i in wrt else value
        for i, value in enumerate(args)
    ]
    leaves = [given[i] for i in wrt]
    with torch.enable_grad():
        outputs = function(*given, **kwargs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    pairs = zip(outputs, cotangents, strict=True)
    rooted = [(output, by) for output, by in pairs if output.requires_grad]
    if not rooted:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    roots, by = zip(*rooted, strict=True)
    found = torch.autograd.grad(roots, leaves, by, allow_unused=True, materialize_grads=True)
    return tuple(gradient.detach() for gradient in found)


def borrowed(call: Call, gradients: Differentiate) -> Callable[..., Any]:
    """Return a function whose values and gradients are computed elsewhere.

    Args:
        call: Requests the result of a call.
        gradients: Requests its gradients, as `differentiate` returns them.

    Returns:
        A function of the same arguments. Tensors among its positional arguments may require
        gradients: if all its results are floating-point tensors, these then carry gradients, in
        reverse mode and once (`backward`, `torch.autograd.grad`, `torch.func.vjp` and `jacrev`).

    """

    def function(*args: Any, **kwargs: Any) -> Any:
        positions = [i for i, value in enumerate(args) if _is_real(value)]
        if not positions:
            return call(args, kwargs)
        request = _Request(call, gradients, args, kwargs, positions)
        outputs = _Value.apply(request, *(args[i] for i in positions))
        return request.in_form(outputs)

    return function


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class _Request:
    """One call of a borrowed function, whose gradients may be requested later."""

    def __init__(
        self,
        call: Call,
        gradients: Differentiate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        positions: Sequence[int],
    ):
        self._call = call
        self._gradients = gradients
        self._args = [None if i in positions else value for i, value in enumerate(args)]
        self._kwargs = kwargs
        self._positions = positions
        self._result: Any = None

    def value(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the results as a tuple of tensors, empty if they carry no gradients."""
        self._result = self._call(self._with(tensors), self._kwargs)
        return self._outputs()

    def in_form(self, outputs: Sequence[Tensor]) -> Any:
        """Return results that went through autograd in the form that the function gave them."""
        if not outputs:
            return self._result
        return outputs[0] if isinstance(self._result, Tensor) else type(self._result)(outputs)

    def gradients(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return one gradient per tensor."""
        return tuple(
            self._gradients(self._with(tensors), self._kwargs, self._positions, tuple(cotangents))
        )

    def _outputs(self) -> tuple[Tensor, ...]:
        found = self._result
        if isinstance(found, Tensor):
            found = (found,)
        if isinstance(found, (tuple, list)) and all(map(_is_real, found)):
            return tuple(found)
        return ()

    def _with(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        args = list(self._args)
        for position, tensor in zip(self._positions, tensors, strict=True):
            args[position] = tensor
        return tuple(args)


def _one_by_one(compute: Callable[..., Any], info: Any, in_dims: Any, tensors: Any) -> Any:
    """Replace `vmap` by a loop: a borrowed function takes one example at a time."""
    rows = []
    for index in range(info.batch_size):
        row = [
            tensor if dim is None else tensor.select(dim, index)
            for tensor, dim in zip(tensors, in_dims, strict=True)
        ]
        rows.append(compute(*row))
    outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    return outputs, (0,) * len(outputs)


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(request: _Request, *tensors: Tensor) -> tuple[Tensor, ...]:
        return request.value(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.request, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        number = len(cotangents)
        return None, *_Gradient.apply(ctx.request, number, *cotangents, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: _Request, *tensors: Tensor) -> Any:
        return _one_by_one(lambda *row: _Value.apply(request, *row), info, in_dims[1:], tensors)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(request: _Request, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return request.gradients(tensors[number:], tensors[:number])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise RuntimeError("a function that the check passes in can be differentiated only once")

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: _Request, number: int, *tensors: Tensor) -> Any:
        return _one_by_one(
            lambda *row: _Gradient.apply(request, number, *row), info, in_dims[2:], tensors
        )
