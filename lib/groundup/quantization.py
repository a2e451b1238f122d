"""Weights of eight bits: a quarter of the memory of float32, and so of the time to read them.

A model that writes one token at a time reads every weight for every token, and does little with
each. Its speed is then that of the memory, and smaller weights are faster ones.
"""

import copy
import warnings

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

    On a processor, in float32, products are taken in whole numbers as well: inputs are rounded
    to eight bits, each token by a scale of its own. Elsewhere, weights are turned back as they
    are read, which a compiler merges into the product.

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
        self._packed = None
        self._bounds = torch.ones(1, linear.in_features)
        self._bounds[0, ::2] = -1

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch out"]:
        """Map each token."""
        if x.device.type != "cpu" or x.dtype != torch.float32:
            product = F.linear(x, self.weight.to(x.dtype)) * self.step.to(x.dtype)
            return product if self.bias is None else product + self.bias.to(x.dtype)
        if self._packed is None:
            self._packed = self._pack()
        # The kernel takes one scale for all rows that it is given, which would let tokens see one
        # another. So each row comes with a largest number of 1, and one more row sets the scale.
        rows = x.reshape(-1, x.shape[-1])
        size = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
        rows = torch.cat((rows / size, self._bounds))
        product = torch.ops.quantized.linear_dynamic(rows, self._packed, True)[:-1] * size
        product = product.view(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias

    def _pack(self):
        """Lay the weights out as the kernel wants them."""
        offsets = torch.zeros(len(self.step), dtype=torch.long)
        with warnings.catch_warnings():
            # Torch is giving up tensors of this kind, but its newer kernels are three times slower
            # on processors without instructions for eight bits.
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor.*deprecated")
            packed = torch.quantize_per_channel(
                self.weight * self.step[:, None], self.step.double(), offsets, 0, torch.qint8
            )
        return torch.ops.quantized.linear_prepack(packed, None)


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
