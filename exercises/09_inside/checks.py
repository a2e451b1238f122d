"""What is graded in chapter 09, inside a transformer, and the capstone.

Made by `classroom release`: what is right, and what known mistakes return, comes as data in
prepared.zip.
"""

import contextlib
import functools
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes

from classroom.calls.subject import NotHandedIn
from classroom.exercise.cases import Case
from classroom.exercise.comparing import describe, differs
from classroom.exercise.expect import (
    CheckFailed,
    exercise,
    expect,
    expect_agrees,
    expect_answer,
    expect_inputs_unchanged,
    points,
)
from classroom.exercise.prepared import handed_out


def fail_as(case, name, problem):
    """Say what is wrong, and which known mistake that is."""
    raise CheckFailed(problem, [mistake for mistake in case.mistakes if mistake.name == name])


# 9.1 ------------------------------------------------------------------------------------------

PARTS = ("query1", "key1", "value1", "output1", "query2", "key2", "value2", "output2")


def wrong_weights(weights, vocab_size, max_len):
    """Say what is wrong with the form of a model's weights, if anything."""
    d_model = 3 * vocab_size + max_len
    if not isinstance(weights, dict):
        return f"weights should be a dict of {', '.join(PARTS)}; it is {describe(weights)}"
    for name in PARTS:
        if name not in weights:
            return f"weights should be a dict of {', '.join(PARTS)}; {name} is missing"
    if more := set(weights) - set(PARTS):
        return f"weights should be a dict of {', '.join(PARTS)}; {min(more)} is not one of them"
    for name, weight in weights.items():
        axis = name.startswith("output")
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
            return f"{name} should be a matrix; it is {describe(weight)}"
        if weight.shape[axis] != d_model:
            axes = "(d_head, d_model)" if axis else "(d_model, d_head)"
            return f"{name} has shape {tuple(weight.shape)}, expected {axes}, d_model={d_model}"
        if not weight.is_floating_point() or not weight.isfinite().all():
            return f"{name} must contain finite floating-point numbers"
    for left, right in (("query1", "key1"), ("query2", "key2")):
        if weights[left].shape != weights[right].shape:
            return f"{left} and {right} differ in d_head: {widths(weights, left, right)}"
    for left, right in (("value1", "output1"), ("value2", "output2")):
        if weights[left].shape[1] != weights[right].shape[0]:
            return f"{left} and {right} differ in d_head: {widths(weights, left, right)}"
    return None


def widths(weights, left, right):
    return f"{tuple(weights[left].shape)} and {tuple(weights[right].shape)}"


def run_two_layers(tokens, weights, vocab_size, max_len):
    """Do what the notebook's `attention_only` does, by torch's own attention."""
    token = F.one_hot(tokens, vocab_size).double()
    place = torch.eye(max_len, dtype=torch.float64)[: tokens.shape[1]]
    nothing = torch.zeros_like(token)
    x = torch.cat([token, place.expand(len(tokens), -1, -1), nothing, nothing], dim=-1)
    maps = []
    for layer in "12":
        read = {part: x @ weights[part + layer].double() for part in ("query", "key", "value")}
        identity = torch.eye(tokens.shape[1], dtype=torch.float64).expand(len(tokens), -1, -1)
        attend = partial(F.scaled_dot_product_attention, is_causal=True)
        maps.append(attend(read["query"], read["key"], identity))
        x = x + attend(**read) @ weights["output" + layer].double()
    return x[..., -vocab_size:], maps


def asked_places(tokens):
    """List (row, place, right answer) where a token stands for the second time."""
    found = []
    for row, sequence in enumerate(tokens.tolist()):
        for place, token in enumerate(sequence):
            if sequence[:place].count(token) == 1:
                found.append((row, place, sequence[sequence.index(token) + 1]))
    return found


def draw_tokens(case, low, high, *shape):
    return torch.randint(low, high, shape, generator=case.generator)


def said_twice(case, most_tokens=32):
    """More tokens than positions: neither width of a head fits both layers by chance."""
    vocab_size = case.integer(22, most_tokens)
    passages = [torch.randperm(vocab_size - 1, generator=case.generator)[:7] + 1 for _ in range(3)]
    rows = [torch.cat([torch.zeros(1, dtype=torch.long), p, p]) for p in passages]
    return torch.stack(rows), vocab_size, case.integer(15, 20)


def at_random(case, most_tokens=13):
    """Sequences that fill all positions, of which there are more than tokens."""
    vocab_size = case.integer(6, most_tokens)
    tokens = draw_tokens(case, 1, vocab_size, 5, case.integer(17, 23))
    return F.pad(tokens, (1, 0)), vocab_size, tokens.shape[1] + 1


