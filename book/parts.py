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
                "post": "The product is right. It dies out if its factors are small in size, and "
                "not whenever they are below 1: a factor of $-2$ is. Attention shortens the path "
                "from token to token; the path through the layers still needs its shortcuts.",
            },
        ),
        Part(
            "A map over places learns the same thing once for each place", "r----", "sec-01-weights"
        ),
        Part(
            "Weights from one layer over the whole sequence, or from a function of two tokens",
            "---w-",
            "sec-01-weights",
            "variants.scores.additive_scores",
            notes={
                "essay": "The count of $dn^3$ weights is right. A function of two tokens needs no "
                "invariance to be learned: shared by all pairs, it follows every order of the "
                "tokens by itself, and additive attention is one."
            },
        ),
        Part(
            "What came before it",
            "---w-",
            "ch-attention",
            notes={
                "essay": "The forerunner that it puts a few months earlier is from 2015, two years "
                "earlier; the other one, squeeze and excitation, came three months after "
                "transformers."
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
                "walk-through": "The tokens of its example are words and commas, and its "
                "vocabulary counts characters.",
            },
        ),
        Part(
            "A vector for each token: one row of a table",
            "rssss",
            "sec-00-bigram",
            "core.embedding.InputEmbedding",
            "0.4",
        ),
        Part(
            "Word vectors that were trained before, and stay",
            "--s-s",
            "ch-architectures",
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
                "post": "The value is called a measure of how important a match is. That is the "
                "weight; the value is what is handed over.",
                "walk-through": "The key is called a token's relevance to the query. A key knows "
                "no query; relevance is what the two give together.",
                "essay": "The key is said to choose what its token gathers. That is the query; the "
                "key says by what a token can be found.",
            },
        ),
        Part(
            "Learned maps to queries, keys and values",
            "rwrrr",
            "sec-01-formula",
            "core.multihead.MultiHeadAttention",
            "3.1",
            notes={
                "walk-through": "The code is right. The reason given for the maps, that *apple* "
                "depends on its context, is what the average is for: a map sees one token. And the "
                "printed keys and values come from no such map of the printed tokens.",
            },
        ),
        Part(
            "Two maps, since who looks at whom need not be mutual",
            "----r",
            "sec-01-asymmetry",
            "core.attention.dot_scores",
            "1.3",
        ),
        Part(
            "The weight split in two factors, first numbers and then vectors",
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
                "walk-through": "It is read as closeness of direction. It counts length as well: "
                "in its own example *The* points farthest from the query, and *dipped*, whose key "
                "is short, comes last.",
            },
        ),
        Part(
            "Tokens compared with tokens, not features with features",
            "wrrrr",
            "ch-architectures",
            "core.attention.dot_scores",
            "6.5",
            notes={
                "post": "Formulas have tokens in rows and code has them in columns, and the first "
                "code multiplies as if they were in rows. With three axes, as declared, it does "
                "not run; with two it returns the right shape. Its code for many heads compares "
                "tokens.",
            },
        ),
        Part(
            "Division by $\\sqrt{d_k}$",
            "wwrr-",
            "sec-01-scale",
            "core.attention.attention_weights",
            "1.4 1.5 1.7 6.3",
            notes={
                "post": "The formula is right. It is said to matter little, $d_k$ is called the "
                "width of the embedding, and the code for many heads divides by the root of the "
                "width of the whole model.",
                "walk-through": "Formula and code are right, and its printed numbers skip it.",
                "draft": "Takes the width of the values, which in its code is that of the keys.",
            },
        ),
        Part(
            "Why that root: the variance of a sum of $d_k$ products",
            "ss-w-",
            "sec-01-scale",
            "",
            "1.7",
            notes={
                "essay": "The variance is right, and is that of the dot product of queries and "
                "keys, not of a sum of keys and values. The sum is not normal either, least of all "
                "for few features; and scores with a variance of 1 do not lie between $-1$ and 1.",
            },
        ),
        Part(
            "Softmax over the keys",
            "wrwwr",
            "sec-01-weights",
            "core.masks.masked_softmax",
            "1.4 3.4",
            notes={
                "post": "It is said to preserve relative size. It preserves the order.",
                "draft": "The code sums over the queries, and the formula sums over one index what "
                "it labels with another. With the product that follows, query and key have changed "
                "places.",
                "essay": "Sums over the index of the query, where its first formula has the key: "
                "the two have changed places.",
            },
        ),
        Part(
            "What the values add, and what they cannot",
            "---w-",
            "sec-01-values",
            "core.attention.scaled_dot_product_attention",
            "1.8 1.9",
            notes={
                "essay": "A linear map of the values is to lift the limits of a linear "
                "combination. It can be moved behind the average, and lifts none: what is not "
                "linear is how the weights depend on the tokens.",
            },
        ),
        Part(
            "An example with numbers",
            "-w---",
            "sec-01-example",
            "core.attention.attention_weights",
            "1.6",
            notes={
                "walk-through": "Besides the missing scale: the words that the story wants to have "
                "the most attention are not those that get it, and the row shown guesses what "
                "follows *horizon*, not *horizon*.",
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
                "lecture": "The square of the length is right, its factor, the width, is left out. "
                "The steps of writing grow with the length; the work grows with its square, with a "
                "cache of keys and values as well.",
            },
        ),
        Part(
            "The same numbers without the whole table of weights",
            "---s-",
            "sec-02-online",
            "variants.online_softmax.online_softmax_attention",
            "2.11",
        ),
    ],
    "Masks": [
        Part(
            "No token sees later ones",
            "wrw-r",
            "sec-02-masks",
            "core.masks.causal_mask looking.audit.causality_audit",
            "2.1 2.5 2.9",
            notes={
                "post": "The triangle is right for a table with a row for each query, as in its "
                "formula. Its code has a row for each key, and there the same triangle hides the "
                "past and shows the future.",
                "draft": "A mask of one row hides the same keys from every query.",
            },
        ),
        Part(
            "Hidden before the softmax, by $-\\infty$ in the scores",
            "rrw-r",
            "sec-02-before",
            "core.masks.masked_softmax",
            "2.3",
            notes={
                "draft": "As printed, a bracket closes that was never opened; without it the large "
                "negative number is added to the output.",
            },
        ),
        Part(
            "Filler is hidden",
            "s-w--",
            "sec-02-padding",
            "core.masks.padding_mask looking.audit.padding_invariance",
            "2.2 2.6 2.8",
            notes={
                "post": "Announced for later, and does not come.",
                "draft": "Even inside the softmax the mask would do nothing: every query of a "
                "column gets the same number added, and the column is what the softmax runs along.",
            },
        ),
    ],
    "Many heads": [
        Part(
            "Heads side by side, each on its share of the features",
            "rrw-r",
            "sec-03-reshape",
            "core.multihead.MultiHeadAttention core.multihead.split_heads",
            "3.2 3.3",
            notes={
                "draft": "Nothing is split: each head is as wide as the model, and stands behind "
                "one more map that all of them share and that no code makes.",
            },
        ),
        Part(
            "Joined by one more map, or summed",
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
                "lecture": "One factor of the product is transposed that must not be: two matrices "
                "of $d \\times K$ have no product. That the rank is low is right.",
            },
        ),
        Part(
            "A bank of filters: convolution is attention that does not look",
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
        Part(
            "Sub-layers add to what they read", "rrr-r", "sec-04-stream", "core.blocks.Block", "4.3"
        ),
        Part(
            "What an addition does to the gradient",
            "rw---",
            "sec-04-stream",
            "core.blocks.Block",
            notes={
                "walk-through": "It is said to be distributed equally. It is copied: both sides "
                "get all of it.",
            },
        ),
        Part(
            "LayerNorm: each token by itself, with a gain and a bias",
            "rrw-r",
            "sec-04-axes",
            "core.layers.LayerNorm",
            "4.1 4.10",
            notes={
                "draft": "Normalises over the words, which the author marks as open; an "
                "earlier word then depends on later ones. Gains and biases start anywhere between "
                "$-1$ and 1 instead of at 1 and 0.",
                "lecture": "Leaves out the small number in the root that keeps a token of equal "
                "features from a division by 0.",
            },
        ),
        Part(
            "A norm of its own for every place",
            "wwr-s",
            "sec-04-silent",
            "core.blocks.Block",
            "4.9",
            notes={
                "post": "Its input head uses the first norm twice and the second never.",
                "walk-through": "So does its block.",
            },
        ),
        Part(
            "The place of the norm: after the sum, or in the branch",
            "rrr-w",
            "sec-04-places",
            "core.blocks.Block",
            "4.3 4.9",
            notes={
                "lecture": "A third thing: the sub-layer is added to what was normalised, so that "
                "the stream itself is normalised at every step. The equations without norms, a few "
                "lines before, are right.",
            },
        ),
        Part(
            "A last norm, where norms stand in the branches",
            "-r---",
            "sec-04-tell",
            "core.models.DecoderOnly",
            "4.6",
        ),
        Part(
            "The feed-forward network: wider, bent, and back",
            "rrw-r",
            "sec-04-forward",
            "core.layers.FeedForward",
            "4.2",
            notes={
                "draft": "One layer that ends in a ReLU, so that it never adds anything negative; "
                "its matrix has a column for each word instead of each feature.",
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
                "draft": "The bias has the length of the input and must have that of the output.",
            },
        ),
        Part(
            "Activations",
            "rrwss",
            "sec-00-layers",
            "core.layers.FeedForward core.layers.GatedFeedForward",
            "0.5",
            notes={
                "draft": "Its tanh is $\\tanh(x/2)$, half as steep. Its soft ReLU is the function "
                "that others call SiLU.",
            },
        ),
        Part(
            "First weights",
            "r-w--",
            "sec-04-depth",
            "core.models.initialise",
            "4.7",
            notes={
                "draft": "Anywhere between $-1$ and 1, however wide the layer: the numbers grow "
                "with every layer.",
            },
        ),
        Part(
            "Dropout on what a sub-layer writes",
            "w-w-s",
            "sec-04-dropout",
            "core.blocks.Block",
            "0.7 4.8",
            notes={
                "post": "Puts it after each norm. The paper drops what is written, before it is "
                "added.",
                "draft": "At the feed-forward network alone; and its default rate, 0.8, is the "
                "share that is dropped.",
            },
        ),
        Part(
            "Dropout on tokens with their positions",
            "r-r--",
            "sec-00-layers",
            "core.embedding.InputEmbedding",
            "0.7",
        ),
        Part(
            "Blocks on blocks, each with weights of its own",
            "sww-r",
            "ch-blocks",
            "core.models.DecoderOnly",
            "4.6",
            notes={
                "walk-through": "Says at first that the blocks are independent of each other, and "
                "later, rightly, that each reads what the last one wrote.",
                "draft": "The encoder makes one block, whatever number is asked for, and then goes "
                "through the parts of that block as if they were blocks.",
            },
        ),
    ],
    "Positions": [
        Part(
            "Without positions a sequence is a set",
            "r-w-r",
            "sec-05-set",
            "looking.audit.permutation_equivariance",
            "5.1",
            notes={
                "draft": "Says that a model can do without. A causal decoder can; an encoder, as "
                "the draft has one, then sees a set.",
            },
        ),
        Part(
            "A vector for the place, added to that of the token",
            "rsr-r",
            "sec-05-doors",
            "core.embedding.InputEmbedding",
            notes={"walk-through": "Announced for later, and does not come."},
        ),
        Part(
            "Sinusoids",
            "w-r-s",
            "sec-05-exponent",
            "core.positions.sinusoidal_table",
            "5.2 5.7",
            notes={
                "post": "The formula has the number of the entry where the number of the pair "
                "belongs. Its code is right, and counts places from 1.",
            },
        ),
        Part(
            "What two places have in common",
            "--w--",
            "sec-05-correlated",
            "core.positions.sinusoidal_table",
            notes={
                "draft": "Places are to be uncorrelated. Those of the table that it goes on to use "
                "are not, and are useful for it. Its other wish, that a comparison depends on the "
                "distance, is fulfilled.",
            },
        ),
        Part(
            "Shorter sequences take the first rows of a table",
            "w-w--",
            "sec-05-learned",
            "core.positions.LearnedPositions core.positions.SinusoidalPositions",
            "5.5",
            notes={
                "post": "The whole table is added, so every sequence has to be of one length.",
                "draft": "One number of words is fixed for all sources and targets.",
            },
        ),
        Part(
            "Rotary positions, also for points in space",
            "---w-",
            "sec-05-space",
            "core.positions.rotate variants.positions.rotate_in_space",
            "5.3 5.10",
            notes={
                "essay": "Names a paper of 2023 that uses them in space as their source. They were "
                "introduced in 2021, for text.",
            },
        ),
    ],
    "Encoder and decoder": [
        Part(
            "An encoder reads once, a decoder writes",
            "w-r--",
            "ch-architectures",
            "core.models.EncoderDecoder",
            "6.4",
            notes={
                "post": "The picture is right. The split is called what makes transformers "
                "special: recurrent networks for translation had it before, and decoder-only "
                "transformers do without.",
            },
        ),
        Part(
            "One embedding for both sides",
            "r----",
            "ch-architectures",
            "core.config.EncoderDecoderConfig",
        ),
        Part(
            "Cross attention",
            "s-w--",
            "ch-architectures",
            "core.blocks.DecoderBlock",
            "6.3",
            notes={
                "draft": "Queries come from the decoder, keys and values from the encoder: that is "
                "right. Its attention has exchanged query and key, though, and the product with "
                "the values exists only if source and target are equally long.",
            },
        ),
        Part(
            "The feed-forward network reads what cross attention has added",
            "s-w--",
            "ch-architectures",
            "core.blocks.DecoderBlock",
            notes={"draft": "It reads what was there before, and cross attention is passed by."},
        ),
        Part(
            "The decoder gets target and source in this order",
            "r-w--",
            "ch-architectures",
            "core.models.EncoderDecoder",
            "6.5",
            notes={
                "draft": "The call has them the other way round. Cross attention, which has no "
                "causal mask, then looks at the target, and shows the answers.",
            },
        ),
        Part(
            "The causal mask reaches the decoder",
            "wrr--",
            "ch-architectures",
            "core.models.EncoderDecoder",
            "6.5 6.6",
            notes={"post": "The text asks for it, and the final model passes none."},
        ),
        Part(
            "Filler of the source is hidden from cross attention, too",
            "--w--",
            "ch-architectures",
            "core.blocks.DecoderBlock",
            "6.3 6.5",
            notes={"draft": "Cross attention is given no mask."},
        ),
        Part(
            "Source and target of different lengths",
            "w-w--",
            "ch-architectures",
            "core.models.EncoderDecoder",
            notes={
                "post": "Mask and positions have one number of tokens for both.",
                "draft": "So have its positions.",
            },
        ),
        Part(
            "Whether a prediction depends on where the prompt was split",
            "r----",
            "ch-architectures",
            "core.models.DecoderOnly",
            "6.8",
        ),
        Part(
            "A decoder alone",
            "-r--r",
            "ch-architectures",
            "core.models.DecoderOnly",
            "6.1 6.6",
        ),
        Part(
            "An encoder alone, for a label of the whole",
            "----s",
            "ch-architectures",
            "core.models.EncoderOnly",
            "6.9",
        ),
    ],
    "Output, and the whole": [
        Part(
            "A linear map to the vocabulary",
            "rrw-r",
            "ch-architectures",
            "core.models.DecoderOnly",
            "6.1",
            notes={
                "draft": "Its dense layers are typed with their ReLU, so that the output layer, "
                "which has none, is not taken for one.",
            },
        ),
        Part(
            "Softmax to a distribution",
            "rrrsr",
            "sec-00-softmax",
            "generation.sampling.sample",
            "0.1",
        ),
        Part(
            "A softmax that survives large numbers",
            "--w--",
            "sec-00-softmax",
            "core.masks.masked_softmax",
            "0.1 0.8",
            notes={
                "draft": "Does not subtract the largest number first, and gives no number at 1000.",
            },
        ),
        Part(
            "The list of what is trained",
            "w-w--",
            "sec-03-cost",
            "looking.accounting.parameters",
            "3.7",
            notes={
                "post": "Leaves out gains and biases of the norms.",
                "draft": "Is put together by a broadcast over named tuples, which Julia refuses.",
            },
        ),
        Part(
            "All parts together, and run",
            "www--",
            "ch-architectures",
            "core.models.EncoderDecoder variants.functional.encoder_decoder pretrained.load",
            "6.7",
            notes={
                "post": "The final model is made of two layers whose code is not shown.",
                "walk-through": "The pieces do not fit as they stand: the input has no shape, "
                "blocks are made without sizes, names differ.",
                "draft": "Its author says that no line has been run yet.",
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
                "draft": "Takes the logarithm of a softmax, plus a small number against zeros, and "
                "of a whole vector at once, which needs a dot in Julia.",
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
            "Teacher forcing: the true words so far are given",
            "r-r--",
            "ch-architectures",
            "data.batches.pair_batches",
            "6.2",
        ),
        Part(
            "Shifted by one, from a start token on",
            "wws-r",
            "ch-architectures",
            "data.batches.pair_batches data.batches.language_model_batches",
            "6.2",
            notes={
                "post": "Says that nothing at all may be given to the output head. Something has "
                "to ask for the first word: a start token. The shift is not shown; with the causal "
                "mask but without it, every place sees its own answer.",
                "walk-through": "Shows the row of the word that is to be guessed instead of the "
                "one before it.",
            },
        ),
        Part(
            "Optimiser and schedule",
            "--s-s",
            "ch-architectures",
            "training.loop.adamw training.loop.warmup_inverse_root",
            "6.10",
        ),
    ],
    "Generation": [
        Part(
            "Predict, choose, append, repeat",
            "rss-s",
            "ch-architectures",
            "generation.loop.generate generation.loop.translate",
            "6.4",
        ),
        Part(
            "The source is read once for all steps",
            "r----",
            "ch-architectures",
            "generation.loop.translate",
            "6.4",
        ),
        Part("A token that ends", "r----", "ch-architectures", "generation.loop.translate", "6.4"),
    ],
}


def show(group: str) -> str:
    """Write one group as a table in MyST, and below it what goes wrong where."""
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
    """Turn a word on its side: a column as narrow as a mark leaves room on a phone."""
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


def check(book: Path = BOOK) -> None:
    """Hold every row against the book, the library and the exercises.

    Raises:
        ValueError: If a row names something that there is not, or leaves out what goes wrong.

    """
    labels = {
        label
        for page in book.glob("*.md")
        for label in re.findall(r"^\(([\w-]+)\)=$", page.read_text("utf-8"), re.MULTILINE)
    }
    numbers = {
        number
        for checks in (book.parent / "solutions").glob("*/checks.py")
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
