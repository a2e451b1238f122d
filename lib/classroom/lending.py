"""Functions of ours that student code may call: values cross, and so do gradients.

The side that owns a function answers two kinds of request: its value, and the gradients of that
value (`differentiate`). The side that borrows it makes these requests behind what looks like an
ordinary function (`borrowed`). So student code can take a model apart by autograd, wherever that
model lives.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Call = Callable[[Sequence[Any], Mapping[str, Any]], Any]
Differentiate = Callable[
    [Sequence[Any], Mapping[str, Any], Sequence[int], Sequence[Tensor]], Sequence[Tensor]
]


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
    """Return a function whose values and gradients are asked for elsewhere.

    Args:
        call: Asks for the result of a call.
        gradients: Asks for its gradients, as `differentiate` gives them.

    Returns:
        A function of the same arguments. Tensors among its positional arguments may require
        gradients: if all its results are floating-point tensors, these then carry gradients, in
        reverse mode and once (`backward`, `torch.autograd.grad`, `torch.func.vjp` and `jacrev`).

    """

    def function(*args: Any, **kwargs: Any) -> Any:
        places = [i for i, value in enumerate(args) if _is_real(value)]
        if not places:
            return call(args, kwargs)
        request = _Request(call, gradients, args, kwargs, places)
        outputs = _Value.apply(request, *(args[i] for i in places))
        return request.in_form(outputs)

    return function


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class _Request:
    """One call of a borrowed function, whose gradients may be asked for later."""

    def __init__(
        self,
        call: Call,
        gradients: Differentiate,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        places: Sequence[int],
    ):
        self._call = call
        self._gradients = gradients
        self._args = [None if i in places else value for i, value in enumerate(args)]
        self._kwargs = kwargs
        self._places = places
        self._result: Any = None

    def value(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the results as autograd wants them: none if they carry no gradients."""
        self._result = self._call(self._with(tensors), self._kwargs)
        return self._outputs()

    def in_form(self, outputs: Sequence[Tensor]) -> Any:
        """Give results that went through autograd the form in which the function returned them."""
        if not outputs:
            return self._result
        return outputs[0] if isinstance(self._result, Tensor) else type(self._result)(outputs)

    def gradients(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return one gradient per tensor."""
        return tuple(
            self._gradients(self._with(tensors), self._kwargs, self._places, tuple(cotangents))
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
        for place, tensor in zip(self._places, tensors, strict=True):
            args[place] = tensor
        return tuple(args)


def _one_by_one(compute: Callable[..., Any], info: Any, in_dims: Any, tensors: Any) -> Any:
    """Stand in for `vmap`: a borrowed function takes one example at a time."""
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
        raise RuntimeError("a lent function can be differentiated once, not twice")

    @staticmethod
    def vmap(info: Any, in_dims: Any, request: _Request, number: int, *tensors: Tensor) -> Any:
        return _one_by_one(
            lambda *row: _Gradient.apply(request, number, *row), info, in_dims[2:], tensors
        )