def long_text(case, most_tokens=7):
    """A rare token, what follows it, then two hundred others, then the rare token again."""
    vocab_size, length = case.integer(most_tokens // 2 + 2, most_tokens), case.integer(180, 220)
    others = draw_tokens(case, 3, vocab_size, length)
    tokens = torch.cat([torch.tensor([0, 1, 2]), others, torch.tensor([1])])
    return tokens[None], vocab_size, length + case.integer(4, 30)


def guesses(logits):
    """Take the best token; what is equal up to rounding is a tie, which the first one wins."""
    return (logits * 1e6).round().argmax(dim=-1)


def shares(tokens, maps):
    """Say how much layer 1 gives to the place before, and layer 2 to what followed.

    Returns:
        For each layer the share on average, and whether no other place ever gets more.

    """
    found = []
    for layer in range(2):
        asked = []
        for row, place, _ in asked_places(tokens):
            first = tokens[row].tolist().index(tokens[row, place])
            by, at = (first + 1, first) if layer == 0 else (place, first + 1)
            others = maps[layer][row, by].where(torch.arange(maps[layer].shape[2]) != at, 0.0)
            asked.append([maps[layer][row, by, at], others.max()])
        share, most = torch.tensor(asked).T
        found.append((float(share.mean()), bool((share > 1.01 * most).all())))
    return found


# Which part of the vectors each matrix reads, or writes.
WIRING = dict(
    zip(PARTS, "position position token before token before token guess".split(), strict=True)
)


def wired_elsewhere(weights, vocab_size, max_len):
    """Say of each matrix that does not use the part it should, and no other, which it uses."""
    found, sizes = {}, (vocab_size, max_len, vocab_size, vocab_size)
    for name, part in WIRING.items():
        weight, verb = weights[name], "reads"
        if name.startswith("output"):
            weight, verb = weight.T, "writes into"
        rows = zip(("token", "position", "before", "guess"), weight.split(sizes), strict=True)
        used = [f"`{other}`" for other, some in rows if some.any()]
        if used != [f"`{part}`"]:
            found[name] = f"{name} {verb} {' and '.join(used) or 'nothing'}, not `{part}`"
        elif part != "position" and (number := int(weight.any(dim=1).sum())) < vocab_size - 1:
            found[name] = f"{name} {verb} only {number} of the {vocab_size} features of `{part}`"
    return found


def induction_request(tokens, vocab_size, max_len, noted=None):
    """Ask for weights, run them, and return what the model says and where its layers look.

    How sharply they look, and what is wired elsewhere, goes to `noted`: it is worth telling, and no
    sign of a mistake.
    """

    def ask(subject):
        weights = subject.call("induction_weights", vocab_size, max_len)
        if problem := wrong_weights(weights, vocab_size, max_len):
            return problem
        logits, maps = run_two_layers(tokens, weights, vocab_size, max_len)
        if noted is not None:
            noted[:] = *shares(tokens, maps), wired_elsewhere(weights, vocab_size, max_len)
        places = asked_places(tokens)
        said = [int(guesses(logits[row, place])) for row, place, _ in places]
        looks = [[int(guesses(m[row, place])) for row, place, _ in places] for m in maps]
        return [said, looks]

    ask.asked = induction_request, (tokens, vocab_size, max_len)
    return ask


def judge_induction(tokens, noted, answer):
    if isinstance(answer, str):
        return answer
    places = asked_places(tokens)
    wrong = [
        (row, place, said, right)
        for (row, place, right), said in zip(places, answer[0], strict=True)
        if said != right
    ]
    if not wrong:
        return None
    row, place, said, right = wrong[0]
    sequence = tokens[row, : place + 1].tolist()
    shown = str(sequence) if len(sequence) <= 30 else f"{sequence[:5]} … {sequence[-5:]}"
    return (
        f"{len(wrong)} of {len(places)} predictions are wrong. After {shown.replace('] … [', ', …, ')} "
        f"the model predicts {said}, but the first {sequence[-1]} was followed by {right}. On average, "
        f"layer 1 gives {noted[0][0]:.2f} of its attention to the previous position, and layer 2 "
        f"{noted[1][0]:.2f} to the position that followed the first time{what_to_change(noted)}"
    )


def what_to_change(noted):
    """Say which matrices make a layer look elsewhere, or not at the right place alone."""
    *looks, wired = noted
    soft = [f"layer {n}" for n, (share, is_most) in enumerate(looks, 1) if is_most and share < 0.9]
    if soft:
        return (
            f". In {' and '.join(soft)} the right position gets more than any other, but not nearly "
            "all: its score must exceed the others by more, the more of them there are"
        )
    if noted[0][0] < 0.9:
        said, names = ". Look at query1 and key1 first: they decide where layer 1 looks", PARTS[:2]
    elif noted[1][0] < 0.9:
        said, names = (
            (
                ". So layer 1 looks at the right position: look at what value1 and output1 write into "
                "`before`, and at query2 and key2, which should compare the current token with it"
            ),
            PARTS[2:6],
        )
    else:
        said, names = (
            (
                ". So both layers look at the right positions: look at value2 and output2, which should "
                "copy the token there into `guess`"
            ),
            PARTS[6:],
        )
    found = "; ".join(wired[name] for name in names if name in wired)
    return f"{said}. In your weights {found}" if found else said


@exercise(
    "induction_weights",
    number="9.1",
    title="An induction head, written by hand",
    asks="Return the eight matrices of two layers: the first records the previous token, and the "
    "second copies what followed the last time.",
    difficulty=4,
    importance=5,
    minutes=45,
)
class TestInductionWeights:
    @points(2)
    def test_a_repeated_passage_is_predicted_the_second_time(self, subject, case):
        self.compare(subject, case, said_twice)

    @points(3)
    def test_in_random_text_the_token_after_a_repeat_is_predicted(self, subject, case):
        self.compare(subject, case, at_random)

    @points(3)
    def test_a_gap_of_two_hundred_tokens_does_not_matter(self, subject, case):
        self.compare(subject, case, long_text)

    def compare(self, subject, case, draw):
        self.predict(subject, case, draw(case))
        # What is sharp enough in a narrow model may not be so in a wide one; and of sizes that are
        # drawn from many, weights cannot be on a list.
        for _ in range(2):
            tokens, vocab_size, max_len = draw(case, most_tokens=200)
            self.predict(subject, case, (tokens, vocab_size, max_len + case.integer(0, 50)))

    def predict(self, subject, case, drawn):
        # What tells two mistakes apart on these tokens may not do so on others: ask about more.
        others = [at_random(case.fresh(i)) for i in range(2)]
        noted = []
        requests = [induction_request(*drawn, noted), *(induction_request(*t) for t in others)]
        expect_answer(subject, case, requests, partial(judge_induction, drawn[0], noted))


# 9.2 ------------------------------------------------------------------------------------------


def drawn_maps(case):
    """Draw weights that sum to 1, none of them 0 below the diagonal."""
    batch, heads = case.size("batch", 2), case.size("heads", 3)
    length = 2 * case.size("half", 5, smallest=2)
    scores = case.normal(batch, heads, length, length, std=2.0)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    return (scores.masked_fill(later, -math.inf).softmax(dim=-1),)


@handed_out
def score_oracle(attention):
    ...


def lens_inputs(case, size=1.0):
    """With a size, exponentials of many logits overflow."""
    depths, batch = case.size("depths", 4), case.size("batch", 2)
    length, d_model = case.size("length", 5), case.size("d_model", 6, smallest=2)
    gain = 1.0 + case.normal(d_model, std=0.5)
    streams = case.normal(depths, batch, length, d_model, std=2.0) + 0.5
    streams[1:2] *= 0.01  # as early streams are: here epsilon is not lost in rounding
    vocab_size = case.size("vocab_size", 11, smallest=2)
    return streams, gain, case.normal(d_model), size * case.normal(vocab_size, d_model)


@handed_out
def lens_oracle(streams, gain, bias, unembedding):
    ...


def head_inputs(case):
    batch, heads = case.size("batch", 2), case.size("heads", 3, smallest=2)
    length, d_head = case.size("length", 5), case.size("d_head", 4)
    d_model = heads * d_head
    mixed, weight = case.normal(batch, heads, length, d_head), case.normal(d_model, d_model)
    return mixed, weight, case.normal(d_model), case.integer(0, heads - 1)


@handed_out
def head_oracle(mixed, weight, bias, head):
    ...


def loss_inputs(case):
    batch, length = case.size("batch", 2), case.size("length", 5)
    vocab_size = case.size("vocab_size", 11, smallest=2)
    logits, change = case.normal(2, batch, length, vocab_size, std=2.0)
    rows = [[case.integer(0, vocab_size - 1) for _ in range(length)] for _ in range(batch)]
    targets = torch.tensor(rows)
    if loss_oracle(logits, logits + change, targets) < 0:
        return logits + change, logits, targets
    return logits, logits + change, targets


@handed_out
def loss_oracle(logits, ablated, targets):
    ...


def improbable_inputs(case):
    """At one place, without the part, the probability of the right token is 0 in float64."""
    logits, ablated, targets = loss_inputs(case)
    row, place = (case.integer(0, size - 1) for size in targets.shape)
    ablated[row, place, targets[row, place]] -= 900
    return logits, ablated, targets


def large_inputs(case):
    """At one place, all logits are so large that their exponentials overflow."""
    logits, ablated, targets = loss_inputs(case)
    row, place = (case.integer(0, size - 1) for size in targets.shape)
    logits[row, place] += 1000
    return logits, ablated, targets


def both_ways(case):
    """Ask what is lost without a part, and then the other way round, where it is a gain."""
    logits, ablated, targets = loss_inputs(case)

    def ask(subject):
        pairs = (logits, ablated), (ablated, logits)
        return [float(subject.call("bits_lost", *pair, targets)) for pair in pairs]

    return ask


def judge_gain(answer):
    there, back = answer
    return differs("loss of a model that is better without the part", back, -there)


@exercise(
    "look_inside",
    number="9.2",
    title="Induction score, logit lens and ablation",
    may_cut=("bits_lost", "logit_lens"),
    asks="Write `induction_score`, `logit_lens`, `without_head` and `bits_lost`: where heads attend, "
    "what each depth predicts, and what the ablation of a head costs.",
    difficulty=3,
    importance=4,
    minutes=35,
)
class TestLookInside:
    @points(3)
    def test_each_head_gets_its_induction_score(self, subject, case):
        returns = {"scores": "heads"}
        expect_agrees(subject, case, "induction_score", drawn_maps, score_oracle, returns)

    @points(3)
    def test_the_logit_lens_decodes_every_depth_like_the_last(self, subject, case):
        returns = {"probabilities": "depths batch length vocab_size"}
        for size in (1.0, 300.0):
            inputs = partial(lens_inputs, size=size)
            expect_agrees(subject, case, "logit_lens", inputs, lens_oracle, returns)

    @points(2)
    def test_ablating_a_head_keeps_the_output_of_all_others(self, subject, case):
        returns = {"output": "batch length d_model"}
        expect_agrees(subject, case, "without_head", head_inputs, head_oracle, returns)

    @points(1, only_with="test_ablating_a_head_keeps_the_output_of_all_others")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "without_head", head_inputs)

    @points(2)
    def test_the_ablation_cost_is_measured_in_bits_per_token(self, subject, case):
        for inputs in (loss_inputs, improbable_inputs, large_inputs):
            expect_agrees(subject, case, "bits_lost", inputs, loss_oracle, {"bits": ""})
        requests = [both_ways(case.fresh(i)) for i in range(3)]
        expect_answer(subject, case, requests, judge_gain)


