"""Right answers to chapter 03 that look different. None of them may lose a point."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from classroom.exercise.answers import Variant

# 3.1 ------------------------------------------------------------------------------------------


class TorchKernel(Variant, exercise="SelfAttentionHead"):
    """Torch's attention does the rest."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            for name in ("query", "key", "value"):
                setattr(self, name, nn.Linear(d_model, d_head, bias=False))

        def forward(self, x, mask=None):
            return F.scaled_dot_product_attention(
                self.query(x), self.key(x), self.value(x), attn_mask=mask
            )


class AddedMask(Variant, exercise="SelfAttentionHead"):
    """A float mask is added to the scores, by einsum; there is a buffer, and a dropout of 0."""

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model: int, d_head: int):
            super().__init__()
            self.key = nn.Linear(d_model, d_head, bias=False)
            self.query = nn.Linear(d_model, d_head, bias=False)
            self.value = nn.Linear(d_model, d_head, bias=False)
            self.dropout = nn.Dropout(0.0)
            self.register_buffer("root", torch.tensor(float(d_head)).sqrt())

        def forward(self, x, mask=None):
            q, k, v = self.query(x), self.key(x), self.value(x)
            scores = torch.einsum("btd,bsd->bts", q, k) / q.shape[-1] ** 0.5
            if mask is not None:
                forbidden = torch.zeros(mask.shape, dtype=x.dtype)
                forbidden[~mask] = float("-inf")
                scores = scores + forbidden
            return torch.einsum("bts,bsd->btd", self.dropout(F.softmax(scores, dim=2)), v)


class ByHand(Variant, exercise="SelfAttentionHead"):
    """Sub-modules with bare parameters, and a softmax written out; prints on the way."""

    class Map(nn.Module):
        def __init__(self, d_in, d_out):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(d_out, d_in) / d_in**0.5)

        def forward(self, x):
            return x @ self.weight.mT

    class SelfAttentionHead(nn.Module):
        def __init__(self, d_model, d_head):
            super().__init__()
            self.query, self.key, self.value = (Map(d_model, d_head) for _ in range(3))
            self.width = d_head

        def forward(self, x, mask=None):
            print("tokens", tuple(x.shape))
            scores = torch.matmul(self.query(x), self.key(x).mT) * self.width**-0.5
            if mask is not None:
                scores = torch.where(mask, scores, torch.full_like(scores, -torch.inf))
            e = (scores - scores.amax(dim=-1, keepdim=True)).exp()
            return (e / e.sum(-1, keepdim=True)).matmul(self.value(x))


# 3.2 ------------------------------------------------------------------------------------------


class SumOfBlocks(Variant, exercise="loop_of_heads"):
    """Each head meets its rows of the output map, and the results are added."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        total, start = 0, 0
        for to_query, to_key, to_value in zip(w_query, w_key, w_value, strict=True):
            found = F.scaled_dot_product_attention(
                x @ to_query, x @ to_key, x @ to_value, attn_mask=mask
            )
            stop = start + found.shape[-1]
            total = total + found @ w_output[start:stop]
            start = stop
        return total


class OneHeadFunction(Variant, exercise="loop_of_heads"):
    """A function for one head, filled into a tensor."""

    def one_head(x, maps, mask):
        query, key, value = (torch.einsum("btm,md->btd", x, w) for w in maps)
        scores = torch.einsum("btd,bsd->bts", query, key) * key.shape[-1] ** -0.5
        if mask is not None:
            scores[~mask.expand_as(scores)] = -math.inf
        return F.softmax(scores, -1) @ value

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        width = w_value.shape[2]
        side_by_side = x.new_zeros(*x.shape[:2], len(w_output))
        for number, maps in enumerate(zip(w_query, w_key, w_value, strict=True)):
            side_by_side[..., number * width : (number + 1) * width] = one_head(x, maps, mask)
        return torch.matmul(side_by_side, w_output)


class AllAtOnce(Variant, exercise="loop_of_heads"):
    """No loop: the maps are stacked."""

    def loop_of_heads(x, w_query, w_key, w_value, w_output, mask=None):
        query, key, value = (x.unsqueeze(1) @ w for w in (w_query, w_key, w_value))
        mask = mask if mask is None or mask.dim() == 2 else mask.unsqueeze(1)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.permute(0, 2, 1, 3).flatten(2) @ w_output


# 3.3 ------------------------------------------------------------------------------------------


class HeadsInALoop(Variant, exercise="MultiHeadAttention"):
    """The loop after all, over slices of features."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.query, self.key, self.value, self.output = (
                nn.Linear(d_model, d_model) for _ in range(4)
            )
            self.num_heads = num_heads

        def forward(self, x, context=None, mask=None):
            if context is None:
                context = x
            parts = (self.query(x), self.key(context), self.value(context))
            found = []
            for q, k, v in zip(*(p.chunk(self.num_heads, dim=-1) for p in parts), strict=True):
                found.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            return self.output(torch.cat(found, -1))


