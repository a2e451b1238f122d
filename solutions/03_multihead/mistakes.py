"""The named mistakes of chapter 03: what a message can name, and what graders are tested with."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.answers import Mistake

# 3.1 ------------------------------------------------------------------------------------------


class NoScale(Mistake, exercise="SelfAttentionHead"):
    """The scores are not divided by the square root of d_head."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


class ScaledByModelWidth(Mistake, exercise="SelfAttentionHead"):
    """The scores are divided by the square root of d_model; a dot product of this head has d_head
    terms."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(x.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


class MaskIgnored(Mistake, exercise="SelfAttentionHead"):
    """The mask has no effect, every query still sees every key: masked_fill changes nothing in
    place, it returns a new tensor."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


class MaskInverted(Mistake, exercise="SelfAttentionHead"):
    """The mask is read the wrong way round; True says that a query may attend to a key."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


class MaskAfterSoftmax(Mistake, exercise="SelfAttentionHead"):
    """Forbidden weights are set to zero after the softmax, so the rest no longer sums to 1: mask
    the scores instead."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            weights = scores.softmax(dim=-1)
            if mask is not None:
                weights = weights.masked_fill(~mask, 0.0)
            return weights @ self.value(x)


class RootForgotten(Mistake, exercise="SelfAttentionHead"):
    """The scores are divided by d_head; it should be the square root of d_head."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / self.d_head
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


class ForbiddenScoresZero(Mistake, exercise="SelfAttentionHead"):
    """Forbidden scores become 0, and a softmax gives a score of 0 its share like any other: they
    must become minus infinity."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask, 0.0)
            return scores.softmax(dim=-1) @ self.value(x)


class QueryAndKeyExchanged(Mistake, exercise="SelfAttentionHead"):
    """The query map makes the keys and the key map the queries: a row of the scores must belong to
    the token that asks."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.key(x) @ self.query(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ self.value(x)


class SoftmaxOverQueries(Mistake, exercise="SelfAttentionHead"):
    """The softmax runs over the queries (dim=-2); each query shares its weight out among the keys
    (dim=-1)."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-2) @ self.value(x)


class TokensAveraged(Mistake, exercise="SelfAttentionHead"):
    """The weights average the tokens themselves; a head hands over what its value map makes of
    them."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.d_head = d_head

        def forward(self, x, mask=None):
            scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return scores.softmax(dim=-1) @ x


# 3.2 ------------------------------------------------------------------------------------------


class HeadsAdded(Mistake, exercise="loop_of_heads"):
    """What the heads found is added up; it must lie side by side, so that the output map can tell
    the heads apart."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = 0
        for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True):
            found = found + F.scaled_dot_product_attention(
                x @ to_query, x @ to_key, x @ to_value, attn_mask=mask
            )
        return found @ w_output[: found.shape[-1]]


class OutputMapForgotten(Mistake, exercise="loop_of_heads"):
    """The heads lie side by side, but the output map never mixes them."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = [
            F.scaled_dot_product_attention(x @ to_query, x @ to_key, x @ to_value, attn_mask=mask)
            for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.cat(found, dim=-1)


class LastHeadFirst(Mistake, exercise="loop_of_heads"):
    """The heads lie in the opposite order; the first rows of the output map belong to the first
    head."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = []
        for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True):
            mixed = F.scaled_dot_product_attention(
                x @ to_query, x @ to_key, x @ to_value, attn_mask=mask
            )
            found.insert(0, mixed)
        return torch.cat(found, dim=-1) @ w_output


class SameHeadForAll(Mistake, exercise="loop_of_heads"):
    """One head is run again and again; each head has maps of its own."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = []
        for _ in w_query:
            to_query, to_key, to_value = w_query[0], w_key[0], w_value[0]
            found.append(
                F.scaled_dot_product_attention(
                    x @ to_query, x @ to_key, x @ to_value, attn_mask=mask
                )
            )
        return torch.cat(found, dim=-1) @ w_output


class FeaturesInterleaved(Mistake, exercise="loop_of_heads"):
    """The features of the heads alternate; all features of a head must lie together."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = [
            F.scaled_dot_product_attention(x @ to_query, x @ to_key, x @ to_value, attn_mask=mask)
            for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.stack(found, dim=-1).flatten(-2) @ w_output


