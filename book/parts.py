"""The parts of the models in five texts, beside ours: what the page `parts` shows.

A row says what a text has, and where the course teaches it. `check` holds every name of a row
against what there is: labels of the book, objects of the library, exercises.
"""

import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path

BOOK = Path(__file__).parent
TEXTS = ("post", "walk-through", "draft", "essay", "lecture")
MARKS = {
    "r": ("✓", "right"),
    "w": ("✗", "goes wrong"),
    "s": ("○", "mentioned"),
    "-": ("–", "absent"),
}


@dataclass(frozen=True)
class Part:
    """One row: a part of a transformer, or something that has to be said about one."""

    name: str
    """What the part is, in Markdown."""
    marks: str
    """One letter of `MARKS` for each of `TEXTS`."""
    label: str
    """Of the section or chapter that teaches it."""
    objects: str = ""
    """Of the library, `core.attention.attention_weights`; several by spaces."""
    exercises: str = ""
    """Numbers, several by spaces."""
    notes: dict[str, str] = field(default_factory=dict)
    """What goes wrong, by text. Every `w` has one."""
    left_out: bool = False
    """Whether our models do without it."""


GROUPS: dict[str, list[Part]] = {
    "Before attention": [
        Part(
            "A recurrent network, and the product in its gradient",
            "w-srr",
            "sec-00-recurrent",
            notes={
                "post": "The product is correct. It vanishes if the magnitude of its "
                "factors is small, not whenever they are below 1, as $-2$ is. "
                "Attention shortens the path from token to token; the path "
                "through the layers still needs residual connections.",
            },
        ),
        Part(
            "A linear layer over positions learns the same thing once for each position",
            "r----",
            "sec-01-weights",
        ),
        Part(
            "Weights from one layer over the whole sequence, or from a function of two tokens",
            "---w-",
            "sec-01-weights",
            "variants.scores.additive_scores",
            notes={
                "essay": "The count of $dn^3$ weights is correct. A function of two "
                "tokens need not learn invariance: shared by all pairs, it is "
                "permutation equivariant. Additive attention is such a function."
            },
        ),
        Part(
            "What came before the transformer",
            "---w-",
            "ch-attention",
            notes={
                "essay": "One predecessor came almost two years before the transformer, "
                "not a few months; the other, squeeze-and-excitation, came "
                "three months after it."
            },
        ),
    ],
    "Tokens and their vectors": [
        Part(
            "Tokens of any kind, and a vocabulary of them",
            "rwssr",
            "sec-00-tokens",
            "data.tokenizers.CharacterTokenizer data.tokenizers.BytePairTokenizer",
            notes={
                "walk-through": "The tokens of its example are words and commas, but its "
                "vocabulary is counted in characters.",
            },
        ),
        Part(
            "A vector for each token: a row of the embedding matrix",
            "rssss",
            "sec-00-bigram",
            "core.embedding.InputEmbedding",
            "0.4",
        ),
        Part(
            "Pretrained word vectors, kept fixed",
            "--s-s",
            "sec-06-vectors",
            "data.word_vectors.read_word_vectors data.word_vectors.embedding_from",
        ),
    ],
    "Attention": [
        Part(
            "A weighted average, its weights summing to 1",
            "rrrrr",
            "sec-01-weights",
            "core.attention.attention_weights",
            "1.1",
        ),
        Part(
            "What query, key and value are for",
            "wwrwr",
            "sec-01-dictionary",
            "core.attention.scaled_dot_product_attention",
            "1.2",
            notes={
                "post": "The value is called a measure of how important a match is. "
                "That is the weight; the value is what is passed on.",
                "walk-through": "The key is called a token's relevance to the query. A key "
                "does not depend on any query; the score of the two is the "
                "relevance.",
                "essay": "The key is said to choose what its token gathers. The query "
                "does that; the key determines which queries find the token.",
            },
        ),
        Part(
            "Learned projections to queries, keys and values",
            "rwrrr",
            "sec-01-formula",
            "core.multihead.MultiHeadAttention",
            "3.1",
            notes={
                "walk-through": "The code is correct. The reason given for the projections, "
                "that *apple* depends on its context, is a reason for the "
                "average: a projection sees one token. And no projection of "
                "the printed tokens gives the printed keys and values.",
            },
        ),
        Part(
            "Two projections, because attention need not be symmetric",
            "----r",
            "sec-01-asymmetry",
            "core.attention.dot_scores",
            "1.3",
        ),
        Part(
            "The weight as a product of two factors, first numbers and then vectors",
            "---r-",
            "sec-01-rank-one",
            "core.attention.dot_scores",
        ),
        Part(
            "The dot product, and what it measures",
            "rwrrr",
            "sec-01-dot",
            "core.attention.dot_scores",
            "1.3",
            notes={
                "walk-through": "It is interpreted as closeness of direction. It depends on "
                "the norm as well: in the printed example *The* has the largest "
                "angle to the query, but *dipped*, whose key is short, gets "
                "the smallest weight.",
            },
        ),
        Part(
            "Tokens compared with tokens, not features with features",
            "wrrrr",
            "sec-06-square",
            "core.attention.dot_scores",
            "6.5",
            notes={
                "post": "Tokens are rows in the formulas and columns in the code, and "
                "the first listing multiplies as if they were rows. With three "
                "axes, as declared, it does not run; with two it returns the "
                "right shape. Its code for several heads does compare tokens.",
            },
        ),
        Part(
            "Division by $\\sqrt{d_k}$",
            "wwrr-",
            "sec-01-scale",
            "core.attention.attention_weights",
            "1.4 1.5 1.7 6.3",
            notes={
                "post": "The formula is correct. But the scale is said to matter "
                "little, $d_k$ is called the width of the embedding, and the "
                "code for several heads divides by the root of the model's "
                "width.",
                "walk-through": "Formula and code are correct, but the printed numbers omit "
                "the scale.",
                "draft": "Uses the width of the values, which in its code equals that of the keys.",
            },
        ),
        Part(
            "Why that root: the variance of a sum of $d_k$ products",
            "ss-w-",
            "sec-01-scale",
            "",
            "1.7",
            notes={
                "essay": "The variance is correct for the dot product of queries and "
                "keys, not for a sum of keys and values. The sum is not "
                "normal, least of all for few features, and scores with a "
                "variance of 1 need not lie between $-1$ and 1.",
            },
        ),
        Part(
            "Softmax over the keys",
            "wrwwr",
            "sec-01-weights",
            "core.masks.masked_softmax",
            "1.4 3.4",
            notes={
                "post": "It is said to preserve relative sizes. It preserves the order, not "
                "the ratios.",
                "draft": "The code sums over the queries, and the formula sums over "
                "one index while its terms have another. Together with the product "
                "that follows, this swaps query and key.",
                "essay": "Sums over the index of the query, where its first formula "
                "has the key: the two are swapped.",
            },
        ),
        Part(
            "What the values can do, and what they cannot",
            "---w-",
            "sec-01-values",
            "core.attention.scaled_dot_product_attention",
            "1.8 1.9",
            notes={
                "essay": "A projection of the values is said to lift the limits of a "
                "linear combination. It can be applied after the average, so "
                "it lifts none: what is not linear is how the weights depend "
                "on the tokens.",
            },
        ),
        Part(
            "An example with numbers",
            "-w---",
            "sec-01-example",
            "core.attention.attention_weights",
            "1.6",
            notes={
                "walk-through": "Besides the missing scale: the words that should get the "
                "most attention according to the text do not, and the row "
                "shown predicts what follows *horizon*, not *horizon*.",
            },
        ),
        Part(
            "Other scores, such as distances",
            "---s-",
            "sec-01-scores",
            "variants.scores.manhattan_scores variants.scores.mahalanobis_scores",
        ),
        Part(
            "What it costs",
            "----w",
            "sec-01-cost",
            "looking.accounting.forward_flops looking.accounting.decoding_flops",
            "3.7",
            notes={
                "lecture": "The square of the length is correct; its factor, the width, "
                "is missing. The steps of generation grow with the length, "
                "but the work grows with its square, even with a KV cache.",
            },
        ),
        Part(
            "The same numbers without storing the matrix of weights",
            "---s-",
            "sec-02-online",
            "variants.online_softmax.online_softmax_attention",
            "2.11",
        ),
    ],
    "Masks": [
        Part(
            "The causal mask",
            "wrw-r",
            "sec-02-why",
            "core.masks.causal_mask looking.audit.causality_audit",
            "2.1 2.5 2.9",
            notes={
                "post": "The triangle is correct for a matrix with a row for each "
                "query, as in its formula. Its code has a row for each key, "
                "where the same triangle hides the past and shows the future.",
                "draft": "A mask of one row hides the same keys from every query.",
            },
        ),
        Part(
            "Masking before the softmax, by $-\\infty$ in the scores",
            "rrw-r",
            "sec-02-before",
            "core.masks.masked_softmax",
            "2.3",
            notes={
                "draft": "As printed, a bracket closes that was never opened; without "
                "it, the large negative number is added to the output.",
            },
        ),
        Part(
            "The padding mask",
            "s-w--",
            "sec-02-padding",
            "core.masks.padding_mask looking.audit.padding_invariance",
            "2.2 2.6 2.8",
            notes={
                "post": "Announced for later, but missing.",
                "draft": "Even inside the softmax, the mask would do nothing: it adds "
                "the same number to every score of a column, and the softmax "
                "runs down the column.",
            },
        ),
    ],
    "Many heads": [
        Part(
            "Several heads in parallel, each of a fraction of the width",
            "rrw-r",
            "sec-03-reshape",
            "core.multihead.MultiHeadAttention core.multihead.split_heads",
            "3.2 3.3",
            notes={
                "draft": "Nothing is split: each head is as wide as the model, and "
                "its input comes from one more projection, shared by all heads, that "
                "no code defines.",
            },
        ),
        Part(
            "The output projection, or a sum over heads",
            "rrr-r",
            "sec-03-sum",
            "core.multihead.merge_heads",
            "3.3",
        ),
        Part(
            "A head as a matrix of low rank",
            "----w",
            "sec-03-sum",
            "core.multihead.MultiHeadAttention",
            "3.6",
            notes={
                "lecture": "One factor of the product is transposed and must not be: two "
                "$d \\times K$ matrices have no product. That the rank is low "
                "is correct.",
            },
        ),
        Part(
            "Convolution as attention with fixed weights",
            "----r",
            "sec-03-convolution",
            "core.multihead.MultiHeadAttention",
            "3.10",
        ),
        Part("What heads learn", "-s---", "sec-03-learned", "pretrained.load"),
        Part(
            "Dropout on the weights",
            "r----",
            "sec-04-dropout",
            "core.attention.scaled_dot_product_attention",
        ),
    ],
    "The block": [
        Part("Residual connections", "rrr-r", "sec-04-stream", "core.blocks.Block", "4.3"),
        Part(
            "The gradient of a residual connection",
            "rw---",
            "sec-04-stream",
            "core.blocks.Block",
            notes={
                "walk-through": "It is said to be distributed equally. It is copied: both "
                "branches get all of it.",
            },
        ),
        Part(
            "LayerNorm over the features of each token, with gain and bias",
            "rrw-r",
            "sec-04-axes",
            "core.layers.LayerNorm",
            "4.1 4.10",
            notes={
                "draft": "Normalises over the words, which the author marks as an open "
                "question; an earlier word then depends on later ones. Gains and biases "
                "are initially random between $-1$ and 1 instead of 1 and 0.",
                "lecture": "Omits the small number in the root that prevents a division "
                "by 0 for a token of equal features.",
            },
        ),
        Part(
            "A separate norm for each sub-layer",
            "wwr-s",
            "sec-04-silent",
            "core.blocks.Block",
            "4.9",
            notes={
                "post": "Its encoder block uses the first norm twice and the second never.",
                "walk-through": "The same in its block.",
            },
        ),
        Part(
            "Post-norm or pre-norm",
            "rrr-w",
            "sec-04-places",
            "core.blocks.Block",
            "4.3 4.9",
            notes={
                "lecture": "Neither: the sub-layer's output is added to the normalised "
                "vector, so the stream itself is normalised at every step. "
                "The equations without norms, a few lines before, are "
                "correct.",
            },
        ),
        Part(
            "The final norm of a pre-norm stack",
            "-r---",
            "sec-04-tell",
            "core.models.DecoderOnly",
            "4.6",
        ),
        Part(
            "The feed-forward network: expand, apply a nonlinearity, project back",
            "rrw-r",
            "sec-04-forward",
            "core.layers.FeedForward",
            "4.2",
            notes={
                "draft": "One layer that ends in a ReLU, so it never adds anything "
                "negative; its matrix has a column for each word instead of "
                "each feature.",
            },
        ),
        Part(
            "What the feed-forward network costs",
            "----r",
            "sec-04-forward",
            "looking.accounting.forward_flops",
        ),
        Part(
            "Dense layers",
            "rrws-",
            "sec-00-layers",
            "variants.functional.decoder_only",
            notes={
                "draft": "The bias has the length of the input, and should have that "
                "of the output.",
            },
        ),
        Part(
            "Activation functions",
            "rrwss",
            "sec-00-layers",
            "core.layers.FeedForward core.layers.GatedFeedForward",
            "0.5",
            notes={
                "draft": "Its tanh is $\\tanh(x/2)$, half as steep at 0. Its smooth "
                "ReLU is the function called SiLU.",
            },
        ),
        Part(
            "Initial weights",
            "r-w--",
            "sec-04-depth",
            "core.models.initialise",
            "4.7",
            notes={
                "draft": "Uniform between $-1$ and 1, whatever the width: activations "
                "grow with every layer.",
            },
        ),
        Part(
            "Dropout on the output of a sub-layer",
            "w-w-s",
            "sec-04-dropout",
            "core.blocks.Block",
            "0.7 4.8",
            notes={
                "post": "Puts it after each norm. The paper applies it to the output "
                "of a sub-layer, before it is added.",
                "draft": "Only in the feed-forward network; and its default rate, 0.8, "
                "is the fraction that is dropped.",
            },
        ),
        Part(
            "Dropout on embeddings with positions",
            "r-r--",
            "sec-00-layers",
            "core.embedding.InputEmbedding",
            "0.7",
        ),
        Part(
            "A stack of blocks, each with its own weights",
            "sww-r",
            "ch-blocks",
            "core.models.DecoderOnly",
            "4.6",
            notes={
                "walk-through": "Says first that the blocks are independent of each other, "
                "and later, correctly, that each reads the output of the one "
                "before.",
                "draft": "The encoder makes one block, whatever number is asked for, "
                "and then iterates over the parts of that block as if they "
                "were blocks.",
            },
        ),
    ],
    "Positions": [
        Part(
            "Without positions, a sequence is a set",
            "r-w-r",
            "sec-05-set",
            "looking.audit.permutation_equivariance",
            "5.1",
            notes={
                "draft": "Says that a model can do without positions. A causal decoder "
                "can; the encoder of the draft then sees a set.",
            },
        ),
        Part(
            "A position vector, added to the embedding",
            "rsr-r",
            "sec-05-doors",
            "core.embedding.InputEmbedding",
            notes={"walk-through": "Announced for later, but missing."},
        ),
        Part(
            "Sinusoidal positions",
            "w-r-s",
            "sec-05-exponent",
            "core.positions.sinusoidal_table",
            "5.2 5.7",
            notes={
                "post": "The formula has the index of the feature where the index of "
                "the pair belongs. Its code is correct, and counts positions "
                "from 1.",
            },
        ),
        Part(
            "The dot product of two positions",
            "--w--",
            "sec-05-correlated",
            "core.positions.sinusoidal_table",
            notes={
                "draft": "Positions are said to be uncorrelated. In the table that it "
                "then uses they are not, which is useful. Its other "
                "requirement, that the dot product depends on the distance "
                "alone, holds.",
            },
        ),
        Part(
            "Shorter sequences take the first rows of a table",
            "w-w--",
            "sec-05-learned",
            "core.positions.LearnedPositions core.positions.SinusoidalPositions",
            "5.5",
            notes={
                "post": "The whole table is added, so every sequence must have the same length.",
                "draft": "One number of words is fixed for all sources and targets.",
            },
        ),
        Part(
            "Rotary positions, in one and more dimensions",
            "---w-",
            "sec-05-space",
            "core.positions.rotate variants.positions.rotate_in_space",
            "5.3 5.10",
            notes={
                "essay": "Credits them to a paper of 2023 that uses them for points in "
                "space. They were introduced in 2021, for text.",
            },
        ),
    ],
    "Encoder and decoder": [
        Part(
            "An encoder reads once, a decoder generates",
            "w-r--",
            "sec-06-pair",
            "core.models.EncoderDecoder",
            "6.4",
            notes={
                "post": "The figure is correct. The split is said to make transformers "
                "special, but recurrent networks for translation had it before, "
                "and decoder-only transformers do without.",
            },
        ),
        Part(
            "One embedding for both sides",
            "r----",
            "ch-architectures",
            "core.config.EncoderDecoderConfig",
        ),
        Part(
            "Cross-attention",
            "s-w--",
            "sec-06-cross",
            "core.blocks.DecoderBlock",
            "6.3",
            notes={
                "draft": "Queries rightly come from the decoder, keys and values "
                "from the encoder. But its attention swaps query and key, and "
                "the product with the values exists only if source and target "
                "have the same length.",
            },
        ),
        Part(
            "The feed-forward network reads the output of cross-attention",
            "s-w--",
            "ch-architectures",
            "core.blocks.DecoderBlock",
            notes={
                "draft": "It reads the vector from before cross-attention, so within a "
                "block it never sees the source."
            },
        ),
        Part(
            "The decoder gets target and source, in this order",
            "r-w--",
            "sec-06-leak",
            "core.models.EncoderDecoder",
            "6.5",
            notes={
                "draft": "The call swaps them. Cross-attention, which has no causal "
                "mask, then sees the whole target.",
            },
        ),
        Part(
            "The causal mask reaches the decoder",
            "wrr--",
            "ch-architectures",
            "core.models.EncoderDecoder",
            "6.5 6.6",
            notes={"post": "The text asks for it, but the final model passes none."},
        ),
        Part(
            "Cross-attention gets the source's padding mask",
            "--w--",
            "sec-06-batch",
            "core.blocks.DecoderBlock",
            "6.3 6.5",
            notes={"draft": "Cross-attention gets no mask."},
        ),
        Part(
            "Source and target of different lengths",
            "w-w--",
            "ch-architectures",
            "core.models.EncoderDecoder",
            notes={
                "post": "Mask and positions have one length for both.",
                "draft": "The same for its positions.",
            },
        ),
        Part(
            "Whether a prediction depends on where the prompt ends",
            "r----",
            "sec-06-split",
            "core.models.DecoderOnly",
            "6.8",
        ),
        Part(
            "Decoder-only models",
            "-r--r",
            "sec-06-masks",
            "core.models.DecoderOnly",
            "6.1 6.6",
        ),
        Part(
            "Encoder-only models, for a label of the whole sequence",
            "----s",
            "sec-06-encoder",
            "core.models.EncoderOnly",
            "6.9",
        ),
    ],
    "Output, and the whole": [
        Part(
            "The unembedding",
            "rrw-r",
            "ch-architectures",
            "core.models.DecoderOnly",
            "6.1",
            notes={
                "draft": "Its type for dense layers includes a ReLU, so the output "
                "layer, which has none, is not accepted as one.",
            },
        ),
        Part(
            "A softmax over the vocabulary",
            "rrrsr",
            "sec-00-softmax",
            "generation.sampling.sample",
            "0.1",
        ),
        Part(
            "A numerically stable softmax",
            "--w--",
            "sec-00-softmax",
            "core.masks.masked_softmax",
            "0.1 0.8",
            notes={
                "draft": "Does not subtract the largest number first, and returns NaN at 1000.",
            },
        ),
        Part(
            "The list of all parameters",
            "w-w--",
            "sec-03-cost",
            "looking.accounting.parameters",
            "3.7",
            notes={
                "post": "Omits gains and biases of the norms.",
                "draft": "Collects them by a broadcast over named tuples, which Julia "
                "does not allow.",
            },
        ),
        Part(
            "All parts together, in a program that runs",
            "www--",
            "ch-architectures",
            "core.models.EncoderDecoder variants.functional.encoder_decoder pretrained.load",
            "6.7",
            notes={
                "post": "The final model uses two layers whose code is not shown.",
                "walk-through": "The pieces do not fit as printed: the input has no shape, "
                "blocks are made without sizes, names differ.",
                "draft": "Its author says that no line has been tested yet.",
            },
        ),
    ],
    "Training": [
        Part(
            "Gradients of a whole program, and a step against them",
            "--r--",
            "sec-00-descent",
            "variants.functional.sgd_step",
            "0.6",
        ),
        Part(
            "Cross-entropy, from logits",
            "r-w--",
            "sec-00-surprise",
            "training.loop.cross_entropy",
            "0.2",
            notes={
                "draft": "Adds a small number to the softmax before the logarithm, to avoid "
                r"$\ln 0$, which caps the loss. And in Julia the logarithm of a "
                "vector needs a dot.",
            },
        ),
        Part(
            "Pairs of input and output, cut from sentences",
            "r----",
            "ch-architectures",
            "data.batches.pair_batches",
            "6.2",
        ),
        Part(
            "Teacher forcing",
            "r-r--",
            "sec-06-live",
            "data.batches.pair_batches",
            "6.2",
        ),
        Part(
            "Targets shifted by one, and a start token",
            "wws-r",
            "sec-06-decoder",
            "data.batches.pair_batches data.batches.language_model_batches",
            "6.2",
            notes={
                "post": "Says that the decoder's initial input may be empty. The "
                "first word needs an input: a start token. The shift is not "
                "shown; with the causal mask but without the shift, every "
                "position sees its own target.",
                "walk-through": "Shows the row of the word to be predicted instead of the one "
                "before it.",
            },
        ),
        Part(
            "Optimizer and schedule",
            "--s-s",
            "sec-07-adamw",
            "training.loop.adamw training.loop.warmup_inverse_root",
            "6.10 7.2 7.3",
        ),
    ],
    "Generation": [
        Part(
            "Predict, choose, append, repeat",
            "rss-s",
            "sec-08-generate",
            "generation.loop.generate generation.loop.translate",
            "6.4",
        ),
        Part(
            "The source is encoded once for all steps",
            "r----",
            "sec-06-writing",
            "generation.loop.translate",
            "6.4",
        ),
        Part("An end token", "r----", "sec-06-writing", "generation.loop.translate", "6.4"),
    ],
}


