"""Functions of ours that student code may call: values cross, and so do gradients.

Calling a lent function sends copies of the arguments and brings copies of the results;
differentiating through it sends cotangents and brings gradients. So student code can take a model
apart by autograd, wherever that model lives.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Cross = Callable[[Any], Any]


def lent(function: Callable[..., Any], cross: Cross) -> Callable[..., Any]:
    """Return what the student's side may call in place of `function`.

    Args:
        function: Ours; may be differentiable.
        cross: Copies a value to the other side, as `unpack(pack(value))` does.

    Returns:
        A function of the same arguments. Tensors among its positional arguments may require
        gradients: if all its results are floating-point tensors, these then carry gradients, in
        reverse mode and once (`backward`, `torch.autograd.grad`, `torch.func.vjp` and `jacrev`).

    """

    def call(*args: Any, **kwargs: Any) -> Any:
        places = [i for i, value in enumerate(args) if _is_real(value)]
        tensors = [args[i] for i in places]
        others = [None if i in places else value for i, value in enumerate(args)]
        job = _Job(function, cross, others, kwargs, places)
        outputs = _Forward.apply(job, *tensors)
        return job.rebuild(outputs)

    return call


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class _Job:
    """One call of a lent function, to be repeated when gradients are asked for."""

    def __init__(
        self,
        function: Callable[..., Any],
        cross: Cross,
        others: Sequence[Any],
        kwargs: dict[str, Any],
        places: Sequence[int],
    ):
        self._function = function
        self._cross = cross
        self._others = others
        self._kwargs = kwargs
        self._places = places
        self._kind: type | None = None

    def values(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Call the function; return its results, or one empty tensor if they have no gradients."""
        result = self._cross(self._run(self._cross(tuple(tensors))))
        self._kind = type(result)
        outputs = (result,) if self._kind is Tensor else result
        if self._kind not in (Tensor, tuple, list) or not all(map(_is_real, outputs)):
            self._kind, self._result = None, result
            return (torch.empty(0),)
        return tuple(outputs)

    def rebuild(self, outputs: tuple[Tensor, ...]) -> Any:
        """Give the results the form in which the function returned them."""
        if self._kind is None:
            return self._result
        return outputs[0] if self._kind is Tensor else self._kind(outputs)

    def gradients(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Differentiate `sum(output * cotangent)` by the tensors."""
        if self._kind is None:
            return tuple(torch.zeros_like(tensor) for tensor in tensors)
        leaves = [leaf.requires_grad_() for leaf in self._cross(tuple(tensors))]
        with torch.enable_grad():
            outputs = self._run(leaves)
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        pairs = zip(outputs, self._cross(tuple(cotangents)), strict=True)
        rooted = [(output, by) for output, by in pairs if output.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(leaves)
        if rooted:
            ours, cotangents = zip(*rooted, strict=True)
            found = torch.autograd.grad(ours, leaves, cotangents, allow_unused=True)
        zeros = [torch.zeros_like(leaf) for leaf in leaves]
        return self._cross(
            tuple(z if g is None else g.detach() for g, z in zip(found, zeros, strict=True))
        )

    def _run(self, tensors: Sequence[Tensor]) -> Any:
        args = list(self._cross(tuple(self._others)))
        for place, tensor in zip(self._places, tensors, strict=True):
            args[place] = tensor
        return self._function(*args, **self._cross(self._kwargs))


def _one_by_one(compute: Callable[..., Any], info: Any, in_dims: Any, tensors: Any) -> Any:
    """Stand in for `vmap`: a lent function takes one example at a time."""
    rows = [
        compute(
            *(
                tensor if dim is None else tensor.select(dim, index)
                for tensor, dim in zip(tensors, in_dims, strict=True)
            )
        )
        for index in range(info.batch_size)
    ]
    outputs = tuple(torch.stack(column) for column in zip(*rows, strict=True))
    return outputs, (0,) * len(outputs)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(job: _Job, *tensors: Tensor) -> tuple[Tensor, ...]:
        return job.values(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.job, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return None, *_Backward.apply(ctx.job, len(cotangents), *cotangents, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, job: _Job, *tensors: Tensor) -> Any:
        return _one_by_one(lambda *row: _Forward.apply(job, *row), info, in_dims[1:], tensors)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(job: _Job, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return job.gradients(tensors[count:], tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise RuntimeError("a lent function can be differentiated once, not twice")

    @staticmethod
    def vmap(info: Any, in_dims: Any, job: _Job, count: int, *tensors: Tensor) -> Any:
        return _one_by_one(
            lambda *row: _Backward.apply(job, count, *row), info, in_dims[2:], tensors
        )
