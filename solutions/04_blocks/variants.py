"""Right answers of chapter 04, differently written: graders must give each full points."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Variant

# 4.1 ------------------------------------------------------------------------------------------


class TorchFunction(Variant, exercise="layer_norm"):
    """Torch's own."""

    def layer_norm(x, gain, bias, eps=1e-5):
        return F.layer_norm(x, gain.shape, gain, bias, eps)


class TorchModule(Variant, exercise="layer_norm"):
    """Torch's module without parameters of its own, then gain and bias."""

    def layer_norm(x, gain, bias, eps=1e-5):
        bare = nn.LayerNorm(x.shape[-1], eps=eps, elementwise_affine=False)
        return torch.addcmul(bias, bare(x), gain)


class TokenByToken(Variant, exercise="layer_norm"):
    """A loop over tokens, with sums."""

    def layer_norm(x, gain, bias, eps=1e-5):
        width = x.shape[-1]
        rows = []
        for token in x.reshape(-1, width).unbind():
            mean = token.sum() / width
            variance = ((token - mean) ** 2).sum() / width
            rows.append(gain * (token - mean) * (variance + eps) ** -0.5 + bias)
        return torch.stack(rows).view(x.shape)


class VarianceAndMean(Variant, exercise="layer_norm"):
    """Both statistics in one call."""

    def layer_norm(x, gain, bias, eps=1e-5):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, unbiased=False)
        return bias + gain * (x - mean).mul((variance + eps).rsqrt())


# 4.5 ------------------------------------------------------------------------------------------


class TorchAndIdentity(Variant, exercise="rms_norm"):
    """Torch's own; the matrix is what centring does to the identity."""

    def rms_norm(x, gain, eps=1e-5):
        return F.rms_norm(x, gain.shape, gain, eps)

    def centring_matrix(d_model):
        identity = torch.eye(d_model).double()
        return identity - identity.mean(dim=1, keepdim=True)


class ByTheLength(Variant, exercise="rms_norm"):
    """The mean square is the squared length over the width; an outer product."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / len(gain)
        return gain * x / (mean_square + eps) ** 0.5

    def centring_matrix(d_model):
        direction = torch.ones(d_model, dtype=torch.float64) / math.sqrt(d_model)
        return torch.eye(d_model, dtype=torch.float64) - torch.outer(direction, direction)


class EntryByEntry(Variant, exercise="rms_norm"):
    """Einsum, and a list of lists."""

    def rms_norm(x, gain, eps=1e-5):
        mean_square = torch.einsum("...d,...d->...", x, x) / x.shape[-1]
        return torch.einsum("...d,d,...->...d", x, gain, torch.rsqrt(mean_square + eps))

    def centring_matrix(d_model):
        rows = [[(i == j) - 1 / d_model for j in range(d_model)] for i in range(d_model)]
        return torch.tensor(rows, dtype=torch.float64)


# 4.2 ------------------------------------------------------------------------------------------


class TorchActivations(Variant, exercise="feed_forward"):
    """Torch's activations and linear maps."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        bends = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": nn.GELU("tanh")}
        return F.linear(bends[activation](F.linear(x, w_up.T, b_up)), w_down.T, b_down)

    def swiglu(x, w_gate, w_up, w_down):
        return F.linear(F.silu(F.linear(x, w_gate.T)) * F.linear(x, w_up.T), w_down.T)

    def gated_width(d_ff, multiple):
        width = multiple
        while 3 * width < 2 * d_ff:
            width += multiple
        return width