class ScaledByTokenWidth(Mistake, exercise="loop_of_heads"):
    """The scores are divided by the square root of d_model; the width of a query is d_head."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = []
        for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True):
            scores = (x @ to_query) @ (x @ to_key).transpose(-2, -1) / math.sqrt(x.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            found.append(scores.softmax(dim=-1) @ (x @ to_value))
        return torch.cat(found, dim=-1) @ w_output


class ScaledByWidthOfValues(Mistake, exercise="loop_of_heads"):
    """The scores are divided by the square root of d_value; the dot product runs over d_head
    features."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = []
        for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True):
            scores = (x @ to_query) @ (x @ to_key).transpose(-2, -1) / math.sqrt(to_value.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            found.append(scores.softmax(dim=-1) @ (x @ to_value))
        return torch.cat(found, dim=-1) @ w_output


class NoMaskAtAll(Mistake, exercise="loop_of_heads"):
    """The mask is not used by any head."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = [
            F.scaled_dot_product_attention(x @ to_query, x @ to_key, x @ to_value)
            for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.cat(found, dim=-1) @ w_output


class MaskUpsideDown(Mistake, exercise="loop_of_heads"):
    """The mask reaches the heads with True and False exchanged; True means allowed here, and it does
    in torch's kernel."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        forbidden = None if mask is None else ~mask
        found = [
            F.scaled_dot_product_attention(x @ q, x @ k, x @ v, attn_mask=forbidden)
            for q, k, v in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.cat(found, dim=-1) @ w_output


class MaskAsNumbers(Mistake, exercise="loop_of_heads"):
    """The mask is added to the scores as ones and zeros, which forbids nothing: hand it over as
    booleans, or make it minus infinity where it is False."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        added = None if mask is None else mask.to(x.dtype)
        found = [
            F.scaled_dot_product_attention(x @ q, x @ k, x @ v, attn_mask=added)
            for q, k, v in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.cat(found, dim=-1) @ w_output


class StackedAndReshaped(Mistake, exercise="loop_of_heads"):
    """The heads are stacked before the tokens and then reshaped, which puts features of several
    tokens into one row: join the features of each token."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = [
            F.scaled_dot_product_attention(x @ q, x @ k, x @ v, attn_mask=mask)
            for q, k, v in zip(w_query, w_key, w_value, strict=True)
        ]
        return torch.stack(found, dim=1).reshape(*x.shape[:2], -1) @ w_output


class MaskForTheFirstHeadOnly(Mistake, exercise="loop_of_heads"):
    """Only the first head is masked; the others see what is forbidden."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        found = []
        for number, (to_query, to_key, to_value) in enumerate(
            zip(w_query, w_key, w_value, strict=True)
        ):
            scores = (x @ to_query) @ (x @ to_key).transpose(-2, -1) / math.sqrt(to_key.shape[-1])
            if mask is not None and number == 0:
                scores = scores.masked_fill(~mask, -math.inf)
            found.append(scores.softmax(dim=-1) @ (x @ to_value))
        return torch.cat(found, dim=-1) @ w_output


# 3.3 ------------------------------------------------------------------------------------------


class ViewWithoutTranspose(Mistake, exercise="MultiHeadAttention"):
    """A view alone cuts the features of several tokens into one head: cut the features of each token,
    then let heads and tokens change places."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), self.num_heads, -1, self.d_head)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.reshape(len(x), x.shape[1], -1))


class WidthBeforeHeads(Mistake, exercise="MultiHeadAttention"):
    """The features are cut as (d_head, num_heads), so that neighbours go to different heads: the features
    of a head lie side by side."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.d_head, self.num_heads).permute(0, 3, 1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.permute(0, 2, 3, 1).reshape(len(x), x.shape[1], -1))


class MergedWithoutTranspose(Mistake, exercise="MultiHeadAttention"):
    """The heads are cut rightly and put together wrongly: tokens and heads must change back before the
    features are joined."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.reshape(len(x), x.shape[1], -1))


class ScaledByAllHeads(Mistake, exercise="MultiHeadAttention"):
    """The scores are divided by the square root of d_model, the width of all heads together; it is that
    of one head, d_head."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(x.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class ScaleForgotten(Mistake, exercise="MultiHeadAttention"):
    """The scores are not divided by the square root of d_head."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class OutputMapUnused(Mistake, exercise="MultiHeadAttention"):
    """The heads lie side by side, but the output map is never applied."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return found.transpose(1, 2).reshape(len(x), x.shape[1], -1)


class HeadsCompete(Mistake, exercise="MultiHeadAttention"):
    """The softmax runs over the heads; each head shares its own weight out among the keys."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class ContextIgnored(Mistake, exercise="MultiHeadAttention"):
    """Keys and values are made from x even if there is a context: in cross attention the context
    answers."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                mask = F.pad(mask, (0, x.shape[1]), value=True)[..., : x.shape[1]]
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class ContextAsks(Mistake, exercise="MultiHeadAttention"):
    """The queries are made from the context and keys and values from x: x asks, the context answers."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            mask = None if mask is None else mask.transpose(-2, -1)
            query, key, value = self.query(source), self.key(x), self.value(x)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), source.shape[1], -1))