class HeadsInTheBatch(Variant, exercise="MultiHeadAttention"):
    """Sequences and heads share one axis."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.heads = num_heads
            self.query = nn.Linear(d_model, d_model)
            self.key = nn.Linear(d_model, d_model)
            self.value = nn.Linear(d_model, d_model)
            self.output = nn.Linear(d_model, d_model)

        def fold(self, x):
            batch, length, width = x.shape
            x = x.reshape(batch, length, self.heads, width // self.heads)
            return x.permute(0, 2, 1, 3).reshape(batch * self.heads, length, -1)

        def forward(self, x, context=None, mask=None):
            source = context if context is not None else x
            q, k, v = (self.fold(p) for p in (self.query(x), self.key(source), self.value(source)))
            scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
            if mask is not None:
                mask = mask.expand(x.size(0), -1, -1).repeat_interleave(self.heads, dim=0)
                scores = scores.masked_fill(mask == 0, float("-inf"))
            mixed = torch.bmm(torch.softmax(scores, -1), v)
            mixed = mixed.view(x.size(0), self.heads, x.size(1), -1).transpose(1, 2)
            return self.output(mixed.contiguous().view(x.size(0), x.size(1), -1))


class EinsumOverBlocks(Variant, exercise="MultiHeadAttention"):
    """Einstein sums with the weights cut into heads; a large negative number is added as a mask."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.d_model, self.num_heads = d_model, num_heads
            for name in ("query", "key", "value", "output"):
                self.add_module(name, nn.Linear(d_model, d_model, bias=True))

        def heads_of(self, linear, tokens):
            weight = linear.weight.view(self.num_heads, -1, self.d_model)
            bias = linear.bias.view(self.num_heads, 1, -1)
            return torch.einsum("btm,hdm->bhtd", tokens, weight) + bias

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            q = self.heads_of(self.query, x)
            k, v = self.heads_of(self.key, source), self.heads_of(self.value, source)
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
            if mask is not None:
                if mask.dim() == 3:
                    mask = mask[:, None]
                scores = scores + (~mask).to(x.dtype) * -1e30
            found = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
            blocks = self.output.weight.view(self.d_model, self.num_heads, -1)
            return torch.einsum("bhqd,mhd->bqm", found, blocks) + self.output.bias


class TorchModule(Variant, exercise="MultiHeadAttention"):
    """Torch's functional layer, with its masks the other way round."""

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, num_heads):
            super().__init__()
            self.num_heads = num_heads
            self.query, self.key = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
            self.value, self.output = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

        def forward(self, x, context=None, mask=None):
            source = x if context is None else context
            if mask is not None and mask.dim() == 3:
                mask = mask.repeat_interleave(self.num_heads, dim=0)
            maps = (self.query, self.key, self.value)
            output, _ = F.multi_head_attention_forward(
                x.transpose(0, 1),
                source.transpose(0, 1),
                source.transpose(0, 1),
                x.shape[-1],
                self.num_heads,
                torch.cat([linear.weight for linear in maps]),
                torch.cat([linear.bias for linear in maps]),
                None,
                None,
                False,
                0.0,
                self.output.weight,
                self.output.bias,
                training=self.training,
                need_weights=False,
                attn_mask=None if mask is None else mask.logical_not(),
            )
            return output.transpose(0, 1)


# 3.6 ------------------------------------------------------------------------------------------


