"""What a model's weights are before training."""

import math

import torch
from torch import nn

from groundup.config import AnyConfig
from groundup.layers import FeedForward, GatedFeedForward
from groundup.multihead import MultiHeadAttention


def initialise(
    model: nn.Module,
    stacks: list[nn.ModuleList],
    config: AnyConfig,
    generator: torch.Generator | None = None,
) -> None:
    """Draw the weights so that no layer starts too loud.

    Linear maps and tables are normal with variance `2 / (5 d_model)`: a standard deviation of
    0.023 at the width of GPT-2 small, whose code has 0.02, and token vectors of variance 2/5 beside
    the sinusoids' 1/2 once they are scaled up. In a pre-norm stack each sum adds variance to
    the residual stream, so a map that writes to it is scaled by one over the root of the number
    of sums, or is zero where the configuration says so. Biases start at 0, gains at 1.

    Args:
        model: What was just built; its parameters are written over.
        stacks: Those of its parts that write to one residual stream each.
        config: Sizes and choices.
        generator: Where the numbers come from; by default torch's global state.

    Source:
        Nguyen and Salazar 2019, Transformers without Tears (SmallInit),
        https://arxiv.org/abs/1910.05895; Radford et al. 2019, Language Models are Unsupervised
        Multitask Learners, section 2.3 (residual scaling); Zhang et al. 2019, Fixup
        Initialization, section 3, https://arxiv.org/abs/1901.09321 (zero)

    """
    std = math.sqrt(2 / (5 * config.d_model))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for stack in stacks:
        attentions = [m.output for m in stack.modules() if isinstance(m, MultiHeadAttention)]
        feed_forwards = [
            m.down for m in stack.modules() if isinstance(m, FeedForward | GatedFeedForward)
        ]
        writers = attentions + feed_forwards
        for writer in writers:
            if config.zero_init_outputs:
                nn.init.zeros_(writer.weight)
            elif config.norm_order == "pre":
                own_std = std / math.sqrt(len(writers))
                nn.init.normal_(writer.weight, std=own_std, generator=generator)