def show(group: str) -> str:
    """Return one group as a table in MyST, and below it what is wrong in which text."""
    rows = [f"| part | {' | '.join(map(_upright, (*TEXTS, 'ours')))} |"]
    rows.append("|---|" + ":---:|" * (len(TEXTS) + 1))
    notes = []
    for part in GROUPS[group]:
        ours = "-" if part.left_out else "r"
        rows.append(f"| {_ours(part)} | {' | '.join(map(_mark, part.marks + ours))} |")
        if part.notes:
            said = " ".join(f"*{text}:* {note}" for text, note in part.notes.items())
            notes.append(f"- **{part.name}.** {said}")
    return "\n".join([*rows, "", *notes, ""])


def _upright(text: str) -> str:
    """Rotate a word, so that its column is as narrow as a mark and fits a phone."""
    return f'<span style="writing-mode: vertical-rl">{text}</span>'


def _mark(letter: str) -> str:
    sign, word = MARKS[letter]
    return f'<span role="img" aria-label="{word}" title="{word}">{sign}</span>'


def _ours(part: Part) -> str:
    pieces = [f"{{ref}}`{part.label}`"]
    for name in part.objects.split():
        breakable = re.sub(r"([._])", r"\1<wbr>", name)
        pieces.append(f"<code>{breakable}</code>")
    if part.exercises:
        numbers = part.exercises.split()
        word = "exercise" if len(numbers) == 1 else "exercises"
        pieces.append(f"{word}&nbsp;{', '.join(numbers)}")
    return f"**{part.name}**<br>{' · '.join(pieces)}"