class ValuesOfX(Mistake, exercise="MultiHeadAttention"):
    """The values are made from x although the keys come from the context: who answers also hands over."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(x)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class MaskUnused(Mistake, exercise="MultiHeadAttention"):
    """The mask is not used: every query sees every key."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class MaskTurnedAround(Mistake, exercise="MultiHeadAttention"):
    """The mask is read the wrong way round; True says that a query may attend to a key."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(mask.unsqueeze(-3), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class SequencesTakenForHeads(Mistake, exercise="MultiHeadAttention"):
    """A mask per sequence is laid on the scores as it is, and broadcasting takes its sequences for
    heads: give it an axis of size 1 for the heads."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


class MaskTiled(Mistake, exercise="MultiHeadAttention"):
    """The masks of the sequences are repeated in turns (0, 1, 2, 0, 1, 2) where sequences and heads lie in
    one axis as (0, 0, 1, 1): all heads of a sequence need the mask of that sequence."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads, self.d_head = num_heads, d_model // num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def split(self, x):
            return x.view(len(x), -1, self.num_heads, self.d_head).transpose(1, 2)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
            query, key, value = self.split(query), self.split(key), self.split(value)
            scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_head)
            if mask is not None:
                tiled = mask.expand(len(x), -1, -1).repeat(self.num_heads, 1, 1)
                scores = scores.masked_fill(~tiled.view(scores.shape), -math.inf)
            found = scores.softmax(dim=-1) @ value
            return self.output(found.transpose(1, 2).reshape(len(x), x.shape[1], -1))


# 3.4 ------------------------------------------------------------------------------------------


class QueriesAndKeysSwapped(Mistake, exercise="head_circuits"):
    """The QK circuits are transposed: the row vector that multiplies from the left is the token
    that asks."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return key @ query.transpose(-2, -1), value @ output

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


class ScoresScaled(Mistake, exercise="head_circuits"):
    """The QK circuit is divided by the square root of d_head; the scaling comes after it and is not
    part of the product of the two maps."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]), value @ output

    def head_contributions(found, w_output):
        return found @ w_output.unflatten(0, (found.shape[1], -1))


class OutputBeforeValue(Mistake, exercise="head_circuits"):
    """The OV circuits are transposed, as for column vectors: a row vector meets the value map
    first and the output map after it."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1), (value @ output).transpose(-2, -1)

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


class InTheSpaceOfAHead(Mistake, exercise="head_circuits"):
    """The products are taken the other way round and are as wide as a head: a circuit leads from
    tokens to tokens, d_model by d_model."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query.transpose(-2, -1) @ key, output @ value

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


class ColumnsOfTheOutputMap(Mistake, exercise="head_circuits"):
    """A head gets columns of the output map; what it found multiplies that map from the left, so
    it owns rows."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.T.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1), value @ output

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


class RowsOfTheInputMaps(Mistake, exercise="head_circuits"):
    """A head gets rows of the query, key and value maps, as nn.Linear stores them; here tokens
    multiply from the left, so it owns columns."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.T.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1), value @ output

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


class EveryHeadthFeature(Mistake, exercise="head_circuits"):
    """A head gets every num_heads-th feature; it owns d_head features that lie side by side."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        heads = range(num_heads)
        qk = [w_query[:, h::num_heads] @ w_key[:, h::num_heads].T for h in heads]
        ov = [w_value[:, h::num_heads] @ w_output[h::num_heads] for h in heads]
        return torch.stack(qk), torch.stack(ov)

    def head_contributions(found, w_output):
        blocks = [w_output[h :: found.shape[1]] for h in range(found.shape[1])]
        return found @ torch.stack(blocks)


