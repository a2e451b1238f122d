"""Many feed-forward networks, of which each token uses a few: more parameters, similar cost."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from groundup.core.config import Activation, require
from groundup.core.layers import new_feed_forward


class MixtureOfExperts(nn.Module):
    """A layer that sends each token to its `top_k` experts and adds up what they return.

    A linear router scores the experts, and a softmax makes probabilities of the scores. An
    expert's output is multiplied by its probability, without which no gradient would reach the
    router. The probabilities of the chosen are not rescaled to sum to 1: with `top_k` of 1 they
    would all be 1. The layer replaces a block's feed-forward network.

    Args:
        d_model: Width of a token.
        d_ff: Width inside each expert.
        num_experts: Number of experts.
        top_k: Number of experts that each token uses.
        activation: The nonlinearity of the experts, as in `new_feed_forward`.
        bias: Whether the experts' linear layers have a bias.

    Raises:
        ValueError: If `top_k` is below 1 or above `num_experts`.

    Source:
        Shazeer et al. 2017, Outrageously Large Neural Networks, section 2,
        https://arxiv.org/abs/1701.06538; probabilities that are not rescaled: Fedus et al. 2021,
        Switch Transformers, section 2.1, https://arxiv.org/abs/2101.03961

    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        num_experts: int,
        top_k: int = 1,
        activation: Activation = "relu",
        bias: bool = True,
    ):
        super().__init__()
        rule = "top_k must be from 1 to num_experts"
        require(1 <= top_k <= num_experts, rule, top_k=top_k, num_experts=num_experts)
        self.top_k = top_k
        self.router = nn.Linear(d_model, num_experts, bias=False)
        self.experts = nn.ModuleList(
            new_feed_forward(d_model, d_ff, activation, bias) for _ in range(num_experts)
        )

    def route(
        self, x: Float[Tensor, "*batch d_model"]
    ) -> tuple[Float[Tensor, "*batch num_experts"], Bool[Tensor, "*batch num_experts"]]:
        """Return each token's probabilities of all experts, and which of them it uses."""
        probabilities = self.router(x).softmax(dim=-1)
        best = probabilities.topk(self.top_k, dim=-1).indices
        chosen = torch.zeros_like(probabilities, dtype=torch.bool).scatter(-1, best, True)
        return probabilities, chosen

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Transform each token by its own experts."""
        tokens = x.flatten(0, -2)  # (tokens, d_model)
        probabilities, chosen = self.route(tokens)
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            (own,) = chosen[:, index].nonzero(as_tuple=True)  # the tokens that use this expert
            weighted = probabilities[own, index, None] * expert(tokens[own])
            mixed = mixed.index_add(0, own, weighted)
        return mixed.view_as(x)


def balance_loss(
    probabilities: Float[Tensor, "*batch num_experts"], chosen: Bool[Tensor, "*batch num_experts"]
) -> Float[Tensor, ""]:
    """Measure how unevenly a router uses its experts: 1 if it uses all of them equally.

    The number of experts times the sum, over experts, of the fraction of choices that it got and
    its average probability. Only the probabilities have a gradient: training lowers those of
    experts that are chosen too often. Where a few choices are certain and many are close, the two
    factors can be out of step and the loss below 1.

    Args:
        probabilities: Of all experts, for each token, from `MixtureOfExperts.route`.
        chosen: Whether the token uses the expert.

    Source:
        Fedus et al. 2021, Switch Transformers, section 2.2, equations 4 to 6,
        https://arxiv.org/abs/2101.03961

    """
    num_experts = probabilities.shape[-1]
    used = chosen.to(probabilities.dtype).flatten(0, -2)
    fraction = used.mean(dim=0) / used[0].sum()
    return num_experts * (fraction * probabilities.flatten(0, -2).mean(dim=0)).sum()


@contextmanager
def balance_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the balance loss of each `MixtureOfExperts` that runs while the context is open.

    The layers keep nothing themselves: a training step runs the model inside the context and adds
    `0.01 * sum(losses)`, say, to its own loss.

    Args:
        model: Contains the layers, at any depth.

    """
    losses: list[Tensor] = []

    def collect(layer, inputs):
        losses.append(balance_loss(*layer.route(*inputs)))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, MixtureOfExperts):
                hooks.enter_context(module.register_forward_pre_hook(collect))
        yield losses