# 9.3 ------------------------------------------------------------------------------------------

FAMILY = {
    "positions": ("learned", "rotary"),
    "norm": ("layer", "rms"),
    "activation": ("gelu", "swiglu"),
}


def drawn_config(case, positions, norm, activation, num_kv_heads=None):
    heads, d_head = (6, 8) if num_kv_heads else (3, 2 * case.integer(3, 5))
    return {
        "vocab_size": case.integer(10, 13),
        "max_len": 17,
        "d_model": heads * d_head,
        "num_layers": 3 if num_kv_heads else 2,
        "num_heads": heads,
        "num_kv_heads": num_kv_heads,
        "d_ff": case.integer(16, 21),
        "positions": positions,
        "rotary_base": 10.0 * case.integer(3, 9),
        "norm": norm,
        "norm_eps": 1e-5 * case.integer(1, 9),
        "norm_order": "pre",
        "activation": activation,
        "tie_embeddings": True,
    }


def drawn_weights(case, config, has_biases):
    """Draw weights under the names of a checkpoint; gains and biases matter.

    If `has_biases` is "even" or "odd", some layers have one, and in the next block the others.
    """
    d_model, d_ff = config["d_model"], config["d_ff"]
    d_head = d_model // config["num_heads"]
    d_kv = (config["num_kv_heads"] or config["num_heads"]) * d_head
    weights = {"embedding.tokens.weight": case.normal(config["vocab_size"], d_model)}
    if config["positions"] == "learned":
        weights["embedding.positions.table.weight"] = case.normal(config["max_len"], d_model)

    def add_norm(name):
        weights[f"{name}.gain"] = 1.0 + case.normal(d_model, std=0.5)
        if config["norm"] == "layer":
            weights[f"{name}.bias"] = case.normal(d_model, std=0.5)

    names = ("query", "key", "value", "output", "gate", "up", "down")

    def add_linear(name, d_in, d_out):
        weights[f"{name}.weight"] = case.normal(d_out, d_in, std=1.5 * d_in**-0.5)
        _, block, _, layer = name.split(".")
        parity = ("even", "odd")[(names.index(layer) + int(block)) % 2]
        if has_biases is True or has_biases == parity:
            weights[f"{name}.bias"] = case.normal(d_out, std=0.5)

    for i in range(config["num_layers"]):
        add_norm(f"blocks.{i}.attention_norm")
        for name, d_out in (("query", d_model), ("key", d_kv), ("value", d_kv)):
            add_linear(f"blocks.{i}.attention.{name}", d_model, d_out)
        add_linear(f"blocks.{i}.attention.output", d_model, d_model)
        add_norm(f"blocks.{i}.feed_forward_norm")
        for name in ("gate", "up") if config["activation"] == "swiglu" else ("up",):
            add_linear(f"blocks.{i}.feed_forward.{name}", d_model, d_ff)
        add_linear(f"blocks.{i}.feed_forward.down", d_ff, d_model)
    add_norm("final_norm")
    return weights


def model_inputs(case, positions, norm, activation, num_kv_heads=None, has_biases=True):
    config = drawn_config(case, positions, norm, activation, num_kv_heads)
    weights = drawn_weights(case, config, has_biases)
    return config, weights, draw_tokens(case, 0, config["vocab_size"], 2, 7)


def low_score_inputs(case, **choices):
    """Biases make the scores of all tokens very low."""
    config, weights, tokens = model_inputs(case, **choices)
    for i in range(config["num_layers"]):
        query, key = (f"blocks.{i}.attention.{name}.bias" for name in ("query", "key"))
        weights[query] = 300 * weights[query]
        weights[key] = -weights[query]
    return config, weights, tokens


@handed_out
def model_oracle(config, weights, tokens):
    ...