class GateAndUpTogether(Variant, exercise="feed_forward"):
    """One product for gate and up; the normal distribution from torch; ceil."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        z = torch.einsum("...d,df->...f", x, w_up) + b_up
        if activation == "relu":
            share = (z > 0).to(z.dtype)
        elif activation == "gelu":
            share = torch.special.ndtr(z)
        else:
            share = torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z.pow(3)))
        return torch.einsum("...f,fd->...d", z * share, w_down) + b_down

    def swiglu(x, w_gate, w_up, w_down):
        gate, up = (x @ torch.cat([w_gate, w_up], dim=1)).chunk(2, dim=-1)
        return up * gate / (1 + torch.exp(-gate)) @ w_down

    def gated_width(d_ff, multiple):
        return math.ceil(2 * d_ff / (3 * multiple)) * multiple


class TokenByToken(Variant, exercise="feed_forward"):
    """Each token by itself, because that is what the network does."""

    def feed_forward(x, w_up, b_up, w_down, b_down, activation):
        def think(token):
            hidden = torch.mv(w_up.T, token) + b_up
            if activation == "relu":
                hidden = torch.where(hidden > 0, hidden, 0.0)
            else:
                kind = "none" if activation == "gelu" else "tanh"
                hidden = F.gelu(hidden, approximate=kind)
            return torch.mv(w_down.T, hidden) + b_down

        return torch.stack([torch.stack([think(t) for t in sequence]) for sequence in x])

    def swiglu(x, w_gate, w_up, w_down):
        rows = [F.silu(t @ w_gate) * (t @ w_up) @ w_down for t in x.flatten(0, 1)]
        return torch.stack(rows).view_as(x)

    def gated_width(d_ff, multiple):
        enough, rest = divmod(2 * d_ff, 3 * multiple)
        return torch.tensor((enough + (rest > 0)) * multiple)


# 4.3 ------------------------------------------------------------------------------------------


class OneLineForBothOrders(Variant, exercise="TransformerBlock"):
    """The norm before or behind is chosen where each sub-layer is added."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.pre = norm == "pre"
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.attention_norm = nn.LayerNorm(d_model)
            self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
            self.feed_forward_norm = nn.LayerNorm(d_model)

        def add(self, x, norm, sublayer):
            return x + sublayer(norm(x)) if self.pre else norm(x + sublayer(x))

        def forward(self, x, mask=None):
            hidden = None if mask is None else mask.logical_not()
            x = self.add(
                x, self.attention_norm, lambda t: self.attention(t, t, t, attn_mask=hidden)[0]
            )
            return self.add(x, self.feed_forward_norm, lambda t: self.down(nn.GELU()(self.up(t))))


class AttentionByHand(Variant, exercise="TransformerBlock"):
    """Torch's module holds the weights of attention; the heads are cut here."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.num_heads, self.norm = num_heads, norm
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.attention_norm = nn.LayerNorm(d_model)
            self.feed_forward_norm = nn.LayerNorm(d_model)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)

        def attend(self, x, mask):
            mixed = F.linear(x, self.attention.in_proj_weight, self.attention.in_proj_bias)
            query, key, value = (
                part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for part in mixed.chunk(3, dim=-1)
            )
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            return self.attention.out_proj(found.transpose(1, 2).flatten(2))

        def think(self, x):
            z = self.up(x)
            return self.down(z * (1 + torch.erf(z / math.sqrt(2))) / 2)

        def forward(self, x, mask=None):
            if self.norm == "post":
                attended = self.attention_norm(x + self.attend(x, mask))
                return self.feed_forward_norm(attended + self.think(attended))
            residual = x
            x = self.attend(self.attention_norm(x), mask)
            x = residual + x
            residual = x
            x = self.think(self.feed_forward_norm(x))
            return residual + x


class FloatMask(Variant, exercise="TransformerBlock"):
    """A mask of zeros and minus infinities, and norms and maps through functions."""

    class TransformerBlock(nn.Module):
        def __init__(self, d_model, num_heads, d_ff, norm="pre"):
            super().__init__()
            self.width, self.is_post = d_model, norm == "post"
            for name in ("attention_norm", "feed_forward_norm"):
                self.add_module(name, nn.LayerNorm(d_model))
            self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.up = nn.Linear(d_model, d_ff)
            self.down = nn.Linear(d_ff, d_model)
            self.drop = nn.Dropout(0.0)

        def forward(self, x, mask=None):
            bias = None
            if mask is not None:
                bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, -math.inf)
            for norm in (self.attention_norm, self.feed_forward_norm):
                read = x if self.is_post else norm(x)
                if norm is self.attention_norm:
                    given, _ = self.attention(read, read, read, attn_mask=bias)
                else:
                    given = F.gelu(read @ self.up.weight.T + self.up.bias)
                    given = given @ self.down.weight.T + self.down.bias
                x = x + self.drop(given)
                if self.is_post:
                    x = norm(x)
            return x


# 4.6 ------------------------------------------------------------------------------------------


class StreamsKept(Variant, exercise="stack_with_final_norm"):
    """All states of the stream are kept, and measured in the end."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        streams = [x]
        for i, (up, down) in enumerate(zip(w_up, w_down, strict=True)):
            read = F.layer_norm(streams[-1], gains[i].shape, gains[i], biases[i])
            streams.append(streams[-1] + F.relu(read @ up) @ down)
        output = F.layer_norm(streams[-1], gains[-1].shape, gains[-1], biases[-1])
        return output, torch.stack(streams).square().mean(dim=(1, 2, 3)).sqrt()