class AllHeadsTogether(Mistake, exercise="head_circuits"):
    """The maps are multiplied whole: that is one circuit of a single large head, the sum over all
    heads."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        qk, ov = w_query @ w_key.T, w_value @ w_output
        return torch.stack([qk] * num_heads), torch.stack([ov] * num_heads)

    def head_contributions(found, w_output):
        blocks = w_output.unflatten(0, (found.shape[1], found.shape[3]))
        return found @ blocks


class FirstRowsForAll(Mistake, exercise="head_circuits"):
    """Every head is multiplied with the first rows of the output map; each owns rows of its own."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1), value @ output

    def head_contributions(found, w_output):
        return found @ w_output[: found.shape[3]]


class TotalSharedOut(Mistake, exercise="head_circuits"):
    """The output is divided evenly among the heads: that has the right sum, but does not say what
    each of them adds."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        query, key, value = (
            w.unflatten(1, (num_heads, -1)).transpose(0, 1) for w in (w_query, w_key, w_value)
        )
        output = w_output.unflatten(0, (num_heads, -1))
        return query @ key.transpose(-2, -1), value @ output

    def head_contributions(found, w_output):
        heads = found.shape[1]
        total = found.transpose(1, 2).flatten(2) @ w_output
        return (total / heads).unsqueeze(1).expand(-1, heads, -1, -1)


# 3.5 ------------------------------------------------------------------------------------------


class SumsExchanged(Mistake, exercise="drop_key_bias"):
    """The two sums are in each other's place: what the key bias adds depends on the query that it
    is multiplied with."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return key @ query_bias / root, (query + query_bias) @ key_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class BiasesOnTheWrongSide(Mistake, exercise="drop_key_bias"):
    """Each bias is multiplied with the vectors that it is added to; in the product it meets the
    vectors of the other side."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        constant = query_bias @ key_bias / root
        return query @ query_bias / root + constant, key @ key_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class BiasesNotScaled(Mistake, exercise="drop_key_bias"):
    """The sums are those of the scores before scaling; what biases add is divided by the square
    root of d_head as well."""

    def split_score_bias(query, key, query_bias, key_bias):
        return (query + query_bias) @ key_bias, key @ query_bias

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class ConstantWithTheKeys(Mistake, exercise="drop_key_bias"):
    """The product of the two biases is added to every key's number; it belongs to the numbers per
    query, so that those per key come from the query bias alone."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return query @ key_bias / root, (key + key_bias) @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class ConstantLost(Mistake, exercise="drop_key_bias"):
    """The product of the two biases is missing from the numbers per query: no softmax sees it, but
    the biases do add it."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return query @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class QueryBiasDroppedToo(Mistake, exercise="drop_key_bias"):
    """The query bias is dropped as well; it adds a different number to each key, which the softmax
    does see."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        zeros = torch.zeros_like(weights["key.bias"])
        return {**weights, "key.bias": zeros, "query.bias": zeros}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class KeyBiasMovedToTheQueries(Mistake, exercise="drop_key_bias"):
    """The key bias is added to the query bias, which changes the function: it can go without being
    moved anywhere."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {
            **weights,
            "key.bias": torch.zeros_like(weights["key.bias"]),
            "query.bias": weights["query.bias"] + weights["key.bias"],
        }

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class ValueBiasDropped(Mistake, exercise="drop_key_bias"):
    """The value bias is dropped and nothing takes its place: averaging leaves a constant as it is,
    so it does reach the output."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        return {**weights, "value.bias": torch.zeros_like(weights["value.bias"])}


class ValueBiasNotMapped(Mistake, exercise="drop_key_bias"):
    """The value bias is added to the output bias as it is; on its way there it passes the output
    map."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + weights["value.bias"],
        }


class OutputMapTransposed(Mistake, exercise="drop_key_bias"):
    """The value bias passes the output map the wrong way round: nn.Linear stores (d_out, d_in) and
    multiplies with the transpose."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["value.bias"] @ weights["output.weight"]
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.bias"] + constant,
        }