class Slices(Variant, exercise="head_circuits"):
    """One head after the other."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        d_head = w_query.shape[1] // num_heads
        w_qk, w_ov = [], []
        for head in range(num_heads):
            own = slice(head * d_head, (head + 1) * d_head)
            w_qk.append(w_query[:, own] @ w_key[:, own].T)
            w_ov.append(w_value[:, own] @ w_output[own])
        return torch.stack(w_qk), torch.stack(w_ov)

    def head_contributions(found, w_output):
        d_head = found.shape[-1]
        return torch.stack(
            [
                found[:, head] @ w_output[head * d_head : (head + 1) * d_head]
                for head in range(found.shape[1])
            ],
            dim=1,
        )


class Chunks(Variant, exercise="head_circuits"):
    """Chunks, and contributions of a list."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        columns = [w.chunk(num_heads, dim=1) for w in (w_query, w_key, w_value)]
        circuits = [
            (q.mm(k.t()), v.mm(o))
            for q, k, v, o in zip(*columns, w_output.chunk(num_heads), strict=True)
        ]
        return [torch.stack(matrices) for matrices in zip(*circuits, strict=True)]

    def head_contributions(found, w_output):
        pairs = zip(found.unbind(1), w_output.chunk(found.size(1), dim=0), strict=True)
        return torch.stack([torch.matmul(f, block) for f, block in pairs], 1)


class SilencedHeads(Variant, exercise="head_circuits"):
    """Masks of features instead of slices."""

    def head_circuits(w_query, w_key, w_value, w_output, num_heads):
        owner = torch.arange(w_query.shape[1]) // (w_query.shape[1] // num_heads)
        owns = (owner == torch.arange(num_heads)[:, None]).to(w_query.dtype)
        w_qk = torch.einsum("mf,hf,nf->hmn", w_query, owns, w_key)
        w_ov = torch.einsum("mf,hf,fn->hmn", w_value, owns, w_output)
        return w_qk, w_ov

    def head_contributions(found, w_output):
        batch, heads, length, d_head = found.shape
        alone = found.new_zeros(batch, heads, length, heads * d_head)
        for head in range(heads):
            alone[:, head, :, head * d_head : (head + 1) * d_head] = found[:, head]
        return alone @ w_output


# 3.8 ------------------------------------------------------------------------------------------