LOGITS = {"logits": "batch length vocab_size"}
CUTS = ([7], [4, 3], [1, 1, 5], [3, 1, 1, 2])


def steps_request(config, weights, tokens, lengths):
    """Read a text in pieces of these lengths; return the logits of all of them."""

    def ask(subject):
        cache, logits = None, []
        for piece in tokens.split(lengths, dim=1):
            answer = subject.call("step", config, weights, piece, cache)
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                return f"`step` should return (logits, cache); it returned {describe(answer)}"
            logits.append(answer[0])
            cache = answer[1]
        return logits

    return ask


def judge_steps(config, weights, tokens, lengths, answer):
    if isinstance(answer, str):
        return answer
    expected = model_oracle(config, weights, tokens)
    start = 0
    for number, (seen, length) in enumerate(zip(answer, lengths, strict=True), 1):
        wanted = expected[:, start : start + length]
        if not isinstance(seen, torch.Tensor) or seen.shape != wanted.shape:
            return f"the logits of a step should be {tuple(wanted.shape)}, got {describe(seen)}"
        if problem := differs(f"the logits of step {number}", seen, wanted):
            return f"a text of {tokens.shape[1]} tokens, read in steps of {lengths}: {problem}"
        start += length
    return None


def twins(case):
    """Draw a text and another one, equal up to the last token."""
    config, weights, tokens = model_inputs(case, "rotary", "rms", "swiglu", 2, has_biases=False)
    last = (tokens[:1, -1:] + case.integer(1, config["vocab_size"] - 1)) % config["vocab_size"]
    changed = torch.cat([tokens[:1, :-1], last], dim=1)
    return config, weights, torch.cat([tokens[:1], changed])


def judge_twins(answer):
    if not isinstance(answer, torch.Tensor) or answer.dim() != 3:
        return f"logits should be (batch, length, vocab_size); the result is {describe(answer)}"
    if answer.isnan().any():
        return "the logits contain NaN: is there a token that sees nothing, not even itself?"
    change = (answer[0] - answer[1]).abs().amax(dim=-1)
    if (change[:-1] < 1e-9).all():
        return None
    noticed = (change[:-1] >= 1e-9).nonzero().flatten().tolist()
    return f"changing the last of {len(change)} tokens changes the logits at positions {noticed}"


@functools.cache
def reader():
    """Load the trained model that comes with the course, and a page of Python for it to read."""
    from groundup.pretrained import load

    model, tokenizer = load("reader")
    return model.double().requires_grad_(False), tokenizer


def trained_model(subject, case):
    """Take the student's own model, if it is here and of the family, else the course's.

    Returns:
        The model, its tokenizer, and whose it is, in a word.

    """
    try:
        own = handed_in_model(subject, case)
    except (CheckFailed, NotHandedIn):
        own = None
    if own is not None and is_of_the_family(asdict(own.model.config)):
        return own.double, own.tokenizer, "your"
    return *reader(), "the course's"


def is_of_the_family(config):
    choices = all(config[name] in allowed for name, allowed in FAMILY.items())
    additions = ("qk_norm", "window", "head_width", "rotary_frequencies")
    is_plain = config["norm_order"] == "pre" and not any(config[name] for name in additions)
    return choices and is_plain and config["tie_embeddings"] and config["rotary_scale"] == 1


@exercise(
    "language_model",
    number="9.3",
    title="Your own transformer",
    asks="Write `step`, which processes the next tokens and returns (logits, cache), and "
    "`language_model`, which processes all tokens at once and returns their logits.",
    difficulty=4,
    importance=5,
    minutes=90,
    deeper=True,
    files=("config.json", "model.safetensors"),
)
class TestLanguageModel:
    @points(3)
    def test_learned_positions_with_layer_norm_and_gelu_work(self, subject, case):
        choices = {"positions": "learned", "norm": "layer", "activation": "gelu"}
        self.compare(subject, case, **choices)
        inputs = partial(low_score_inputs, **choices)
        expect_agrees(subject, case, "language_model", inputs, model_oracle, LOGITS)

    @points(2)
    def test_rotary_positions_work(self, subject, case):
        self.compare(subject, case, positions="rotary", norm="layer", activation="gelu")

    @points(2)
    def test_rms_norm_and_swiglu_work_without_biases(self, subject, case):
        choices = {"norm": "rms", "activation": "swiglu", "has_biases": False}
        self.compare(subject, case, positions="learned", **choices)

    @points(1)
    def test_grouped_query_attention_works(self, subject, case):
        # Here and below each norm comes with either activation, with biases and without: none of
        # them can be told from another, nor the bias of one layer from that of another.
        choices = {"norm": "rms", "activation": "gelu", "has_biases": "odd"}
        self.compare(subject, case, positions="rotary", num_kv_heads=2, **choices)

    @points(1, only_with="test_learned_positions_with_layer_norm_and_gelu_work")
    def test_no_logit_depends_on_a_later_token(self, subject, case):
        requests = [asks_for_logits(*twins(c)) for c in (case, case.fresh(0))]
        expect_answer(subject, case, requests, judge_twins)

    @points(3)
    def test_steps_with_a_cache_give_the_logits_of_a_single_pass(self, subject, case):
        kinds = (
            ("rotary", "rms", "swiglu", 2, "even"),
            ("learned", "layer", "swiglu", None, False),
        )
        draws = [model_inputs(case, *choices) for choices in kinds]
        for drawn in draws:
            for lengths in CUTS:
                requests = [steps_request(*drawn, cut) for cut in (lengths, *CUTS)]
                requests += [steps_request(*other, CUTS[0]) for other in draws]
                judge = partial(judge_steps, *drawn, lengths)
                expect_answer(subject, case, requests, judge)

    @points(2, only_with="test_learned_positions_with_layer_norm_and_gelu_work")
    def test_the_logits_of_the_trained_model_are_the_same(self, subject, case):
        model, tokenizer, whose = trained_model(subject, case)
        start = case.integer(0, 3000)
        ids = tokenizer.encode(held_out()[start : start + 60])[: min(12, model.config.max_len)]
        tokens = torch.tensor([ids])
        config, weights = asdict(model.config), dict(model.named_parameters())
        weights = {name: weight.detach() for name, weight in weights.items()}
        with torch.no_grad():
            expected = model(tokens)

        def judge(answer):
            if not isinstance(answer, torch.Tensor) or answer.shape != expected.shape:
                return f"logits should be {tuple(expected.shape)}; the result is {describe(answer)}"
            return differs(f"logits of {whose} trained model", answer, expected, tolerance=1e-5)

        requests = [asks_for_logits(config, weights, tokens)]
        expect_answer(subject, case, requests, judge, tolerance=1e-5)

    def compare(self, subject, case, **choices):
        inputs = partial(model_inputs, **choices)
        expect_agrees(subject, case, "language_model", inputs, model_oracle, LOGITS)