class OutputBiasReplaced(Mistake, exercise="drop_key_bias"):
    """What the value bias becomes takes the place of the output bias; it has to be added to it."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        return {
            **weights,
            "value.bias": torch.zeros_like(weights["value.bias"]),
            "output.bias": weights["output.weight"] @ weights["value.bias"],
        }


class ValueBiasCountedTwice(Mistake, exercise="drop_key_bias"):
    """The output bias takes over the value bias, which is still there: set it to zero."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(query.shape[-1])
        return (query + query_bias) @ key_bias / root, key @ query_bias / root

    def drop_key_bias(weights):
        return {**weights, "key.bias": torch.zeros_like(weights["key.bias"])}

    def move_value_bias(weights):
        constant = weights["output.weight"] @ weights["value.bias"]
        return {**weights, "output.bias": weights["output.bias"] + constant}


# 3.6 ------------------------------------------------------------------------------------------


class KeyHeadsInTurns(Mistake, exercise="grouped_query_attention"):
    """The query heads take the key heads in turns (0, 1, 0, 1), as repeat lays them; neighbours
    share one (0, 0, 1, 1)."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key, value = (heads.repeat(1, num_sharing, 1, 1) for heads in (key, value))
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2).flatten(1)


class FirstKeyHeadForAll(Mistake, exercise="grouped_query_attention"):
    """All query heads read the first key head; only those of the first group do."""

    def grouped_query_attention(query, key, value):
        key, value = (heads[:, :1].expand(-1, query.shape[1], -1, -1) for heads in (key, value))
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2).flatten(1)


class ValuesInAnotherOrder(Mistake, exercise="grouped_query_attention"):
    """Keys are shared by neighbours, values in turns: a query head takes both from the same shared
    head."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat(1, num_sharing, 1, 1)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2).flatten(1)


class QueriesPooled(Mistake, exercise="grouped_query_attention"):
    """The query heads of a group are averaged into one; they share keys and values, and each still
    asks its own question."""

    def grouped_query_attention(query, key, value):
        query = query.unflatten(1, (key.shape[1], -1)).mean(dim=2)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2).flatten(1)


class GroupScaled(Mistake, exercise="grouped_query_attention"):
    """The scores are divided by the square root of the width of a whole group; sharing does not
    change d_head."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat_interleave(num_sharing, dim=1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(num_sharing * query.shape[-1])
        return scores.softmax(dim=-1) @ value

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).mean(dim=2).flatten(1)


class PooledAcrossGroups(Mistake, exercise="grouped_query_attention"):
    """The mean is taken over every num_kv_heads-th head; a shared head replaces neighbours."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat_interleave(num_sharing, dim=1)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_heads // num_kv_heads, num_kv_heads, -1)).mean(dim=1).flatten(1)


class PooledBySum(Mistake, exercise="grouped_query_attention"):
    """The heads of a group are added up; their mean keeps scores at the size they had."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat_interleave(num_sharing, dim=1)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1)).sum(dim=2).flatten(1)


class FirstOfEachGroup(Mistake, exercise="grouped_query_attention"):
    """The first head of each group is kept and the others are thrown away; the mean keeps
    something of each."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat_interleave(num_sharing, dim=1)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (num_kv_heads, num_heads // num_kv_heads, -1))[:, :, 0].flatten(1)