class CopiesAndSums(Variant, exercise="drop_key_bias"):
    """Sums of products instead of products of matrices; copies that are changed in place."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = query.shape[-1] ** 0.5
        per_query = ((query + query_bias) * key_bias).sum(-1) / root
        per_key = (key * query_bias).sum(-1) / root
        return per_query, per_key

    def drop_key_bias(weights):
        new = {name: weight.clone() for name, weight in weights.items()}
        new["key.bias"].zero_()
        return new

    def move_value_bias(weights):
        new = {name: weight.clone() for name, weight in weights.items()}
        new["output.bias"] += new["output.weight"].mv(new["value.bias"])
        new["value.bias"].fill_(0)
        return new


class MeasuredOnScores(Variant, exercise="drop_key_bias"):
    """The sums are read off the scores with and without each bias."""

    def split_score_bias(query, key, query_bias, key_bias):
        def scores(q, k):
            return q @ k.mT / math.sqrt(q.shape[-1])

        by_query_bias = scores(query + query_bias, key) - scores(query, key)
        by_key_bias = scores(query + query_bias, key + key_bias) - scores(query + query_bias, key)
        return by_key_bias[:, :, 0], by_query_bias[:, 0]

    def drop_key_bias(weights):
        new = dict(weights)
        new["key.bias"] = 0 * weights["key.bias"]
        return new

    def move_value_bias(weights):
        new = dict(weights)
        bias = weights["value.bias"]
        new["output.bias"] = F.linear(bias, weights["output.weight"], weights["output.bias"])
        new["value.bias"] = bias - bias
        return new


class ConstantAddedLast(Variant, exercise="drop_key_bias"):
    """A list of two results; the value bias is moved row by row."""

    def split_score_bias(query, key, query_bias, key_bias):
        root = math.sqrt(len(query_bias))
        constant = torch.dot(query_bias, key_bias)
        return [
            (torch.einsum("btd,d->bt", query, key_bias) + constant) / root,
            torch.einsum("bsd,d->bs", key, query_bias) / root,
        ]

    def drop_key_bias(weights):
        return {
            name: torch.zeros_like(weight) if name == "key.bias" else weight
            for name, weight in weights.items()
        }

    def move_value_bias(weights):
        rows = zip(weights["output.weight"], weights["output.bias"], strict=True)
        moved = torch.stack([bias + (row * weights["value.bias"]).sum() for row, bias in rows])
        return {**drop_key_bias(weights), "output.bias": moved} | {
            "value.bias": torch.zeros_like(weights["value.bias"])
        }


# 3.5 ------------------------------------------------------------------------------------------


class TorchGrouped(Variant, exercise="grouped_query_attention"):
    """Torch's own grouped attention; the mean of a stack."""

    def grouped_query_attention(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def pool_heads(w, num_heads, num_kv_heads):
        heads = w.chunk(num_heads, dim=1)
        size = num_heads // num_kv_heads
        pooled = [
            torch.stack(heads[start : start + size]).mean(0) for start in range(0, num_heads, size)
        ]
        return torch.cat(pooled, dim=1)


class GroupsAsAnAxis(Variant, exercise="grouped_query_attention"):
    """No copies: the queries of a group have an axis of their own."""

    def grouped_query_attention(query, key, value):
        batch, num_heads, q_len, d_head = query.shape
        grouped = query.view(batch, key.shape[1], -1, q_len, d_head)
        scores = torch.einsum("bgsqd,bgkd->bgsqk", grouped, key) / d_head**0.5
        mixed = torch.einsum("bgsqk,bgkv->bgsqv", scores.softmax(-1), value)
        return mixed.reshape(batch, num_heads, q_len, -1)

    def pool_heads(w, num_heads, num_kv_heads):
        size, d_head = num_heads // num_kv_heads, w.shape[1] // num_heads
        return w.view(len(w), num_kv_heads, size, d_head).sum(2).reshape(len(w), -1) / size


class HeadByHead(Variant, exercise="grouped_query_attention"):
    """A loop over query heads; pooling as a product with a matrix."""

    def grouped_query_attention(query, key, value):
        size = query.shape[1] // key.shape[1]
        found = []
        for head in range(query.shape[1]):
            q, k, v = query[:, head], key[:, head // size], value[:, head // size]
            weights = F.softmax(torch.bmm(q, k.mT) / math.sqrt(q.shape[-1]), dim=-1)
            found.append(torch.bmm(weights, v))
        return torch.stack(found, dim=1)

    def pool_heads(w, num_heads, num_kv_heads):
        size, d_head = num_heads // num_kv_heads, w.shape[1] // num_heads
        shares = torch.kron(torch.eye(num_kv_heads), torch.ones(size, 1))
        pooling = torch.kron(shares, torch.eye(d_head)).to(w.dtype) / size
        return w @ pooling


# 3.7 ------------------------------------------------------------------------------------------


class BuiltAndCounted(Variant, exercise="count_attention"):
    """Modules are built and their numbers counted; the operations come from lists of products."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        width = d_model // num_heads * num_kv_heads
        layer = nn.ModuleList(
            [nn.Linear(d_model, w, bias=has_bias) for w in (d_model, width, width, d_model)]
        )
        return sum(p.numel() for p in layer.parameters())

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_head = d_model // num_heads
        width = num_kv_heads * d_head
        maps = [(q_len, d_model, d_model)] * 2 + [(k_len, d_model, width)] * 2
        products = [(q_len, d_head, k_len), (q_len, k_len, d_head)] * num_heads
        return tuple(2 * batch * sum(map(math.prod, shapes)) for shapes in (maps, products))

    def break_even_length(d_model, num_heads, num_kv_heads):
        length = 1.0
        for _ in range(3):
            maps, products = attention_flops(1, 1, 1, d_model, num_heads, num_kv_heads)
            length = maps / products
        return length


class Tensors(Variant, exercise="count_attention"):
    """Everything is a tensor, and floats are fine."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        share = num_kv_heads / num_heads
        total = 2 * d_model**2 * (1 + share)
        if has_bias:
            total += 2 * d_model * (1 + share)
        return torch.tensor(total)

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        share = num_kv_heads / num_heads
        return (
            torch.tensor(4.0 * batch * d_model**2 * (q_len + k_len * share)),
            torch.tensor(4.0 * batch * d_model * q_len * k_len),
        )

    def break_even_length(d_model, num_heads, num_kv_heads):
        return torch.tensor(d_model * (1 + num_kv_heads / num_heads), dtype=torch.float64)


class MapByMap(Variant, exercise="count_attention"):
    """One line for each map."""

    def count_attention(d_model, num_heads, num_kv_heads, has_bias):
        d_head = d_model // num_heads
        query = (d_model + int(has_bias)) * num_heads * d_head
        key = (d_model + int(has_bias)) * num_kv_heads * d_head
        value = key
        output = num_heads * d_head * d_model + int(has_bias) * d_model
        return query + key + value + output

    def attention_flops(batch, q_len, k_len, d_model, num_heads, num_kv_heads):
        d_head = d_model // num_heads
        per_query = 2 * d_model * d_model + 2 * d_model * d_model
        per_key = 2 * 2 * d_model * num_kv_heads * d_head
        per_pair = num_heads * (2 * d_head + 2 * d_head)
        return [
            batch * (q_len * per_query + k_len * per_key),
            batch * q_len * k_len * per_pair,
        ]

    def break_even_length(d_model, num_heads, num_kv_heads):
        d_head = d_model // num_heads
        return d_head * (num_heads + num_kv_heads)


# 3.9 ------------------------------------------------------------------------------------------


class AgainstTorch(Variant, exercise="check_multi_head"):
    """Torch's module in double precision, sizes drawn at random."""

    def reference(weights, num_heads, x, context, mask):
        source = x if context is None else context
        layer = nn.MultiheadAttention(x.shape[-1], num_heads, batch_first=True, dtype=torch.float64)
        names = ("query", "key", "value")
        state = {
            "in_proj_weight": torch.cat([weights[f"{name}.weight"] for name in names]),
            "in_proj_bias": torch.cat([weights[f"{name}.bias"] for name in names]),
            "out_proj.weight": weights["output.weight"],
            "out_proj.bias": weights["output.bias"],
        }
        layer.load_state_dict(state)
        if mask is not None and mask.dim() == 3:
            mask = mask.repeat_interleave(num_heads, 0)
        mask = None if mask is None else ~mask
        return layer(x, source, source, attn_mask=mask, need_weights=False)[0].detach()

    def check_multi_head(attention):
        torch.manual_seed(0)
        for num_heads, d_head, batch, q_len, k_len in (
            (3, 4, 2, 5, 7),
            (2, 5, 2, 3, 6),
            (4, 3, 4, 6, 6),
        ):
            d_model = num_heads * d_head
            weights = {}
            for name in ("query", "key", "value", "output"):
                weights[f"{name}.weight"] = torch.randn(d_model, d_model).double() / 2
                weights[f"{name}.bias"] = torch.randn(d_model).double()
            x = torch.randn(batch, q_len, d_model).double()
            context = torch.randn(batch, k_len, d_model).double()
            masks = (
                torch.ones(q_len, k_len).tril().bool(),
                torch.rand(batch, q_len, k_len)
                .bernoulli()
                .bool()
                .index_fill(2, torch.tensor([0]), True),
            )
            for mask in (None, *masks):
                torch.testing.assert_close(
                    attention(weights, num_heads, x, context, mask),
                    reference(weights, num_heads, x, context, mask),
                    rtol=1e-3,
                    atol=1e-3,
                )


class ByTheHeads(Variant, exercise="check_multi_head"):
    """The sum over heads of what each adds, by einsum; keyword arguments; raises by hand."""

    def by_the_heads(weights, num_heads, x, context, mask):
        def cut(name, tokens):
            weight = weights[f"{name}.weight"].unflatten(0, (num_heads, -1))
            bias = weights[f"{name}.bias"].unflatten(0, (num_heads, 1, -1))
            return torch.einsum("btm,hdm->bhtd", tokens, weight) + bias

        query, key, value = cut("query", x), cut("key", context), cut("value", context)
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None], -math.inf)
        blocks = weights["output.weight"].unflatten(1, (num_heads, -1))
        found = torch.einsum("bhqk,bhkd,mhd->bqm", scores.softmax(-1), value, blocks)
        return found + weights["output.bias"]

    def check_multi_head(attention):
        generator = torch.Generator().manual_seed(7)
        weights = {}
        for name in ("query", "key", "value", "output"):
            weights[name + ".weight"] = torch.randn(8, 8, generator=generator)
            weights[name + ".bias"] = torch.randn(8, generator=generator)
        for batch in (2, 3):
            x = torch.randn(batch, 3, 8, generator=generator)
            context = torch.randn(batch, 5, 8, generator=generator)
            mask = torch.rand(batch, 3, 5, generator=generator) < 0.4
            mask[..., 2] = True
            seen = attention(weights, 2, x, context=context, mask=mask)
            wanted = by_the_heads(weights, 2, x, context, mask)
            if not (seen - wanted).abs().max() < 0.01:
                raise AssertionError("these numbers are wrong")