class NormByHand(Variant, exercise="stack_with_final_norm"):
    """A norm written out, numbers instead of tensors while measuring."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        def norm(i):
            variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
            return (x - mean) / (variance + 1e-5).sqrt() * gains[i] + biases[i]

        def size():
            return math.sqrt(float(x.pow(2).sum()) / x.numel())

        sizes = [size()]
        for i in range(len(w_up)):
            x = x + torch.clamp(norm(i) @ w_up[i], min=0) @ w_down[i]
            sizes.append(size())
        return norm(-1), torch.tensor(sizes, dtype=x.dtype)


class Recursion(Variant, exercise="stack_with_final_norm"):
    """One sub-layer, then the rest of the stack."""

    def stack_with_final_norm(x, gains, biases, w_up, w_down):
        size = (x.norm() / x.numel() ** 0.5).reshape(1)
        read = F.layer_norm(x, (x.shape[-1],), gains[0], biases[0])
        if len(w_up) == 0:
            return read, size
        x = x + F.relu(read @ w_up[0]) @ w_down[0]
        output, sizes = stack_with_final_norm(x, gains[1:], biases[1:], w_up[1:], w_down[1:])
        return output, torch.cat([size, sizes])


# 4.7 ------------------------------------------------------------------------------------------


class Powers(Variant, exercise="init_std"):
    """Everything as a power."""

    def linear_std(fan_in):
        return fan_in ** (-1 / 2)

    def uniform_bound(fan_in):
        return (3 * 2 / fan_in) ** 0.5

    def init_std(fan_in, num_layers):
        return (fan_in * num_layers * 2) ** -0.5

    def stream_variance(fan_in, num_layers, std):
        added = fan_in * std * std
        return 1 + added * num_layers + added * num_layers


class Tensors(Variant, exercise="init_std"):
    """Tensors, and torch's table of gains."""

    def linear_std(fan_in):
        return torch.tensor(fan_in, dtype=torch.float64).rsqrt()

    def uniform_bound(fan_in):
        std = nn.init.calculate_gain("relu") * linear_std(fan_in)
        return std * math.sqrt(3)

    def init_std(fan_in, num_layers):
        return linear_std(fan_in) * linear_std(2 * num_layers)

    def stream_variance(fan_in, num_layers, std):
        return torch.tensor([1.0] + 2 * num_layers * [fan_in * std**2], dtype=torch.float64).sum()


class OneFromTheOther(Variant, exercise="init_std"):
    """The share of each writer first; the sum step by step."""

    def linear_std(fan_in):
        return math.sqrt(1 / fan_in)

    def uniform_bound(fan_in):
        variance = 2 / fan_in
        return math.sqrt(3 * variance)

    def init_std(fan_in, num_layers):
        share = 1 / (2 * num_layers)
        return math.sqrt(share) * linear_std(fan_in)

    def stream_variance(fan_in, num_layers, std):
        variance = 1.0
        for _ in range(num_layers):
            for _ in ("attention", "feed-forward"):
                variance += fan_in * std**2
        return variance


# 4.8 ------------------------------------------------------------------------------------------


class Factors(Variant, exercise="dropout_block"):
    """The choice becomes a tensor of factors; in evaluation all are 1."""

    def dropout(x, keep, rate, training):
        factor = keep.to(x.dtype) / (1 - rate) if training else torch.ones_like(x)
        return factor * x

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        thought = F.relu(F.layer_norm(x, gain.shape, gain, bias) @ w_up) @ w_down
        return dropout(thought, keep, rate, training) + x