class NeighbouringFeaturesPooled(Mistake, exercise="grouped_query_attention"):
    """Neighbouring features are averaged; it is whole heads, feature by feature."""

    def grouped_query_attention(query, key, value):
        num_sharing = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(num_sharing, dim=1)
        value = value.repeat_interleave(num_sharing, dim=1)
        return F.scaled_dot_product_attention(query, key, value)

    def pool_heads(w, num_heads, num_kv_heads):
        return w.unflatten(1, (-1, num_heads // num_kv_heads)).mean(dim=2)


# 3.7 ------------------------------------------------------------------------------------------


class SharedHeadsCountedInFull(Mistake, exercise="count_attention"):
    """Keys and values are counted with as many heads as the queries have; they have
    num_kv_heads."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        return 4 * d_model * d_model + has_bias * 4 * d_model

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        maps = 4 * (q_len + k_len) * d_model * d_model
        return batch * maps, batch * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return 2 * d_model


class BiasesNeverCounted(Mistake, exercise="count_attention"):
    """The biases are left out of the parameters even where the layer has them."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return 2 * d_model * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model + num_kv_heads * d_model // num_heads


class BiasesOfOneWidth(Mistake, exercise="count_attention"):
    """Every bias is counted with d_model numbers; a bias is as wide as what its map makes."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return 2 * d_model * (d_model + d_kv) + has_bias * 4 * d_model

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model + num_kv_heads * d_model // num_heads


class OutputMapNotCounted(Mistake, exercise="count_attention"):
    """There are four maps: the one of the outputs is missing."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * (d_model + 2 * d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 2 * d_model * (q_len * d_model + 2 * k_len * d_kv)
        return batch * maps, batch * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model / 2 + num_kv_heads * d_model // num_heads


class MultiplicationsOnly(Mistake, exercise="count_attention"):
    """A multiplication and the addition after it are counted as one operation; they are two."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 2 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * 2 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model + num_kv_heads * d_model // num_heads


class BatchNotCounted(Mistake, exercise="count_attention"):
    """The operations are those of one sequence; every sequence of the batch takes as many."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return maps, 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model + num_kv_heads * d_model // num_heads


class KeysAsManyAsQueries(Mistake, exercise="count_attention"):
    """Keys and values are mapped q_len times; there are k_len of them."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * q_len * (d_model + d_kv)
        return batch * maps, batch * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return d_model + num_kv_heads * d_model // num_heads


class HeadsCountedTwice(Mistake, exercise="count_attention"):
    """The products are counted with the width of all heads and once more per head; num_heads times
    d_head is d_model."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * num_heads * 4 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return (d_model + num_kv_heads * d_model / num_heads) / num_heads


class SharingSavesProducts(Mistake, exercise="count_attention"):
    """The products are counted once per shared head; every query head still scores all its pairs."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * 4 * q_len * k_len * d_kv

    def break_even_length(d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        return d_model * (d_model + d_kv) / d_kv


class ScoresOnly(Mistake, exercise="count_attention"):
    """Only the scores are counted; averaging the values is a product of the same size."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_kv = num_kv_heads * d_model // num_heads
        return (d_model + has_bias) * 2 * (d_model + d_kv)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_kv = num_kv_heads * d_model // num_heads
        maps = 4 * d_model * (q_len * d_model + k_len * d_kv)
        return batch * maps, batch * 2 * q_len * k_len * d_model

    def break_even_length(d_model, num_heads, num_kv_heads):
        return 2 * (d_model + num_kv_heads * d_model // num_heads)


# 3.8 ------------------------------------------------------------------------------------------


class CannotFail(Mistake, exercise="check_multi_head"):
    """Nothing that a layer computes makes this test fail: compare numbers, not shapes, and say what
    must hold with assert."""

    def check_multi_head(attention):
        weights = {}
        for name in ("query", "key", "value", "output"):
            weights[f"{name}.weight"], weights[f"{name}.bias"] = (
                torch.randn(12, 12),
                torch.randn(12),
            )
        x, context = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        assert attention(weights, 3, x, context, None).shape == x.shape


class NeverAContext(Mistake, exercise="check_multi_head"):
    """The tokens only ever ask themselves: give them a context of another length."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in ((x, None, None), (x, None, own[..., :5])):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class NeverAMask(Mistake, exercise="check_multi_head"):
    """No input has a mask: try one for all sequences and one for each."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in ((x, None, None), (x, context, None)):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class OneMaskForAllSequences(Mistake, exercise="check_multi_head"):
    """All sequences share one mask, so nothing shows whether each would keep its own."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in ((x, None, None), (x, context, None), (x, context, own[0])):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class NeverAsManySequencesAsHeads(Mistake, exercise="check_multi_head"):
    """The sequences are never as many as the heads: where two sizes differ, broadcasting cannot confuse
    them, and this bug needs it to."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 5):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class QueriesWithNothingAllowed(Mistake, exercise="check_multi_head"):
    """A mask of this test allows some query nothing at all, and there right layers differ: allow at
    least one key in each row."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, 1] = False
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class BiasesAreZero(Mistake, exercise="check_multi_head"):
    """The biases are zero, as at the start of training: whoever forgets them passes."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.zeros(12)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class OneHeadOnly(Mistake, exercise="check_multi_head"):
    """There is a single head, so nothing can go wrong between heads: take several."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (1, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 1, *args)
                assert torch.allclose(seen, expected(*args), atol=1e-3)


class ToleranceTooLarge(Mistake, exercise="check_multi_head"):
    """The weights are small and the tolerance is large, so that only gross errors show: draw larger
    weights, or compare more closely."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.15 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = 0.15 * torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 3, *args)
                assert torch.allclose(seen, expected(*args), atol=0.2)


class DifferencesCancel(Mistake, exercise="check_multi_head"):
    """The mean of the differences is small even where each is large, because they have signs: take
    their absolute values, or the largest of them."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in ((x, None, None), (x, context, None), (x, context, own)):
                off = (attention(weights, 3, *args) - expected(*args)).mean()
                assert off.abs() < 1e-4


class NoTolerance(Mistake, exercise="check_multi_head"):
    """Numbers are compared exactly: right layers differ in the last digits, and one of them computes in
    float32, so leave a tolerance."""

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(5)
        names = ("query", "key", "value", "output")
        weights = {}
        for name in names:
            weights[f"{name}.weight"] = 0.5 * torch.randn(12, 12, generator=generator)
            weights[f"{name}.bias"] = torch.randn(12, generator=generator)

        def expected(x, context, mask):
            source = x if context is None else context
            query, key, value = (
                F.linear(tokens, weights[f"{name}.weight"], weights[f"{name}.bias"])
                .unflatten(-1, (3, -1))
                .transpose(1, 2)
                for name, tokens in zip(names, (x, source, source), strict=False)
            )
            mask = None if mask is None else mask.unsqueeze(-3)
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            found = found.transpose(1, 2).flatten(2)
            return F.linear(found, weights["output.weight"], weights["output.bias"])

        for batch in (2, 3):
            x = torch.randn(batch, 5, 12, generator=generator)
            context = torch.randn(batch, 7, 12, generator=generator)
            own = torch.rand(batch, 5, 7, generator=generator) < 0.5
            own[:, :, 0] = True
            for args in (
                (x, None, None),
                (x, context, own[0]),
                (x, context, own),
            ):
                seen = attention(weights, 3, *args)
                assert torch.equal(seen, expected(*args))


# 3.9 ------------------------------------------------------------------------------------------


class AsPublished(Mistake, exercise="mended_derivation"):
    """Nothing has changed: the token that gives asks, and with the mask each token takes from later
    ones only."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = query @ key.T / math.sqrt(query.shape[-1])
        if is_causal:
            allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
            weights = weights.masked_fill(~allowed, -math.inf)
        weights = weights.softmax(dim=0)
        return weights.T @ value, weights.T


class RolesStillExchanged(Mistake, exercise="mended_derivation"):
    """Mask and matrix fit now and nothing leaks any more, but query and key still have each other's
    place: the token that receives must ask."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = query @ key.T / math.sqrt(query.shape[-1])
        if is_causal:
            allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu()
            weights = weights.masked_fill(~allowed, -math.inf)
        weights = weights.softmax(dim=0)
        return weights.T @ value, weights.T


class OnlyTheSoftmaxTurned(Mistake, exercise="mended_derivation"):
    """The softmax runs along the other axis now, but the sum over the values still takes columns,
    which do not sum to 1."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = query @ key.T / math.sqrt(query.shape[-1])
        if is_causal:
            allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
            weights = weights.masked_fill(~allowed, -math.inf)
        weights = weights.softmax(dim=1)
        return weights.T @ value, weights.T


class OnlyTheSumTurned(Mistake, exercise="mended_derivation"):
    """The sum takes rows of the weights now, but the softmax still made their columns sum to 1."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = query @ key.T / math.sqrt(query.shape[-1])
        if is_causal:
            allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
            weights = weights.masked_fill(~allowed, -math.inf)
        weights = weights.softmax(dim=0)
        return weights @ value, weights


class RightOutputOldWeights(Mistake, exercise="mended_derivation"):
    """The output is right, but the weights are returned in the old orientation: row j must say what
    token j takes."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = query @ key.T / math.sqrt(query.shape[-1])
        if is_causal:
            allowed = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
            weights = weights.masked_fill(~allowed, -math.inf)
        weights = weights.softmax(dim=1)
        return weights @ value, weights.T


class MaskDropped(Mistake, exercise="mended_derivation"):
    """The roles are right, but is_causal is not looked at."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        query, key, value = tokens @ w_query, tokens @ w_key, tokens @ w_value
        weights = (query @ key.T / math.sqrt(query.shape[-1])).softmax(dim=1)
        return weights @ value, weights


# 3.10 -----------------------------------------------------------------------------------------


class KernelTurnedRound(Mistake, exercise="convolution_as_heads"):
    """The kernel is the wrong way round: its first entry belongs to the token itself, its last one
    to the farthest."""

    def toeplitz_weights(kernel, length):
        back = torch.arange(length)[:, None] - torch.arange(length)
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j, c in enumerate(kernel.flip(0)):
            weights[back == j] = c
        return weights

    def convolution_as_heads(x, kernel):
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        weights = torch.stack([back == j for j in range(len(kernel))]).to(x.dtype)
        return sum(w @ x @ k for w, k in zip(weights, kernel.flip(0), strict=True)), weights


class LooksAhead(Mistake, exercise="convolution_as_heads"):
    """The weights lie above the diagonal: a token takes from later ones instead of earlier ones."""

    def toeplitz_weights(kernel, length):
        ahead = torch.arange(length) - torch.arange(length)[:, None]
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j, c in enumerate(kernel):
            weights[ahead == j] = c
        return weights

    def convolution_as_heads(x, kernel):
        ahead = torch.arange(x.shape[1]) - torch.arange(x.shape[1])[:, None]
        weights = torch.stack([ahead == j for j in range(len(kernel))]).to(x.dtype)
        return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)), weights


class RolledRound(Mistake, exercise="convolution_as_heads"):
    """What lies before the first token is taken from the end of the text, as torch.roll does; there
    is nothing before it."""

    def toeplitz_weights(kernel, length):
        back = (torch.arange(length)[:, None] - torch.arange(length)) % length
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j, c in enumerate(kernel):
            weights[back == j] = c
        return weights

    def convolution_as_heads(x, kernel):
        identity = torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.stack([identity.roll(j, dims=0) for j in range(len(kernel))])
        return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)), weights


class NotTheTokenItself(Mistake, exercise="convolution_as_heads"):
    """The nearest entry is given to the token before; the first entry is for the token itself."""

    def toeplitz_weights(kernel, length):
        back = torch.arange(length)[:, None] - torch.arange(length) - 1
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j, c in enumerate(kernel):
            weights[back == j] = c
        return weights

    def convolution_as_heads(x, kernel):
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1]) - 1
        weights = torch.stack([back == j for j in range(len(kernel))]).to(x.dtype)
        return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)), weights


class RowsMadeToSumToOne(Mistake, exercise="convolution_as_heads"):
    """The rows are divided by their sums; a convolution takes the entries of its kernel as they
    are."""

    def toeplitz_weights(kernel, length):
        back = torch.arange(length)[:, None] - torch.arange(length)
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j, c in enumerate(kernel):
            weights[back == j] = c
        return weights / weights.sum(dim=1, keepdim=True)

    def convolution_as_heads(x, kernel):
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        weights = torch.stack([back == j for j in range(len(kernel))]).to(x.dtype)
        total = weights.sum(dim=0).sum(dim=1)[:, None]
        return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)) / total, weights


class FirstTokenStandsIn(Mistake, exercise="convolution_as_heads"):
    """A head that looks past the beginning takes the first token instead; there it should take
    nothing."""

    def toeplitz_weights(kernel, length):
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for t in range(length):
            for j, c in enumerate(kernel):
                weights[t, max(t - j, 0)] += c
        return weights

    def convolution_as_heads(x, kernel):
        length = x.shape[1]
        places = (torch.arange(length) - torch.arange(len(kernel))[:, None]).clamp(min=0)
        weights = F.one_hot(places, length).to(x.dtype)
        return sum(w @ x @ k for w, k in zip(weights, kernel, strict=True)), weights