def asks_for_logits(*args):
    return lambda subject: subject.call("language_model", *args)


# 9.4 ------------------------------------------------------------------------------------------

MAX_PARAMETERS = 1_000_000
MAX_WEIGHTS_BYTES = 4 * 2**20
MAX_CONFIG_BYTES = 2**18
MAX_PREDICTION_BYTES = 2**12
LARGEST = {
    "vocab_size": 2048,
    "max_len": 512,
    "num_layers": 16,
    "d_model": 512,
    "d_ff": 2048,
    "num_heads": 64,
}
SMALLEST = {"max_len": 8}
PASSAGE = 3000
"""Characters of the held-out part that students measure on, from its beginning."""
PASSAGES, PASSAGE_LENGTH = 8, 4000
"""Passages of 1500 characters let the draw decide about a mark: the bits of one model, in terms of
the 5-gram's, had a standard deviation of 0.018 over the draws; with 4000 it is 0.002."""
MARKS = (1.0, 0.99, 0.98)
"""Shares of the 5-gram's bits. On the whole held-out part the first command of the notebook came
to 0.965 of them, one with byte pairs to 0.953; on passages, which begin without context, models
lose a little more than the 5-gram does."""


EXCERPT = 400
"""Characters of each passage on which two models are compared."""
SAME_MODEL = 0.98
"""Correlation of surprises in an eighth of the text, above which two models are one. Trainings from
one seed with other learning rates, or an eighth fewer updates, come to 0.97; copies come to 0.99 with
ten updates more, or with noise of a tenth of the weights' spread, and with more noise earn nothing."""
SAME_BYTES = 0.25
"""Share of bytes at which two models' surprises agree to 5 % if they are one, though a part of the text is
read differently. The same trainings come to 0.13, copies with noise of a tenth to 0.29."""
SAME_FEATURES = 0.9
"""Correlation of `same_features`, above which two models are one. The same trainings come to 0.74, those
from another seed to 0.25, copies to 1.00 with ten updates more and to 0.97 with noise of a tenth."""


@dataclass(frozen=True)
class HandedIn:
    """A model that was handed in, ready to be measured."""

    model: Any
    double: Any
    tokenizer: Any
    key: tuple[str, str]
    """SHA-256 of the configuration and of the weights."""


@functools.cache
def course_text():
    from groundup.data.texts import python_reference

    return python_reference()


def held_out():
    return course_text().validation