class MaskedFill(Variant, exercise="dropout_block"):
    """Zeros filled in, a norm written out, one expression for both modes."""

    def dropout(x, keep, rate, training):
        share = 1 - rate * training
        return x.masked_fill(~keep & torch.tensor(training), 0) / share

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        read = (x - mean) * torch.rsqrt(variance + 1e-5) * gain + bias
        given = torch.clamp(read @ w_up, min=0) @ w_down
        return x + dropout(given, keep, rate, training)


class CopyAndAssign(Variant, exercise="dropout_block"):
    """A copy with zeros written into it; the block adds only where something stays."""

    def dropout(x, keep, rate, training):
        if not training:
            return x.clone()
        left = x * (1 / (1 - rate))
        left[~keep] = 0
        return left

    def dropout_block(x, keep, rate, gain, bias, w_up, w_down, training):
        given = F.relu(torch.matmul(F.layer_norm(x, gain.shape, gain, bias), w_up)) @ w_down
        if not training:
            return x + given
        return torch.where(keep, x + given / (1 - rate), x)


# 4.11 -----------------------------------------------------------------------------------------


class DiagonalMatrix(Variant, exercise="fold_norm"):
    """Products of matrices."""

    def fold_norm(gain, bias, weight, linear_bias):
        return weight @ torch.diag(gain), torch.addmv(linear_bias, weight, bias)

    def centre_writer(weight, linear_bias):
        width = len(linear_bias)
        centre = torch.eye(width, dtype=weight.dtype) - 1 / width
        return centre @ weight, centre @ linear_bias


class AskTheOldMap(Variant, exercise="fold_norm"):
    """The new numbers are found by sending tokens through the old map."""

    def fold_norm(gain, bias, weight, linear_bias):
        constant = F.linear(bias, weight, linear_bias)
        tokens = torch.diag(gain) + bias
        return (F.linear(tokens, weight, linear_bias) - constant).T, constant

    def centre_writer(weight, linear_bias):
        def centred(written):
            return written - written.mean(dim=-1, keepdim=True)

        return centred(weight.T).T, centred(linear_bias)


class ColumnByColumn(Variant, exercise="fold_norm"):
    """Loops."""

    def fold_norm(gain, bias, weight, linear_bias):
        new_weight, new_bias = weight.clone(), linear_bias.clone()
        for i in range(len(gain)):
            new_weight[:, i] *= gain[i]
            new_bias += weight[:, i] * bias[i]
        return [new_weight, new_bias]

    def centre_writer(weight, linear_bias):
        columns = [column - column.mean() for column in weight.unbind(dim=1)]
        return torch.stack(columns, dim=1), linear_bias - linear_bias.sum() / len(linear_bias)


# 4.10 -----------------------------------------------------------------------------------------


class AgainstTorch(Variant, exercise="check_layer_norm"):
    """Torch as the judge, double precision, several epsilons."""

    def check_layer_norm(layer_norm):
        torch.manual_seed(0)
        for eps in (1e-5, 1e-2, 2.0):
            x = 3 * torch.randn(4, 5, 3).double() + torch.randn(4, 5, 1)
            gain, bias = torch.randn(2, 3).double()
            off = layer_norm(x, gain, bias, eps) - F.layer_norm(x, (3,), gain, bias, eps)
            assert off.abs().max() < 1e-3


class ByHand(Variant, exercise="check_layer_norm"):
    """Tokens of two features, worked out on paper: plus and minus one over a root."""

    def check_layer_norm(layer_norm):
        x = torch.tensor([[[1.0, 3.0], [10.0, 4.0]], [[0.0, 0.0], [-2.0, 0.0]]])
        gain, bias = torch.tensor([2.0, 5.0]), torch.tensor([0.5, -7.0])
        half = torch.tensor([[1.0, -3.0], [0.0, 1.0]])
        for eps in (1e-5, 1.0):
            normed = half / (half**2 + eps) ** 0.5
            wanted = torch.stack([-2 * normed + 0.5, 5 * normed - 7.0], dim=-1)
            if not torch.allclose(layer_norm(x, gain, bias, eps), wanted, atol=1e-3):
                raise AssertionError(f"not what it is on paper, at eps={eps}")