class ByProperties(Variant, exercise="check_multi_head"):
    """Next to no oracle: what must change, what must not, and one case that can be done by hand."""

    def check_multi_head(attention):
        torch.manual_seed(4)
        zeros, identity = torch.zeros(6, 6).double(), torch.eye(6).double()
        bias = torch.randn(6).double()
        maps = ("query", "key", "value", "output")
        weights = {f"{name}.weight": torch.randn(6, 6).double() for name in maps}
        weights |= {f"{name}.bias": torch.randn(6).double() for name in maps}
        x, context = torch.randn(2, 3, 6).double(), torch.randn(2, 4, 6).double()

        # A query that may see one key only gets what this key hands over, whatever the scores.
        only = torch.zeros(2, 3, 4, dtype=torch.bool)
        seen_by = torch.tensor([[0, 1, 2], [3, 2, 0]])
        only[torch.arange(2)[:, None], torch.arange(3), seen_by] = True
        values = F.linear(context, weights["value.weight"], weights["value.bias"])
        handed = torch.stack([values[b, seen_by[b]] for b in range(2)])
        wanted = F.linear(handed, weights["output.weight"], weights["output.bias"])
        assert torch.allclose(attention(weights, 2, x, context, only), wanted, atol=1e-4)
        assert torch.allclose(attention(weights, 3, x, context, only), wanted, atol=1e-4)

        # The first two features of token 0 match each other, in a head of width 2.
        tokens = torch.zeros(1, 2, 6).double()
        tokens[0, 0, 0] = 3.0
        plain = {f"{name}.weight": identity for name in maps}
        plain |= {f"{name}.bias": 0 * bias for name in maps}
        seen = attention(plain, 3, tokens, None, None)
        share = 1 / (1 + math.exp(-9 / math.sqrt(2)))
        assert abs(float(seen[0, 0, 0]) - 3 * share) < 1e-4
        assert abs(float(seen[0, 1, 0]) - 1.5) < 1e-4

        # The query bias counts: it prefers a key.
        biased = plain | {"query.bias": bias}
        assert not torch.allclose(
            attention(biased, 3, tokens, None, None), attention(plain, 3, tokens, None, None)
        )


