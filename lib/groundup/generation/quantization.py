"""Quantisation of weights to int8: a quarter of float32's memory and memory traffic.

Generating one token at a time reads every weight once per token and computes little with each, so
memory bandwidth limits the speed, and smaller weights are faster.
"""

import copy
import functools

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn


def quantize_rows(
    weight: Float[Tensor, "out features"],
) -> tuple[Int8[Tensor, "out features"], Float[Tensor, " out"]]:
    """Quantise each row to integers from -127 to 127 with a scale (step size) of its own.

    A scale per row is applied to the output, so it costs almost nothing, and one row with large
    weights does not make all others coarse.

    Args:
        weight: Weight of a linear layer, one row per output.

    Returns:
        The integers, and the step of each row: their product is the weight to within half a
        step. A row of zeros has step 1.

    Source:
        Dettmers et al. 2022, LLM.int8(), section 2.1 (absolute maximum; row by row in section
        3.1), https://arxiv.org/abs/2208.07339

    """
    step = weight.abs().amax(dim=1) / 127
    step = torch.where(step > 0, step, torch.ones_like(step))
    return (weight / step[:, None]).round().to(torch.int8), step


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, for inference only.

    On a CPU with the right instructions (AVX512-VNNI, AMX), in float32, the product is computed in
    integers too: inputs are quantised to int8, with a scale per token, so that no token depends on
    another. This is fastest in a compiled step, which fuses the rounding into one pass. Otherwise
    weights are dequantised as they are read, which a compiler fuses into the product.

    Args:
        linear: The layer to quantise; not changed.

    """

    weight: Tensor
    step: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight, step = quantize_rows(linear.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("step", step)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias)
        self._in_integers = _sums_are_exact()

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch out"]:
        """Apply the layer to each token."""
        if not self._in_integers or x.device.type != "cpu" or x.dtype != torch.float32:
            product = F.linear(x, self.weight.to(x.dtype)) * self.step.to(x.dtype)
        else:
            rows = x.reshape(-1, x.shape[-1])
            step = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
            numbers = (rows / step).round().to(torch.int8)
            product = torch.ops.aten._int_mm(numbers, self.weight.T) * step * self.step
            product = product.view(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias.to(x.dtype)


@functools.cache
def _sums_are_exact() -> bool:
    """Try the largest numbers: without VNNI, pairs of products are added in 16 bits and cut off."""
    largest = torch.full((32, 64), 127, dtype=torch.int8)
    return bool((torch.ops.aten._int_mm(largest, largest.T) == 64 * 127**2).all())


def quantize(model: nn.Module) -> nn.Module:
    """Copy a model with int8 weights in every float32 linear layer.

    Embeddings, norms and linear layers of other precisions are only copied.

    Args:
        model: A module that contains linear layers; not changed.

    Returns:
        A model for inference, in evaluation mode.

    Raises:
        ValueError: If the model contains no linear layer in float32.

    """
    quantized = copy.deepcopy(model).eval().requires_grad_(False)
    replaced = 0
    for parent in list(quantized.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.weight.dtype == torch.float32:
                setattr(parent, name, Int8Linear(child))
                replaced += 1
    if not replaced:
        raise ValueError("a model to quantize must contain linear layers in float32, got none")
    return quantized
