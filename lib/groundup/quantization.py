"""Weights of eight bits: a quarter of the memory of float32, and so of the time to read them.

A model that writes one token at a time reads every weight for every token, and does little with
each. Its speed is then that of the memory, and smaller weights are faster ones.
"""

import copy

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn


def quantize_rows(
    weight: Float[Tensor, "out features"],
) -> tuple[Int8[Tensor, "out features"], Float[Tensor, " out"]]:
    """Write each row as whole numbers from -127 to 127 times a step of its own.

    A row of its own scale costs nothing at use, because it multiplies the output, and it keeps
    one large row from making all others coarse.

    Args:
        weight: Of a linear map, one row per output.

    Returns:
        The whole numbers, and the step of each row: their product is the weight to within half a
        step. A row of zeros has step 1.

    Source:
        Dettmers et al. 2022, LLM.int8(), section 2.1 (absolute maximum; row by row in section
        3.1), https://arxiv.org/abs/2208.07339

    """
    step = weight.abs().amax(dim=1) / 127
    step = torch.where(step > 0, step, torch.ones_like(step))
    return (weight / step[:, None]).round().to(torch.int8), step


class Int8Linear(nn.Module):
    """A linear map whose weights are whole numbers of eight bits. For inference alone.

    On a processor, in float32, products are taken in whole numbers as well: inputs are rounded to
    eight bits, each token by a scale of its own, so that no token sees another. That is fast where
    there are instructions for it (AVX512-VNNI, AMX), and fastest in a compiled step, which merges
    the rounding into one pass. Elsewhere, weights are turned back as they are read, which a
    compiler merges into the product.

    Args:
        linear: What to take the weights from; it stays as it is.

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

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch out"]:
        """Map each token."""
        if x.device.type != "cpu" or x.dtype != torch.float32:
            product = F.linear(x, self.weight.to(x.dtype)) * self.step.to(x.dtype)
        else:
            rows = x.reshape(-1, x.shape[-1])
            step = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
            numbers = (rows / step).round().to(torch.int8)
            product = torch.ops.aten._int_mm(numbers, self.weight.T) * step * self.step
            product = product.view(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias.to(x.dtype)


def quantize(model: nn.Module) -> nn.Module:
    """Copy a model with every linear map in eight bits; embeddings and norms stay as they are.

    Args:
        model: Any module; it stays as it is.

    Returns:
        A model for inference, in evaluation mode.

    Raises:
        ValueError: If the model has no linear map in float32.

    """
    quantized = copy.deepcopy(model).eval().requires_grad_(False)
    replaced = 0
    for parent in list(quantized.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.weight.dtype == torch.float32:
                setattr(parent, name, Int8Linear(child))
                replaced += 1
    if not replaced:
        raise ValueError("a model to quantize needs linear maps in float32, got none")
    return quantized