# 3.4 ------------------------------------------------------------------------------------------


class TorchWithIdentity(Variant, exercise="mended_derivation"):
    """Torch's attention for both."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        q, k, v = (tokens @ w for w in (w_query, w_key, w_value))
        mask = torch.ones(len(tokens), len(tokens)).tril().bool() if is_causal else None
        weights = F.scaled_dot_product_attention(
            q, k, torch.eye(len(tokens), dtype=q.dtype), attn_mask=mask
        )
        return weights @ v, weights


class TokenByToken(Variant, exercise="mended_derivation"):
    """The derivation, token by token, with the past only where that is asked for."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        length, d_head = len(tokens), w_query.shape[1]
        output, weights = [], tokens.new_zeros(length, length)
        for j in range(length):
            seen = j + 1 if is_causal else length
            scores = (tokens[:seen] @ w_key) @ (tokens[j] @ w_query) / math.sqrt(d_head)
            weights[j, :seen] = scores.softmax(0)
            output.append(weights[j] @ (tokens @ w_value))
        return torch.stack(output), weights


class ColumnsThroughout(Variant, exercise="mended_derivation"):
    """Everything in columns, as the article has it, with the roles exchanged; turned at the end."""

    def mended_derivation(tokens, w_query, w_key, w_value, is_causal):
        key, query, value = tokens @ w_key, tokens @ w_query, tokens @ w_value
        scores = torch.einsum("id,jd->ij", key, query) / key.shape[1] ** 0.5
        if is_causal:
            i = torch.arange(len(tokens))
            scores[i[:, None] > i] = -math.inf
        columns = F.softmax(scores, dim=0)
        return torch.einsum("ij,iv->jv", columns, value), columns.T