class ByLaws(Variant, exercise="check_layer_norm"):
    """What must come out, and what must not matter."""

    def check_layer_norm(layer_norm):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2, 3, 4, generator=generator).double()
        one, zero = torch.ones(4).double(), torch.zeros(4).double()
        gain, bias = one + torch.arange(4), 1.0 - torch.arange(4).double()

        bare = layer_norm(x, one, zero, 1e-9)
        assert bare.mean(dim=-1).abs().max() < 1e-4
        assert (bare.square().mean(dim=-1) - 1).abs().max() < 1e-3
        assert torch.allclose(layer_norm(x, gain, bias, 1e-9), bare * gain + bias, atol=1e-4)

        # A token by itself gives what it gives in company.
        for b in range(2):
            for t in range(3):
                alone = layer_norm(x[b : b + 1, t : t + 1], one, zero, 1e-9)
                assert torch.allclose(alone[0, 0], bare[b, t], atol=1e-4)

        # With variance v, the result is smaller by the root of v / (v + eps).
        variance = x.var(dim=-1, keepdim=True, correction=0)
        shrunk = bare * (variance / (variance + 1.0)).sqrt()
        assert torch.allclose(layer_norm(x, one, zero, 1.0), shrunk, atol=1e-4)


# 4.9 ------------------------------------------------------------------------------------------


class OneLineEach(Variant, exercise="mended_block"):
    """Sums in place of steps, names in place of numbers, a mask instead of a flag."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def attend(query, source, mask=None):
            scores = query @ source.mT / math.sqrt(query.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ source

        def norm(tokens, gain, bias):
            return F.layer_norm(tokens, gain.shape, gain, bias)

        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        read = norm(x, gains[0], biases[0])
        x = x + attend(read, read, past)
        x = x + attend(norm(x, gains[1], biases[1]), memory)
        hidden = (norm(x, gains[2], biases[2]) @ w_up).clamp(min=0)
        return x + hidden @ w_down


class PublishedAndMended(Variant, exercise="mended_block"):
    """The published lines, with four changes."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        def norm(tokens, i):
            mean = tokens.mean(dim=-1, keepdim=True)
            variance = (tokens - mean).square().mean(dim=-1, keepdim=True)
            return (tokens - mean) / torch.sqrt(variance + 1e-5) * gains[i] + biases[i]

        attend = F.scaled_dot_product_attention
        y1 = norm(x, 0)
        y2 = x + attend(y1, y1, y1, is_causal=True)
        y3 = norm(y2, 1)
        y4 = y2 + attend(y3, memory, memory)
        y5 = torch.relu(norm(y4, 2) @ w_up) @ w_down
        return y4 + y5


class ListOfSublayers(Variant, exercise="mended_block"):
    """Three sub-layers in a list, each behind its norm."""

    def mended_block(x, memory, gains, biases, w_up, w_down):
        sublayers = (
            lambda t: F.scaled_dot_product_attention(t, t, t, is_causal=True),
            lambda t: F.scaled_dot_product_attention(t, memory, memory),
            lambda t: F.relu(t @ w_up) @ w_down,
        )
        for sublayer, gain, bias in zip(sublayers, gains, biases, strict=True):
            x = x + sublayer(F.layer_norm(x, x.shape[-1:], gain, bias))
        return x


# 4.4 ------------------------------------------------------------------------------------------


class AllByHand(Variant, exercise="swapped_sublayer"):
    """Norm, GELU and maps written out."""

    def swapped_sublayer(x, weights):
        centred = x - x.mean(dim=-1, keepdim=True)
        read = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)
        read = read * weights["gain"] + weights["bias"]
        hidden = read @ weights["up.weight"].T + weights["up.bias"]
        hidden = hidden * torch.special.ndtr(hidden)
        return x + hidden @ weights["down.weight"].T + weights["down.bias"]


class NormFolded(Variant, exercise="swapped_sublayer"):
    """Gain and bias of the norm are folded into the first map."""

    def swapped_sublayer(x, weights):
        up = weights["up.weight"]
        folded = up * weights["gain"], weights["up.bias"] + up @ weights["bias"]
        hidden = F.gelu(F.linear(F.layer_norm(x, x.shape[-1:]), *folded))
        return x + F.linear(hidden, weights["down.weight"], weights["down.bias"])


class Modules(Variant, exercise="swapped_sublayer"):
    """Torch's modules, filled with the weights that are handed over."""

    def swapped_sublayer(x, weights):
        d_ff, d_model = weights["up.weight"].shape
        network = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model)
        ).to(x.dtype)
        names = ("gain", "bias", "up.weight", "up.bias", "down.weight", "down.bias")
        state = {
            name: weights[given] for name, given in zip(network.state_dict(), names, strict=True)
        }
        network.load_state_dict(state)
        return x + network(x)


