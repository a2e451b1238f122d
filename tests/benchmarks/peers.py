"""GPT-2's architecture as other libraries build it, with GELU in its exact form."""

import torch
import torch.nn.functional as F
from torch import nn


def hugging_face(num_layers, d_model, num_heads, length, vocab_size, **_):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=length,
        n_embd=d_model,
        n_layer=num_layers,
        n_head=num_heads,
        activation_function="gelu",  # its default, an approximation, takes longer
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(config)

        def forward(self, tokens):
            return self.model(tokens).logits

    return Logits()


def lucidrains(num_layers, d_model, num_heads, length, vocab_size, **_):
    import x_transformers

    return x_transformers.TransformerWrapper(
        num_tokens=vocab_size,
        max_seq_len=length,
        tie_embedding=True,
        attn_layers=x_transformers.Decoder(
            dim=d_model,
            depth=num_layers,
            heads=num_heads,
            attn_dim_head=d_model // num_heads,
            attn_flash=True,
        ),
    )


class TorchLanguageModel(nn.Module):
    def __init__(self, num_layers, d_model, num_heads, length, vocab_size, **_):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            d_model, num_heads, 4 * d_model, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(length, d_model)
        self.blocks = nn.TransformerEncoder(
            layer, num_layers, nn.LayerNorm(d_model), enable_nested_tensor=False
        )
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.blocks(x, mask=self.mask, is_causal=True) @ self.tokens.weight.T


class NanoAttention(nn.Module):
    """nanoGPT's `CausalSelfAttention`: one product makes queries, keys and values."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attend = nn.Linear(d_model, 3 * d_model, bias=False)
        self.project = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(0.0)
        self.num_heads = num_heads

    def forward(self, x):
        parts = self.attend(x).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.dropout(self.project(mixed.transpose(1, 2).contiguous().flatten(2)))


class NanoMLP(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.expand = nn.Linear(d_model, 4 * d_model, bias=False)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(4 * d_model, d_model, bias=False)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(self.contract(self.gelu(self.expand(x))))


class NanoBlock(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.norm_1 = nn.LayerNorm(d_model, bias=False)
        self.attention = NanoAttention(d_model, num_heads)
        self.norm_2 = nn.LayerNorm(d_model, bias=False)
        self.mlp = NanoMLP(d_model)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class NanoGPT(nn.Module):
    """The architecture of nanoGPT, without biases: https://github.com/karpathy/nanoGPT."""

    def __init__(self, num_layers, d_model, num_heads, length, vocab_size, **_):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(length, d_model)
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(NanoBlock(d_model, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


PEERS = {
    "Hugging Face GPT-2 (SDPA)": hugging_face,
    "x-transformers": lucidrains,
    "torch.nn.TransformerEncoder": TorchLanguageModel,
}