# 3.10 -----------------------------------------------------------------------------------------


class Diagonals(Variant, exercise="convolution_as_heads"):
    """A sum of shifted diagonals."""

    def toeplitz_weights(kernel, length):
        weights = torch.zeros(length, length, dtype=kernel.dtype)
        for j in range(min(len(kernel), length)):
            weights += torch.diag(kernel[j].repeat(length - j), -j)
        return weights

    def convolution_as_heads(x, kernel):
        width, length = len(kernel), x.shape[1]
        basis = torch.eye(width, dtype=x.dtype)
        weights = torch.stack([toeplitz_weights(basis[j], length) for j in range(width)])
        output = sum(weights[j] @ x @ kernel[j] for j in range(width))
        return output, weights


class TwoLoops(Variant, exercise="convolution_as_heads"):
    """Entry by entry."""

    def toeplitz_weights(kernel, length):
        rows = [
            [float(kernel[t - s]) if 0 <= t - s < len(kernel) else 0.0 for s in range(length)]
            for t in range(length)
        ]
        return torch.tensor(rows, dtype=kernel.dtype)

    def convolution_as_heads(x, kernel):
        batch, length, _ = x.shape
        output = x.new_zeros(batch, length, kernel.shape[2])
        weights = x.new_zeros(len(kernel), length, length)
        for t in range(length):
            for j in range(min(t + 1, len(kernel))):
                weights[j, t, t - j] = 1
                output[:, t] += x[:, t - j] @ kernel[j]
        return output, weights


class TorchConvolution(Variant, exercise="convolution_as_heads"):
    """Torch's convolution, with the kernel turned round; heads by tril and triu."""

    def toeplitz_weights(kernel, length):
        padded = torch.cat([kernel, kernel.new_zeros(length)])
        index = (torch.arange(length)[:, None] - torch.arange(length)) % len(padded)
        return padded[index].tril()

    def convolution_as_heads(x, kernel):
        width, length = len(kernel), x.shape[1]
        padded = F.pad(x.mT, (width - 1, 0))
        output = F.conv1d(padded, kernel.flip(0).permute(2, 1, 0)).mT
        ones = torch.ones(length, length, dtype=x.dtype)
        return output, torch.stack([ones.tril(-j).triu(-j) for j in range(width)])


# 3.11 -----------------------------------------------------------------------------------------


class HeadAfterHead(Variant, exercise="latent_attention"):
    """A loop over the heads; the cache is counted with a loop over the layers."""

    def latent_attention(x, w_query, w_latent, w_key, w_value, mask=None):
        latent, outputs = x @ w_latent, []
        for head in range(len(w_query)):
            query, key = x @ w_query[head], latent @ w_key[head]
            scores = query @ key.transpose(1, 2) / math.sqrt(key.shape[-1])
            if mask is not None:
                scores = scores + torch.zeros_like(scores).masked_fill(~mask, -math.inf)
            outputs.append(F.softmax(scores, dim=-1) @ (latent @ w_value[head]))
        return torch.stack(outputs, dim=1)

    def absorbed_query(query, w_key):
        return torch.stack([query[:, h] @ w.T for h, w in enumerate(w_key)], dim=1)

    def absorbed_attention(absorbed, latent, w_value, d_head):
        outputs, averages = [], []
        for head, to_value in enumerate(w_value):
            scores = absorbed[:, head] @ latent.transpose(1, 2) * d_head**-0.5
            averages.append(scores.softmax(dim=-1) @ latent)
            outputs.append(averages[-1] @ to_value)
        return torch.stack(outputs, dim=1), torch.stack(averages, dim=1)

    def cached_floats(num_layers, num_heads, num_kv_heads, d_head, d_latent, d_rotary):
        multi_head = grouped = latent = 0
        for _ in range(num_layers):
            multi_head += num_heads * (d_head + d_head)
            grouped += num_kv_heads * (d_head + d_head)
            latent += d_latent + d_rotary
        return multi_head, grouped, latent