def check() -> None:
    """Check every row against the book, the library and the exercises.

    Raises:
        ValueError: If a row names something that there is not, or leaves out what goes wrong.

    """
    labels = {
        label
        for page in BOOK.glob("*.md")
        for label in re.findall(r"^\(([\w-]+)\)=$", page.read_text("utf-8"), re.MULTILINE)
    }
    numbers = {
        number
        for checks in (BOOK.parent / "solutions").glob("*/checks.py")
        for number in re.findall(
            r'^    number="([\d.]+)",$', checks.read_text("utf-8"), re.MULTILINE
        )
    }
    for part in (part for group in GROUPS.values() for part in group):
        if len(part.marks) != len(TEXTS) or set(part.marks) - set(MARKS):
            raise ValueError(
                f"a part must have one mark for each text, got {part.marks!r} for {part.name}"
            )
        wrong = {text for text, mark in zip(TEXTS, part.marks, strict=True) if mark == "w"}
        absent = {text for text, mark in zip(TEXTS, part.marks, strict=True) if mark == "-"}
        if (
            wrong - part.notes.keys()
            or part.notes.keys() & absent
            or part.notes.keys() - set(TEXTS)
        ):
            raise ValueError(
                f"what goes wrong must be told, and nothing of what is absent: {part.name}"
            )
        if part.label not in labels:
            raise ValueError(
                f"a part must be taught somewhere, got no label {part.label}: {part.name}"
            )
        for name in part.objects.split():
            module, attribute = name.rsplit(".", 1)
            if not hasattr(importlib.import_module(f"groundup.{module}"), attribute):
                raise ValueError(f"the library must have groundup.{name}: {part.name}")
        if missing := set(part.exercises.split()) - numbers:
            raise ValueError(f"exercises must exist, got {', '.join(sorted(missing))}: {part.name}")