# 4.12 -----------------------------------------------------------------------------------------


class ExpertsTokenByToken(Variant, exercise="mixture_of_experts"):
    """Loops over tokens and choices."""

    def route(x, w_router, top_k):
        probabilities = torch.softmax(x @ w_router, dim=-1)
        chosen = torch.zeros(probabilities.shape, dtype=torch.bool)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                for expert in probabilities[b, t].argsort(descending=True)[:top_k]:
                    chosen[b, t, expert] = True
        return probabilities, chosen

    def mixture_of_experts(x, probabilities, chosen, w_up, w_down):
        rows = []
        for b in range(x.shape[0]):
            row = []
            for t in range(x.shape[1]):
                y = torch.zeros(x.shape[-1], dtype=x.dtype)
                for i in range(len(w_up)):
                    if chosen[b, t, i]:
                        y = y + probabilities[b, t, i] * (torch.relu(x[b, t] @ w_up[i]) @ w_down[i])
                row.append(y)
            rows.append(torch.stack(row))
        return torch.stack(rows)

    def balance_loss(probabilities, chosen):
        batch, length, num_experts = chosen.shape
        total = probabilities.new_zeros(())
        for i in range(num_experts):
            fraction = int(chosen[..., i].sum()) / int(chosen.sum())
            total = total + fraction * probabilities[..., i].sum() / (batch * length)
        return total * num_experts


class ExpertsGathered(Variant, exercise="mixture_of_experts"):
    """The weights of each token's own experts are gathered, and multiplied in one einsum."""

    def route(x, w_router, top_k):
        scores = torch.einsum("btm,mn->btn", x, w_router)
        places = scores.argsort(dim=-1, descending=True).argsort(dim=-1)
        return F.softmax(scores, dim=-1), places < top_k

    def mixture_of_experts(x, probabilities, chosen, w_up, w_down):
        token, expert = chosen.flatten(0, 1).nonzero(as_tuple=True)  # one row for each choice
        hidden = torch.einsum("cm,cmf->cf", x.flatten(0, 1)[token], w_up[expert]).clamp(min=0)
        weights = probabilities.flatten(0, 1)[token, expert]
        outputs = torch.einsum("c,cf,cfm->cm", weights, hidden, w_down[expert])
        return torch.zeros_like(x.flatten(0, 1)).index_add(0, token, outputs).reshape(x.shape)

    def balance_loss(probabilities, chosen):
        fractions = chosen.sum(dim=(0, 1)) / chosen.sum()
        return probabilities.shape[2] * torch.dot(
            fractions.to(probabilities.dtype), probabilities.mean(dim=(0, 1))
        )


class ExpertsWhere(Variant, exercise="mixture_of_experts"):
    """Where a token does not use an expert, its output is never looked at; a float mask."""

    def route(x, w_router, top_k):
        probabilities = (x @ w_router).log_softmax(-1).exp()
        rank = probabilities.argsort(dim=-1, descending=True).argsort(dim=-1)
        return probabilities, rank < top_k

    def mixture_of_experts(x, probabilities, chosen, w_up, w_down):
        mixed = 0
        for i, (up, down) in enumerate(zip(w_up, w_down, strict=True)):
            (where,) = chosen[..., i].flatten().nonzero(as_tuple=True)
            own = x.reshape(-1, x.shape[-1])[where]
            network = nn.Sequential(nn.Linear(*up.shape, bias=False), nn.ReLU())
            hidden = torch.func.functional_call(network, {"0.weight": up.T}, (own,))
            weighted = probabilities[..., i].flatten()[where].unsqueeze(1) * (hidden @ down)
            empty = x.new_zeros(x.shape[0] * x.shape[1], x.shape[2])
            mixed = mixed + empty.index_put((where,), weighted).unflatten(0, x.shape[:2])
        return mixed

    def balance_loss(probabilities, chosen):
        average = probabilities.mean(dim=1).mean(dim=0)
        per_choice = average.expand(chosen.shape)[chosen]  # of the expert of each choice
        return chosen.shape[-1] * per_choice.mean()