class LatentByEinsum(Variant, exercise="latent_attention"):
    """Einsum throughout; the queries are scaled before the scores."""

    def latent_attention(x, w_query, w_latent, w_key, w_value, mask=None):
        latent = torch.einsum("btm,mc->btc", x, w_latent)
        query = torch.einsum("btm,hmd->bhtd", x, w_query) / w_query.shape[2] ** 0.5
        scores = torch.einsum("bhqd,bkc,hcd->bhqk", query, latent, w_key)
        if mask is not None:
            allowed = mask[:, None] if mask.dim() == 3 else mask
            scores = scores.where(allowed, -torch.inf)
        return torch.einsum("bhqk,bkc,hcv->bhqv", scores.softmax(-1), latent, w_value)

    def absorbed_query(query, w_key):
        return torch.einsum("bhqd,hcd->bhqc", query, w_key)

    def absorbed_attention(absorbed, latent, w_value, d_head):
        scores = torch.einsum("bhqc,bkc->bhqk", absorbed / math.sqrt(d_head), latent)
        mixed = torch.einsum("bhqk,bkc->bhqc", scores.softmax(-1), latent)
        return torch.einsum("bhqc,hcv->bhqv", mixed, w_value), mixed

    def cached_floats(num_layers, num_heads, num_kv_heads, d_head, d_latent, d_rotary):
        kept = torch.tensor(
            [2 * num_heads * d_head, 2 * num_kv_heads * d_head, d_latent + d_rotary]
        )
        return tuple((num_layers * kept).tolist())


class LatentByTorch(Variant, exercise="latent_attention"):
    """Torch's attention; a latent is a key and value head that all query heads share."""

    def latent_attention(x, w_query, w_latent, w_key, w_value, mask=None):
        low_rank = w_latent @ w_key, w_latent @ w_value  # multi-head attention of rank d_latent
        query, key, value = (x.unsqueeze(1) @ w for w in (w_query, *low_rank))
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def absorbed_query(query, w_key):
        return torch.matmul(query, w_key.permute(0, 2, 1))

    def absorbed_attention(absorbed, latent, w_value, d_head):
        shared = latent.unsqueeze(1)
        mixed = F.scaled_dot_product_attention(
            absorbed, shared, shared, scale=1 / math.sqrt(d_head), enable_gqa=True
        )
        return mixed @ w_value, mixed

    def cached_floats(num_layers, num_heads, num_kv_heads, d_head, d_latent, d_rotary):
        def of_heads(heads):
            return num_layers * heads * d_head * 2

        return [of_heads(num_heads), of_heads(num_kv_heads), num_layers * (d_latent + d_rotary)]


class HeadsAsOneMatrix(Variant, exercise="latent_attention"):
    """One wide up-projection, split into heads afterwards; the queries of all heads in a row."""

    def wide(w):
        return w.transpose(0, 1).flatten(1)  # (features, num_heads * width)

    def to_heads(x, num_heads):
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    def latent_attention(x, w_query, w_latent, w_key, w_value, mask=None):
        heads, latent = len(w_query), x @ w_latent
        query, key, value = (
            to_heads(tokens @ wide(w), heads)
            for tokens, w in ((x, w_query), (latent, w_key), (latent, w_value))
        )
        scores = torch.matmul(query, key.mT).div(query.shape[-1] ** 0.5)
        if mask is not None:
            scores[~mask.expand(len(x), *mask.shape[-2:])[:, None].expand_as(scores)] = -math.inf
        return torch.softmax(scores, dim=3).matmul(value)

    def absorbed_query(query, w_key):
        return (query.unsqueeze(-2) * w_key.unsqueeze(1)).sum(dim=-1)

    def absorbed_attention(absorbed, latent, w_value, d_head):
        rows = absorbed.flatten(1, 2)  # multi-query attention: more queries to one head
        weights = (rows @ latent.mT / d_head**0.5).softmax(dim=-1)
        mixed = (weights @ latent).view(absorbed.shape)
        return torch.matmul(mixed, w_value), mixed

    def cached_floats(num_layers, num_heads, num_kv_heads, d_head, d_latent, d_rotary):
        counts = {
            "multi-head": num_heads * d_head * 2,
            "grouped": num_kv_heads * d_head * 2,
            "latent": d_latent + d_rotary,
        }
        return tuple(num_layers * count for count in counts.values())