def json_of(data, name, most):
    """Read named fields; nothing that is nested without end, and no number beyond numbers."""
    expect(len(data) <= most, f"{name} may have at most {most:,} bytes; it has {len(data):,}")

    def refuse(constant):
        raise ValueError(f"{constant} is not a number")

    try:
        record = json.loads(data.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise CheckFailed(f"{name} must be JSON in UTF-8: {why[:100]}") from None
    expect(isinstance(record, dict), f"{name} must contain named fields")
    return record


def config_of(record):
    """Make the configuration, of which every size is bounded before anything is made of it."""
    from groundup import presets
    from groundup.core.config import DecoderOnlyConfig

    expect(record.get("model") == "DecoderOnly", "config.json must be that of a DecoderOnly model")
    fields = record.get("config")
    expect(
        isinstance(fields, dict),
        "config.json needs the field config, a dict, as `groundup train` writes it",
    )
    for name, most in LARGEST.items():
        size, least = fields.get(name), SMALLEST.get(name, 1)
        expect(
            type(size) is int and least <= size <= most,
            f"{name} must be an integer from {least} to {most:,}, got {str(size)[:40]}",
        )
    for name in ("num_kv_heads", "window", "head_width"):
        size = fields.get(name)
        expect(
            size is None or type(size) is int,
            f"{name} must be an integer or null, got {str(size)[:40]}",
        )
    width, most = fields.get("head_width") or 1, LARGEST["d_model"]
    expect(width <= most, f"head_width must be at most {most}, got {str(width)[:40]}")
    try:
        return presets.from_dict(DecoderOnlyConfig, fields)
    except (ValueError, TypeError) as error:
        raise CheckFailed(f"config.json does not describe a model: {str(error)[:200]}") from None


def weights_of(data, shapes, case):
    """Read the weights, which must have exactly these names and shapes."""
    if data[:2] == b"PK" or data[:1] == b"\x80":
        fail_as(
            case,
            "PickleInDisguise",
            "model.safetensors is a pickle, which is code: it was not opened. Use safetensors",
        )
    expect(
        len(data) <= MAX_WEIGHTS_BYTES,
        f"model.safetensors may have at most {MAX_WEIGHTS_BYTES:,} bytes; it has {len(data):,}",
    )
    try:
        weights = from_bytes(data)
    except (SafetensorError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise CheckFailed(
            f"model.safetensors is not a complete safetensors file: {str(error)[:100]}"
        ) from None
    for name in sorted(shapes.keys() ^ weights.keys()):
        what = "lacks" if name in shapes else "has an unknown"
        fail_as(
            case,
            "ConfigurationOfAnotherModel",
            f"model.safetensors and config.json do not belong together: the first {what} "
            f"{name[:60]}",
        )
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            fail_as(
                case,
                "ConfigurationOfAnotherModel",
                f"model.safetensors and config.json do not belong together: {name} has shape "
                f"{tuple(weights[name].shape)}, but the configuration requires {shape}",
            )
        is_float = weights[name].dtype is torch.float32
        expect(is_float, f"{name} must be float32; it is {weights[name].dtype}")
        if not weights[name].isfinite().all():
            fail_as(
                case, "WeightsNotFinite", f"{name} in model.safetensors contains NaN or infinity"
            )
    return weights


def tokenizer_of(record, config, case):
    """Make the tokenizer, which must lose nothing of the text that is measured."""
    from groundup.data.tokenizers import from_dict

    fields = record.get("tokenizers")
    fields = fields.get("text") if isinstance(fields, dict) else None
    expect(isinstance(fields, dict), "config.json needs a tokenizer called text")
    kind = str(fields.get("kind"))[:40]
    expect(
        kind in ("byte", "byte-pair", "character"),
        f"the tokenizer must be of a kind that `groundup train` makes; it is {kind}",
    )
    part = "held-out"
    try:
        tokenizer = from_dict(fields)
        ids = tokenizer.encode(held_out())
        spelled = tokenizer.decode(ids)
        part = "training"
        tokenizer.encode("".join(sorted(set(course_text().train))))
    except Exception as error:  # whatever a damaged record leads to
        raise CheckFailed(
            f"the tokenizer of config.json cannot read the {part} text: {str(error)[:150]}"
        ) from None
    expect(
        tokenizer.vocab_size == config.vocab_size,
        f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model {config.vocab_size:,}",
    )
    if spelled != held_out():
        fail_as(
            case,
            "TextLostInTokens",
            "the tokenizer of config.json loses part of the held-out text: decoding what it "
            "encoded gives another text, so its bits per byte would mean nothing",
        )
    return tokenizer


def handed_in_model(subject, case):
    """Read the model beside the notebook, once; what is wrong with it is said in a sentence."""
    files = subject.file("config.json"), subject.file("model.safetensors")
    key = tuple(hashlib.sha256(file).hexdigest() for file in files)
    known_as = key, run_of(case), tuple(mistake.name for mistake in case.mistakes)
    if known_as not in _read:
        if not any(key in known for known in _read):
            _read.clear()  # one student's at a time
            _measured.clear()
        try:
            _read[known_as] = read_model(*files, key, case)
        except CheckFailed as error:
            _read[known_as] = error
    found = _read[known_as]
    if isinstance(found, CheckFailed):
        raise CheckFailed(found.problem, found.mistakes)
    return found


@torch.no_grad()
def nats_of(model, ids, length):
    """Return what each token but the first costs, in windows as training measures them."""
    from groundup.data.batches import IGNORED, covering_windows

    found = []
    for batch in covering_windows(torch.tensor(ids), batch_size=32, length=length):
        logits, targets = model(batch.inputs["tokens"]).flatten(0, 1), batch.targets.flatten()
        nats = F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
        found.append(nats[targets != IGNORED])
    return torch.cat(found)


@functools.lru_cache(maxsize=32)
def surprise(model, tokenizer, text, length):
    """Return the nats that each byte of a text costs, alike within a token; the first has none."""
    ids = tokenizer.encode(text)
    lengths = torch.tensor([len(bytes_of(tokenizer, token)) for token in ids])
    nats = F.pad(nats_of(model, ids, length), (1, 0), value=math.nan)
    return (nats / lengths.clamp(min=1)).repeat_interleave(lengths)


def bytes_of(tokenizer, token):
    """Spell a token by itself, which may be a part of a character."""
    spelled = getattr(tokenizer, "to_bytes", None)
    return spelled(token) if spelled else tokenizer.decode([token]).encode()


@functools.cache
def of_the_course():
    """Load the models that come with the course."""
    from groundup.core.models import DecoderOnly
    from groundup.pretrained import load, names

    return [found for name in names() if type((found := load(name))[0]) is DecoderOnly]


def same_features(*models):
    """Correlate which tokens the embeddings of two models place alike, whatever their features.

    The space that the features span over the tokens of the text stays what it is if features
    change places, or are mixed; a training of seconds hardly turns it.
    """
    tables = []
    for model, tokenizer in models:
        rows = model.embedding.tokens.weight.detach().double()
        tables.append({bytes_of(tokenizer, token): row for token, row in enumerate(rows)})
    used = {bytes_of(models[0][1], token) for token in set(models[0][1].encode(held_out()))}
    shared = [spelled for spelled in tables[0] if spelled in used and spelled in tables[1]]
    tables = [torch.stack([table[spelled] for spelled in shared]) for table in tables if shared]
    if not shared or len(shared) <= max(table.shape[1] for table in tables):
        return 0.0
    spans = [torch.linalg.qr(table - table.mean(dim=0)).Q for table in tables]
    pair = [(span @ span.T).fill_diagonal_(0).flatten() for span in spans]
    return float(torch.corrcoef(torch.stack(pair))[0, 1])


def comes_with_the_course(model, tokenizer, case):
    """Say whether a model is surprised where one of the course is, or embeds tokens as it does.

    Exchanging neurons, or any other change that leaves the function as it is, does not hide that;
    models that are trained anew agree far less.
    """
    parts = held_out(), course_text().train
    texts = ["".join(each[:EXCERPT] for each in passages(case, part)) for part in parts]
    own = surprise(model, tokenizer, texts[0], model.config.max_len)
    expect(
        bool(own[~own.isnan()].std() > 1e-6),
        "the model gives every token the same probability: train it",
    )
    for theirs in of_the_course():
        if same_features((model, tokenizer), theirs) > SAME_FEATURES:
            return True
        length = min(model.config.max_len, theirs[0].config.max_len)
        for text in texts:
            both = [surprise(*each, text, length) for each in ((model, tokenizer), theirs)]
            pair = torch.stack([each[: min(map(len, both))] for each in both])
            pair = pair[:, ~pair.isnan().any(dim=0)]
            is_close = pair.diff(dim=0).abs() < 0.05 * pair.mean(dim=0)
            alike = max(torch.corrcoef(part)[0, 1] for part in pair.chunk(PASSAGES, dim=1))
            if alike > SAME_MODEL or is_close.double().mean() > SAME_BYTES:
                return True
    return False


def read_model(config_data, data, key, case):
    """Make a model of two files, of which nothing is taken for granted."""
    from groundup.core.models import DecoderOnly
    from groundup.looking.accounting import parameter_shapes

    record = json_of(config_data, "config.json", MAX_CONFIG_BYTES)
    config = config_of(record)
    shapes = parameter_shapes(config)
    number = sum(math.prod(shape) for shape in shapes.values())
    expect(
        number <= MAX_PARAMETERS,
        f"a model may have at most {MAX_PARAMETERS:,} parameters; yours has {number:,}",
    )
    weights = weights_of(data, shapes, case)
    tokenizer = tokenizer_of(record, config, case)

    def built():
        with torch.random.fork_rng(devices=[]):
            model = DecoderOnly(config)
        model.load_state_dict(weights, strict=False)  # a tied table is there once
        return model.eval().requires_grad_(False)

    try:
        built()(torch.zeros(1, min(8, config.max_len), dtype=torch.long))
    except Exception as error:  # a choice that the library does not know, or does not combine
        raise CheckFailed(f"config.json does not describe a model: {str(error)[:200]}") from None
    if comes_with_the_course(built(), tokenizer, case):
        fail_as(case, "ModelOfTheCourse", "these are weights that come with the course, not yours")
    return HandedIn(built(), built().double(), tokenizer, key)


_read: dict[Any, HandedIn | CheckFailed] = {}
_measured: dict[Any, Any] = {}


def total_bits(model, tokenizer, text):
    """Return the bits of a text but for its first token, and the bytes and tokens they are for."""
    ids = tokenizer.encode(text)
    nats = float(nats_of(model, ids, model.config.max_len).double().sum())
    num_bytes = len(text.encode()) - len(tokenizer.decode(ids[:1]).encode())
    return nats / math.log(2), num_bytes, len(ids) - 1


def bits_without(own, heads=()):
    """Measure bits per byte on the passage, without some heads; once for each model."""
    from groundup.looking import probes

    key = own.key, tuple(heads)
    if key not in _measured:
        with probes.without_heads(own.model, heads):
            bits, num_bytes, _ = total_bits(own.model, own.tokenizer, held_out()[:PASSAGE])
        _measured[key] = bits / num_bytes
    return _measured[key]


@functools.cache
def counted():
    """Count the part to learn from: what a model has to beat."""
    from groundup.training.baselines import CharacterNGram

    text = course_text()
    return CharacterNGram(text.train, sorted(set(text.train + text.validation)), order=5)


def run_of(case):
    """Return the seed without the exercise and the check: the same for all that is graded at once."""
    return case.seed.rsplit("/", 2)[0]


def passages(case, text):
    """Draw passages from all of a text, the same ones whichever check comes first."""
    stride = len(text) // PASSAGES
    draw = Case(f"{run_of(case)}/passages")
    starts = [i * stride + draw.integer(0, stride - PASSAGE_LENGTH) for i in range(PASSAGES)]
    return tuple(text[start : start + PASSAGE_LENGTH] for start in starts)


def bits_of_the_baseline(text):
    return counted().bits_per_character(text) * (len(text) - 1), len(text[1:].encode())


def bits_per_byte(bits_of, drawn):
    found = [bits_of(each) for each in drawn]
    return sum(bits for bits, *_ in found) / sum(num_bytes for _, num_bytes, *_ in found)


def share_of_the_baseline(subject, case):
    """Measure a model and the 5-gram on drawn passages.

    Returns:
        Bits per byte of the model on held-out passages, of the 5-gram on the same, and of the
        model on passages to learn from.

    """
    own = handed_in_model(subject, case)
    if "passages" not in case.memory:
        parts = held_out(), course_text().train
        case.memory["passages"] = [passages(case, part) for part in parts]
    unseen, seen = case.memory["passages"]
    if (key := (own.key, unseen)) not in _measured:
        model = partial(total_bits, own.model, own.tokenizer)
        measured = ((model, unseen), (bits_of_the_baseline, unseen), (model, seen))
        _measured[key] = tuple(bits_per_byte(bits_of, drawn) for bits_of, drawn in measured)
    return _measured[key]


def claim_of(subject, function, names):
    """Call the function that reports; it comes first, so that a blank earns nothing."""
    claim = subject.call(function)
    expect(
        isinstance(claim, dict) and set(claim) == set(names),
        f"`{function}` should return a dict with {' and '.join(names)}; it is {describe(claim)}",
    )
    for name, value in claim.items():
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        expect(is_number, f"{name} should be a number; it is {describe(value)}")
    return claim


def claims(subject):
    return claim_of(subject, "capstone", ("parameters", "bits_per_byte"))


def agrees(claim, measured):
    """Forgive rounding to three digits after the point."""
    return abs(claim - measured) <= 0.002


@exercise(
    "capstone",
    number="9.4",
    title="Capstone: your own model",
    asks="Train a model within the budget, put config.json and model.safetensors in the folder "
    "of the notebook, and return its `parameters` and its `bits_per_byte` on the passage.",
    difficulty=4,
    importance=5,
    minutes=90,
    deeper=True,
    files=("config.json", "model.safetensors"),
)
class TestCapstone:
    @points(2)
    def test_the_files_contain_a_model_within_the_budget(self, subject, case):
        claims(subject)
        handed_in_model(subject, case)

    @points(1)
    def test_the_reported_parameter_count_is_correct(self, subject, case):
        claim = claims(subject)["parameters"]
        model = handed_in_model(subject, case).model
        number = sum(weight.numel() for weight in model.parameters())
        if claim == number:
            return
        problem = f"the model has {number:,} parameters; the report says {claim:,}"
        table = model.unembedding.weight.numel()
        if model.config.tie_embeddings and claim == number + table:
            fail_as(case, "TiedMatrixCountedTwice", problem)
        raise CheckFailed(problem)

    @points(2)
    def test_the_reported_bits_per_byte_are_correct(self, subject, case):
        claim = claims(subject)["bits_per_byte"]
        own = handed_in_model(subject, case)
        if agrees(claim, bits_without(own)):
            return
        bits, num_bytes, num_tokens = total_bits(own.model, own.tokenizer, held_out()[:PASSAGE])
        problem = f"the report says {claim:.4g} bits per byte; on the passage, the model has {bits / num_bytes:.4f}"
        units = {
            "NatsPerByte": bits * math.log(2) / num_bytes,
            "BitsPerToken": bits / num_tokens,
            "NatsPerToken": bits * math.log(2) / num_tokens,
        }
        for name, value in units.items():
            if agrees(claim, value):
                fail_as(case, name, problem)
        bits, num_bytes, _ = total_bits(own.model, own.tokenizer, held_out())
        if agrees(claim, bits / num_bytes):
            fail_as(case, "WholeHeldOutPart", problem)
        raise CheckFailed(problem)

    @points(3)
    def test_the_model_beats_the_5_gram_baseline(self, subject, case):
        self.reach(subject, case, MARKS[0])

    @points(2)
    def test_the_model_needs_under_99_percent_of_the_baseline_bits(self, subject, case):
        self.reach(subject, case, MARKS[1])

    @points(2)
    def test_the_model_needs_under_98_percent_of_the_baseline_bits(self, subject, case):
        self.reach(subject, case, MARKS[2])

    def reach(self, subject, case, mark):
        claims(subject)
        ours, theirs, on_seen = share_of_the_baseline(subject, case)
        expect(
            ours >= on_seen,
            f"your model needs {ours:.3f} bits per byte on passages of the held-out part, and "
            f"{on_seen:.3f} on passages of the training part. A model that has not seen the "
            "held-out part is not better on it: train on the training part alone",
        )
        expect(
            ours < mark * theirs,
            f"on drawn passages of the held-out part your model needs {ours:.3f} bits per byte, "
            f"which is {ours / theirs:.1%} of the 5-gram's {theirs:.3f}; it must be below "
            f"{mark:.1%}",
        )


# 9.5 ------------------------------------------------------------------------------------------

LEAST_COST = 0.005
WIDEST = 0.5


@dataclass(frozen=True)
class Prediction:
    weights: str
    layer: int
    head: int
    low: float
    high: float


def prediction_of(subject, case):
    """Read the sealed prediction, which must be about these weights."""
    own = handed_in_model(subject, case)
    record = json_of(subject.file("prediction.json"), "prediction.json", MAX_PREDICTION_BYTES)
    names = set(Prediction.__dataclass_fields__)
    expect(
        set(record) == names, f"prediction.json must hold {', '.join(sorted(names))}: use `seal`"
    )
    said = Prediction(**record)
    config = own.model.config
    for name, most in (("layer", config.num_layers), ("head", config.num_heads)):
        number = record[name]
        expect(
            type(number) is int and 0 <= number < most,
            f"{name} in prediction.json must be an integer from 0 to {most - 1}",
        )
    if said.weights != own.key[1]:
        fail_as(
            case,
            "PredictionForOtherWeights",
            "prediction.json is for weights other than those submitted",
        )
    return own, said


def interval_of(said, case):
    ends = (said.low, said.high)
    expect(
        all(type(end) in (int, float) and abs(end) <= 100 for end in ends),
        "low and high in prediction.json must be bits per byte, as numbers",
    )
    if said.low > said.high:
        fail_as(case, "IntervalUpsideDown", f"no number is between {said.low} and {said.high}")
    if said.high - said.low > WIDEST:
        fail_as(
            case,
            "IntervalTooWide",
            f"the interval from {said.low:g} to {said.high:g} is wider than {WIDEST} bits per byte",
        )
    return ends


def drawn_costs(case, at=None, one_is_in_the_way=False, alone=False):
    """Draw what a model needs without each head; some heads are better gone.

    The head that is missed most is the first or the last of all, if `at` is 0 or -1. If it is
    `alone`, the other heads of its layer are better gone, and those of other layers are missed.
    """
    layers, heads = case.integer(2, 3), case.integer(4, 5)
    whole = 1.5 + float(case.uniform())
    costs = case.uniform(layers, heads, low=-0.25, high=0.3)
    worst = case.integer(0, layers * heads - 1) if at is None else at % (layers * heads)
    layer, head = divmod(worst, heads)
    if alone:
        costs = costs.abs()
        costs[layer] -= 0.31
    costs[layer, head] = 0.3 + 0.2 * float(case.uniform())
    if one_is_in_the_way:  # the largest change by size
        costs[(layer + 1) % layers, (head + 1) % heads] = -0.9
    return whole, costs


def needed(whole, costs, heads):
    """Say what a model needs without these heads; several cost more together than one by one."""
    apart = sum(float(costs[int(layer), int(head)]) for layer, head in heads)
    return whole + apart * (1 + 0.37 * max(0, len(heads) - 1))


def missed_request(whole, costs):
    def ask(subject):
        lent = subject.lend(partial(needed, whole, costs))
        return subject.call("most_missed", lent, *costs.shape)

    return ask


def judge_missed(whole, costs, answer):
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        return f"`most_missed` should return (layer, head, cost); it returned {describe(answer)}"
    layer, head = divmod(int(costs.argmax()), costs.shape[1])
    if (answer[0], answer[1]) != (layer, head):
        problem = (
            f"the most important head is layer {layer}, head {head}, which costs "
            f"{costs.max():.3f} bits per byte; `most_missed` returned {answer[0]}, {answer[1]}"
        )
        with contextlib.suppress(IndexError, TypeError, ValueError):
            problem += f", which costs {float(costs[answer[0], answer[1]]):.3f}"
        if differs("its cost", answer[2], costs.max()) is None:
            problem += (
                f". Your cost is correct, but its layer and head are not: in a list of all heads, "
                f"layer by layer, its index is {layer * costs.shape[1] + head}, and each layer has "
                f"{costs.shape[1]} heads"
            )
        return problem
    return differs("its cost", answer[2], costs.max())


@exercise(
    "ablation",
    number="9.5",
    title="A prediction about your model, and its test",
    asks="Write `most_missed`, seal a prediction about your own model, and return as `cost` the "
    "measured cost of the predicted head.",
    difficulty=3,
    importance=4,
    minutes=40,
    deeper=True,
    files=("config.json", "model.safetensors", "prediction.json"),
)
class TestAblation:
    @points(3)
    def test_the_most_important_head_is_found(self, subject, case):
        draws = [
            drawn_costs(case, one_is_in_the_way=True),
            *(drawn_costs(case.fresh(i), at) for i, at in enumerate((-1, 0, None))),
            drawn_costs(case.fresh(4), alone=True),
        ]
        whole, costs = drawn_costs(case.fresh(3))
        draws.append((whole, costs - 0.7))  # the model is better off without any of them
        requests = [missed_request(*draw) for draw in draws]
        for i, draw in enumerate(draws):
            ask = [requests[i], *requests[:i], *requests[i + 1 :]]
            expect_answer(subject, case, ask, partial(judge_missed, *draw))

    @points(2)
    def test_the_prediction_is_about_the_submitted_weights(self, subject, case):
        cost_of(subject)
        prediction_of(subject, case)

    @points(1)
    def test_the_prediction_is_an_interval(self, subject, case):
        cost_of(subject)
        _, said = prediction_of(subject, case)
        interval_of(said, case)

    @points(3)
    def test_the_reported_cost_is_correct(self, subject, case):
        claim = cost_of(subject)
        own, said = prediction_of(subject, case)
        worst_head(own)
        whole, without = bits_without(own), bits_without(own, [(said.layer, said.head)])
        if agrees(claim, without - whole):
            return
        problem = f"the report says that the head costs {claim:.4g} bits per byte; it costs "
        problem += f"{without - whole:.4f}"
        if agrees(claim, without):
            fail_as(case, "BitsWithoutTheHead", problem)
        if agrees(claim, whole - without):
            fail_as(case, "CostWithTheWrongSign", problem)
        raise CheckFailed(problem)

    @points(1)
    def test_the_prediction_came_true(self, subject, case):
        cost_of(subject)
        own, said = prediction_of(subject, case)
        low, high = interval_of(said, case)
        worst, cost = worst_head(own)
        if worst != (said.layer, said.head):
            fail_as(
                case,
                "AnotherHeadCostsMore",
                f"you predicted layer {said.layer}, head {said.head}; layer {worst[0]}, head "
                f"{worst[1]} costs more",
            )
        expect(
            low <= cost <= high,
            f"you predicted {low:g} to {high:g} bits per byte; it costs {cost:.4f}",
        )


def worst_head(own):
    """Return the head that a model misses most, and what it costs; some head must matter."""
    config = own.model.config
    heads = [(i, h) for i in range(config.num_layers) for h in range(config.num_heads)]
    expect(
        len(heads) <= 64,
        f"a model may have at most 64 heads in all layers together; yours has {len(heads)}",
    )
    worst = max(heads, key=lambda head: bits_without(own, [head]))
    cost = bits_without(own, [worst]) - bits_without(own)
    expect(
        cost >= LEAST_COST,
        f"no head of your model costs more than {cost:.4f} bits per byte, so there is nothing to "
        "predict: train the model first",
    )
    return worst, cost


def cost_of(subject):
    return claim_of(subject, "ablation", ("cost",))["cost"]
