"""What is graded in chapter 06, encoder-decoder and decoder-only.

The oracles are torch's own attention, encoder layer and losses, and loops over single tokens.
Models are lent to the code under test as functions; what they do is written here by hand. One exercise runs
the trained model that comes with the course, around the part that the student wrote.
"""

import functools
import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from classroom.calls.lending import Refused
from classroom.calls.subject import Crashed, StudentError, WrongKind
from classroom.exercise.comparing import describe, differs, same
from classroom.exercise.diagnosis import asks_for
from classroom.exercise.expect import (
    CheckFailed,
    drawn_once,
    exercise,
    expect_agrees,
    expect_gradients,
    expect_inputs_unchanged,
    expect_law,
    expect_test_judges,
    points,
)
from classroom.exercise.expect import (
    expect_answer as expect_replies,
)
from classroom.exercise.prepared import known, observing, oracle

LOGITS = {"logits": "batch length vocab_size"}
TOKENS = {"output": "batch length d_model"}


def expect_answer(subject, case, draw, request, judge):
    """Expect what a subject answers to a request to be right; name the mistakes that answer alike.

    For requests that are more than one call with plain values: gradients, and functions that are
    lent and keep count of their calls.

    Args:
        subject: The code under test.
        case: Where the inputs come from.
        draw: Draws, from a case, what is handed to the two below.
        request: Given a subject and what was drawn, asks it and returns plain values.
        judge: Given the answer and what was drawn, says what is wrong with it, or returns None.

    Raises:
        CheckFailed: If something is wrong.

    """
    given = draw(case)
    try:
        problem = judge(request(subject, *given), *given)
    except Crashed as error:
        problem = str(error)
    except StudentError as error:
        raise CheckFailed(str(error)) from error
    if problem is None:
        return

    def answer(other, *given):
        try:
            return request(other, *given)
        except StudentError:
            return None

    def explain():
        fresh = [draw(case.fresh(number)) for number in range(3)]
        trials = [(given, answer(subject, *given)) for given in fresh]
        if any(seen is None for _, seen in trials):
            return problem, (), ""
        if all(judge(seen, *given) is None for given, seen in trials):
            return problem, (), ""  # what is right here is like many that are wrong elsewhere
        alike = []
        for mistake in case.mistakes:
            code = known(mistake)
            if all(same(answer(code, *given), seen) for given, seen in trials):
                alike.append(mistake)
        return problem, alike, ""

    raise CheckFailed(problem, explain=explain)


def block_weights(case, d_model, d_ff):
    """Draw the weights of one of the notebook's blocks."""
    shapes = {name: (d_model, d_model) for name in ("query", "key", "value", "output")}
    shapes |= {"up": (d_model, d_ff), "down": (d_ff, d_model)}
    return {name: case.normal(*shape, std=shape[0] ** -0.5) for name, shape in shapes.items()}


def run_block(x, mask, weights):
    """Do what the notebook's block does: torch's encoder layer with gains of 1 and no biases."""
    d_model, d_ff = weights["up"].shape
    layer = nn.TransformerEncoderLayer(
        d_model,
        1,
        d_ff,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
        bias=False,
        dtype=x.dtype,
    )
    projections = [weights[name].T for name in ("query", "key", "value")]
    names = {
        "self_attn.in_proj_weight": torch.cat(projections),
        "self_attn.out_proj.weight": weights["output"].T,
        "linear1.weight": weights["up"].T,
        "linear2.weight": weights["down"].T,
    }
    forbidden = ~mask.expand(len(x), -1, -1)
    norms = {f"norm{i}.weight": x.new_ones(d_model) for i in (1, 2)}
    options = {"src_mask": forbidden}
    return torch.func.functional_call(layer, {**names, **norms}, (x,), options)


# 6.1 ------------------------------------------------------------------------------------------


def decoder_inputs(case, is_scaled=False):
    batch, length = case.size("batch", 2), case.size("length", 5, smallest=2)
    # With fewer features, a norm leaves nothing but signs.
    vocab_size, d_model = case.size("vocab_size", 11), case.size("d_model", 4, smallest=3)
    d_ff, layers = case.size("d_ff", 7), case.size("layers", 3)
    max_len = case.size("max_len", 13)
    tokens = torch.tensor(
        [[case.integer(0, vocab_size - 1) for _ in range(length)] for _ in range(batch)]
    )
    return (
        tokens,
        case.normal(vocab_size, d_model),
        case.normal(max_len, d_model, std=0.7),
        [block_weights(case, d_model, d_ff) for _ in range(layers)],
        1.0 + case.normal(d_model, std=0.5),
        case.normal(d_model),
        is_scaled,
    )


@oracle
def decoder_oracle(tokens, table, positions, layers, gain, bias, is_scaled=False):
    rows = F.embedding(tokens, table)
    x = rows * (table.shape[1] ** 0.5 if is_scaled else 1.0) + positions[None, : tokens.shape[1]]
    order = torch.arange(tokens.shape[1])
    for weights in layers:
        x = run_block(x, order[:, None] >= order, weights)
    return F.linear(F.layer_norm(x, gain.shape, gain, bias), table)


def table_gradient(subject, cotangent, *args):
    (gradient,) = subject.gradients("decoder_only_logits", args, [1], [cotangent])
    return gradient


def draw_with_cotangent(case, is_scaled):
    """The tokens with the lowest ids, any of which may be taken for padding, are all inputs."""
    args = decoder_inputs(case, is_scaled)
    tokens, table = args[:2]
    tokens[0] = torch.tensor(case.shuffled(range(tokens.shape[1])))
    return case.normal(*tokens.shape, len(table)), *args


def both_uses_count(gradient, cotangent, *args):
    if gradient is None:
        return "no gradient reaches `table`: part of the computation is cut off from it"
    (expected,) = decoder_oracle.gradients(args, [1], [cotangent])
    return differs("the gradient with respect to the tied table", gradient, expected)


OTHERS = {2: "positions", 4: "gain", 5: "bias"}


def other_gradients(subject, cotangent, *args):
    return subject.gradients("decoder_only_logits", args, list(OTHERS), [cotangent])


def all_of_it_flows(gradients, cotangent, *args):
    rights = decoder_oracle.gradients(args, list(OTHERS), [cotangent])
    for label, seen, right in zip(OTHERS.values(), gradients, rights, strict=True):
        is_scaled = f"with is_scaled={args[-1]} "
        if seen is None or not seen.any():
            return f"{is_scaled}no gradient flows back to `{label}`: it is cut off on the way"
        if problem := differs(f"the gradient with respect to {label}", seen, right):
            return f"{is_scaled}{problem}"
    return None


@exercise(
    "decoder_only_logits",
    number="6.1",
    title="A decoder-only model with tied weights",
    asks="Look up the tokens in the table, add positions, run all blocks with a causal mask, "
    "apply the final norm, and return the logits from the same table.",
    difficulty=2,
    importance=5,
    minutes=20,
)
class TestDecoderOnlyLogits:
    @points(3)
    def test_the_model_maps_tokens_to_the_correct_logits(self, subject, case):
        expect_agrees(subject, case, "decoder_only_logits", decoder_inputs, decoder_oracle, LOGITS)

    @points(1)
    def test_the_embeddings_can_be_scaled(self, subject, case):
        inputs = partial(decoder_inputs, is_scaled=True)
        expect_agrees(subject, case, "decoder_only_logits", inputs, decoder_oracle, LOGITS)

    @points(1, only_with="test_the_model_maps_tokens_to_the_correct_logits")
    def test_no_logit_depends_on_a_later_token(self, subject, case):
        def inputs(case):
            tokens, table, *rest = decoder_inputs(case)
            twin = tokens[0].clone()
            twin[-1] = (twin[-1] + 1) % len(table)
            return torch.stack([tokens[0], twin]), table, *rest

        def law(logits, tokens, *rest):
            change = (logits[0] - logits[1])[:-1].abs().amax(dim=-1)
            if (change < 1e-9).all():
                return None
            notice = (change >= 1e-9).nonzero().flatten().tolist()
            return f"changing the last of {tokens.shape[1]} tokens changes earlier logits: {notice}"

        expect_law(subject, case, "decoder_only_logits", inputs, law, correct=decoder_oracle)

    @points(2)
    def test_the_tied_table_receives_gradients_from_both_uses(self, subject, case):
        for is_scaled in (False, True):
            draw = partial(draw_with_cotangent, is_scaled=is_scaled)
            expect_answer(subject, case, draw, table_gradient, both_uses_count)

    @points(1)
    def test_gradients_flow_back_to_the_positions_and_the_final_norm(self, subject, case):
        for is_scaled in (False, True):
            draw = partial(draw_with_cotangent, is_scaled=is_scaled)
            expect_answer(subject, case, draw, other_gradients, all_of_it_flows)


# 6.2 ------------------------------------------------------------------------------------------

BOS, EOS, PAD, NUM_SPECIAL, VOCAB = 3, 1, 2, 4, 11
"""None is 0, which a product with a mask or a tensor of zeros would give."""


def drawn_targets(case, padded=True):
    """Targets of different lengths that end with EOS, filled up; neighbours differ."""
    length = 6
    rows = []
    for short in (0, 2, 3) if padded else (0, 0):
        words = [case.integer(NUM_SPECIAL, VOCAB - 1)]
        while len(words) < length - 1 - short:
            words.append(NUM_SPECIAL + (words[-1] + case.integer(1, 6)) % (VOCAB - NUM_SPECIAL))
        rows.append([*words, EOS] + [PAD] * short)
    return torch.tensor(rows)


def position_model(table, places, tokens):
    """Score the next token by this one, by those before it, and by the place."""
    before = F.one_hot(tokens, VOCAB).double().cumsum(dim=1)
    return table[tokens] + 0.1 * before @ table + places[: tokens.shape[1]]


def loss_inputs(case, padded=True, size=1.0):
    """Logits of any size; if they are large, they are also far below 0."""
    targets, table = drawn_targets(case, padded), size * case.normal(VOCAB, VOCAB)
    return targets, table, case.normal(9, VOCAB) - 20 * (size - 1.0)


def noting(answer, heard, tokens):
    heard.append(tokens.tolist())
    return answer(tokens)


def asked_loss(subject, answer, targets):
    """Ask for the loss of a model; also return what the model was called with."""
    heard = []
    model = observing(partial(noting, answer, heard))
    return subject.call("shifted_loss", subject.lend(model), targets, BOS, PAD), heard


def loss_request(subject, targets, table, places):
    return asked_loss(subject, partial(position_model, table, places), targets)


def flow_request(subject, targets, table, places):
    """Ask whether the gradient of the loss reaches what the model returned."""
    args = subject.lend(partial(position_model, table, places)), targets, BOS, PAD
    try:
        (gradient,) = subject.gradients("shifted_loss", args, [0], [torch.ones(()).double()])
    except WrongKind:
        return False
    return gradient is not None and bool(gradient.any())


def flow_judge(flows, targets, table, places):
    if flows is False:
        return (
            "no gradient flows from the loss back to the logits: return a tensor that was computed "
            "from them, without .item(), float(...), .detach() or NumPy on the way"
        )
    return None


def as_a_number(loss):
    """Read a loss, or describe what is wrong with it."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return float(loss), None
    if isinstance(loss, (int, float)):
        return float(loss), None
    return None, f"the loss should be a single number; it is {describe(loss)}"


@oracle
def shifted_oracle(targets, table, places):
    begin = torch.full((len(targets), 1), BOS)
    logits = position_model(table, places, torch.cat([begin, targets], dim=1))
    nats = [
        -logits[row, i].log_softmax(dim=-1)[token]
        for row, sequence in enumerate(targets)
        for i, token in enumerate(sequence)
        if token != PAD
    ]
    return sum(nats) / len(nats)


def loss_judge(answer, targets, table, places):
    loss, problem = as_a_number(answer[0])
    if problem:
        return problem
    expected = shifted_oracle(targets, table, places)
    problem = differs("the loss", loss, expected)
    stop = "" if problem and problem.endswith("?") else "."
    return problem and f"{problem}{stop} {why_loss(answer[1], targets, float(expected))}"


def why_loss(heard, targets, expected):
    """Say what the model should have been called with, or how the mean is taken."""
    shifted = [[BOS, *row[:-1]] for row in targets.tolist()]
    names = f"bos {BOS}, eos {EOS}, pad {PAD}"
    if len(heard) != 1:
        return f"The model was called {len(heard)} times, expected once"
    for row, (seen, right) in enumerate(zip(heard[0], shifted, strict=False)):
        if seen != right:
            return (
                f"For the targets {targets[row].tolist()} the model's input was {seen}, expected "
                f"{right} ({names})"
            )
    count = int((targets != PAD).sum())
    return (
        f"The model's input is correct. The losses of the {count} targets that are not pad (of "
        f"{targets.numel()}; in the first row {[t for t in targets[0].tolist() if t != PAD]}), "
        f"each at the logits of its own position, add up to {count * expected:.4g}, to be divided "
        f"by {count} ({names})"
    )


def rule_model(rule, tokens):
    """Bet everything on one token."""
    return 20.0 * F.one_hot(rule(tokens), VOCAB).double()


def rule_request(subject, rule, targets):
    return asked_loss(subject, partial(rule_model, rule), targets)


def copies(tokens):
    return tokens


def counts_up(tokens):
    """The next token is one more, and the first is the first word."""
    return torch.where(tokens == BOS, NUM_SPECIAL, tokens + 1).clamp(max=VOCAB - 1)


@exercise(
    "shifted_loss",
    number="6.2",
    title="Teacher forcing: shift right, then compute the loss",
    asks="Run the model on the targets, shifted right by one position with `bos` in front, and "
    "return the mean cross-entropy of all targets that are not `pad`.",
    difficulty=2,
    importance=5,
    minutes=15,
)
class TestShiftedLoss:
    @points(3)
    def test_each_target_is_predicted_from_the_tokens_before_it(self, subject, case):
        for size in (1.0, 400.0):  # most probabilities are rounded to 0 by the second
            draw = partial(loss_inputs, padded=False, size=size)
            expect_answer(subject, case, draw, loss_request, loss_judge)

    @points(2)
    def test_padding_is_excluded_from_the_loss(self, subject, case):
        expect_answer(subject, case, loss_inputs, loss_request, loss_judge)
        expect_answer(subject, case, loss_inputs, flow_request, flow_judge)

        def inputs(case):
            return drawn_targets(case), BOS, PAD

        model = observing(partial(position_model, *loss_inputs(case)[1:]))
        expect_inputs_unchanged(subject, case, "shifted_loss", inputs, [model])

    @points(2, only_with="test_each_target_is_predicted_from_the_tokens_before_it")
    def test_a_model_that_copies_its_input_has_a_high_loss(self, subject, case):
        def judge(answer, rule, targets):
            loss, problem = as_a_number(answer[0])
            if problem or loss > 5:
                return problem
            return (
                f"a model that only repeats its input gets a loss of {loss:.4g} nats per token; it "
                "must be high, about 20, because no token here equals the one before it"
            )

        def draw(case):
            return copies, drawn_targets(case)

        expect_answer(subject, case, draw, rule_request, judge)

    @points(1, only_with="test_each_target_is_predicted_from_the_tokens_before_it")
    def test_a_model_that_predicts_perfectly_has_a_low_loss(self, subject, case):
        def draw(case):
            length = case.integer(4, 7)
            return counts_up, torch.arange(NUM_SPECIAL, NUM_SPECIAL + length).expand(2, -1)

        def judge(answer, rule, targets):
            loss, problem = as_a_number(answer[0])
            if problem or loss < 0.1:
                return problem
            return (
                f"the targets are {targets[0].tolist()}, and a model that predicts one more than "
                f"the token before, and {NUM_SPECIAL} after bos, gets a loss of {loss:.4g}; it must "
                "be near 0"
            )

        expect_answer(subject, case, draw, rule_request, judge)


# 6.3 ------------------------------------------------------------------------------------------


def cross_inputs(case, masked=False, heads=3, size=1.0):
    batch, tgt_len = case.size("batch", 2), case.size("tgt_len", 5)
    src_len = case.size("src_len", 7, smallest=2)
    heads, d_head = case.size("heads", heads), case.size("d_head", 4)
    d_model = heads * d_head
    weights = {}
    for name in ("query", "key", "value", "output"):
        weights[f"{name}.weight"] = case.normal(d_model, d_model, std=d_model**-0.5)
        weights[f"{name}.bias"] = case.normal(d_model, std=0.5)
    settings = {"d_model": d_model, "num_heads": heads}
    x, memory = case.normal(batch, tgt_len, d_model), case.normal(batch, src_len, d_model)
    if (
        size > 1
    ):  # keys are alike, and two queries opposite: one has large scores, one very low ones
        memory = memory[:, :1] + 0.3 * memory
        x[:, :1] *= size
        x[:, 1:2] = -x[:, :1]
    if not masked:
        return settings, weights, x, memory
    lengths = torch.tensor([1 + (src_len - 2) * i // batch for i in range(1, batch + 1)])
    source_mask = torch.arange(src_len) < lengths[:, None]
    source_mask[1::2] = source_mask[1::2].flip(-1)  # padding may be in front, too
    return settings, weights, x, memory, source_mask


@oracle
def cross_oracle(settings, weights, x, memory, source_mask=None):
    names = ("query", "key", "value")
    found, _ = F.multi_head_attention_forward(
        x.transpose(0, 1),
        *2 * [memory.transpose(0, 1)],
        embed_dim_to_check=settings["d_model"],
        num_heads=settings["num_heads"],
        in_proj_weight=torch.cat([weights[f"{name}.weight"] for name in names]),
        in_proj_bias=torch.cat([weights[f"{name}.bias"] for name in names]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=weights["output.weight"],
        out_proj_bias=weights["output.bias"],
        key_padding_mask=None if source_mask is None else ~source_mask,
        need_weights=False,
    )
    return found.transpose(0, 1)


FOUND = {"output": "batch tgt_len d_model"}


@exercise(
    "CrossAttention",
    number="6.3",
    title="Cross-attention",
    asks="A module with the linear layers `query`, `key`, `value` and `output`: each target "
    "token attends to the memory, except for its padding.",
    difficulty=3,
    importance=5,
    minutes=25,
)
class TestCrossAttention:
    @points(3)
    def test_a_single_head_attends_to_the_memory(self, subject, case):
        self.compare(subject, case, partial(cross_inputs, heads=1))

    @points(2)
    def test_each_head_uses_its_own_features(self, subject, case):
        self.compare(subject, case, cross_inputs)

    @points(2)
    def test_source_padding_has_no_effect(self, subject, case):
        for size in (1.0, 1e5):
            self.compare(subject, case, partial(cross_inputs, masked=True, size=size))

    @points(1, only_with="test_a_single_head_attends_to_the_memory")
    def test_the_order_of_the_memory_does_not_matter(self, subject, case):
        def inputs(case):
            settings, weights, x, memory = cross_inputs(case)
            return settings, weights, x[[0, 0]], torch.stack([memory[0], memory[0].flip(0)])

        def law(output, settings, weights, x, memory):
            problem = differs("with the memory reversed, the output", output[1], output[0])
            return problem and f"{problem}: the order of the memory is irrelevant"

        expect_law(subject, case, "CrossAttention", inputs, law, correct=cross_oracle)

    @points(1)
    def test_gradients_flow_back_to_the_inputs(self, subject, case):
        expect_gradients(
            subject, case, "CrossAttention", cross_inputs, cross_oracle, wrt=["x", "memory"]
        )

    def compare(self, subject, case, inputs):
        expect_agrees(subject, case, "CrossAttention", inputs, cross_oracle, FOUND)


# 6.4 ------------------------------------------------------------------------------------------


class Translator:
    """Both halves of a model that knows its answers by heart, and counts how often it is asked.

    It is easily confused, as a trained model is: by padding that it is allowed to see, by a
    beginning that is not `bos`, and by a target that it would not have written.
    """

    def __init__(self, source, source_mask, answers, bos):
        self.bos = bos
        contents = self.content(self.read(source, source_mask), source_mask).tolist()
        self.answers = list(zip(contents, answers, strict=True))
        self.num_encoded = self.num_decoded = 0

    def read(self, source, source_mask):
        """Give each source token a number that depends on all tokens that are seen."""
        seen = torch.ones_like(source) if source_mask is None else source_mask.long()
        mean = (source * seen).sum(dim=1) / seen.sum(dim=1)
        return (source + mean[:, None]).double()[..., None]

    def content(self, memory, source_mask):
        seen = torch.ones(memory.shape[:2]) if source_mask is None else source_mask
        return (memory[..., 0] * seen.double()).sum(dim=1)

    @observing
    def encode(self, source, source_mask=None):
        self.num_encoded += 1
        return self.read(source, source_mask)

    @observing
    def decode(self, target, memory, source_mask=None):
        self.num_decoded += 1
        if target.dim() != 2 or len(target) != len(memory):
            raise Refused(
                "decode must get one target for each source of the batch, got target of shape "
                f"{tuple(target.shape)} and memory of shape {tuple(memory.shape)}"
            )
        contents = self.content(memory, source_mask).tolist()
        rows = [
            [self.next_token(content, written[: i + 1]) for i in range(len(written))]
            for content, written in zip(contents, target.tolist(), strict=True)
        ]
        says = torch.tensor(rows, dtype=torch.long).reshape(len(target), target.shape[1])
        # Some of the other tokens are more likely than not, none as much as the right one.
        return F.one_hot(says, VOCAB) * 4.0 + torch.linspace(-1, 2, VOCAB, dtype=torch.float64)

    def next_token(self, content, written):
        answer = next((a for known, a in self.answers if abs(known - content) < 1e-6), None)
        place = len(written) - 1
        if answer is None or place >= len(answer) or written != [self.bos, *answer[:place]]:
            confusion = 3 * len(written) + written[-1] + int(content)
            return NUM_SPECIAL + confusion % (VOCAB - NUM_SPECIAL)
        return answer[place]


def translation_inputs(case, ends=True, bos=BOS):
    """Sources that are padded, and what is to be written: of different lengths, all but one."""
    lengths = torch.tensor([4, 6, 3])
    source = torch.tensor(
        [[case.integer(NUM_SPECIAL, VOCAB - 1) for _ in range(6)] for _ in lengths]
    )
    source[:, 0] = torch.tensor([3, 6, 9]) + case.integer(0, 1)
    source_mask = torch.arange(6) < lengths[:, None]
    source = source.where(source_mask, PAD)
    # The model knows a source by its sum: let no two have the same one.
    second = source[:, 1] + (torch.arange(3) - (source * source_mask).sum(dim=1)) % 3
    source[:, 1] = second.where(second < VOCAB, second - 3)
    num_words = [2, 5, 3] if case.integer(0, 1) else [4, 1, 3]
    answers = []
    for number in num_words:
        words = [case.integer(NUM_SPECIAL, VOCAB - 1) for _ in range(number)]
        answers.append([*words, EOS])
    max(answers, key=len)[1] = PAD  # a model may predict it, and go on
    if not ends:
        answers[1] = [case.integer(NUM_SPECIAL, VOCAB - 1) for _ in range(20)]
    return source, source_mask, answers, 8 if ends else case.integer(6, 9), bos


def translation_request(subject, source, source_mask, answers, max_len, bos):
    translator = Translator(source, source_mask, answers, bos)
    written = subject.call(
        "greedy_translation",
        subject.lend(translator.encode),
        subject.lend(translator.decode),
        source,
        source_mask,
        bos,
        EOS,
        PAD,
        max_len,
    )
    return written, translator.num_encoded, translator.num_decoded


def judge_writing(answer, source, source_mask, answers, max_len, bos):
    written, _, _ = answer
    longest = min(max(map(len, answers)), max_len)
    expected = [(row + [PAD] * longest)[:longest] for row in answers]
    if not isinstance(written, torch.Tensor) or written.dim() != 2:
        return f"the result should be tokens (batch, tgt_len); it is {describe(written)}"
    if written.tolist() == expected:
        return None
    if len(written) != len(expected):
        return f"{len(expected)} sequences should be returned; there are {len(written)}"
    names = f"bos {bos}, eos {EOS}, pad {PAD}, max_len {max_len}"
    for row, (seen, wanted) in enumerate(zip(written.tolist(), expected, strict=True)):
        if seen != wanted:
            return f"sequence {row} of the batch is {seen}, expected {wanted} ({names})"
    return None


def judge_encoding(answer, *given):
    _, num_encoded, _ = answer
    if num_encoded == 1:
        return None
    return f"`encode` was called {num_encoded} times, expected once for the whole batch"


def judge_decoding(answer, source, source_mask, answers, max_len, bos):
    _, _, num_decoded = answer
    longest = min(max(map(len, answers)), max_len)
    if num_decoded == longest:
        return None
    return (
        f"`decode` was called {num_decoded} times; the longest result has {longest} tokens (bos "
        f"{bos}, eos {EOS}, max_len {max_len}), and each token needs one call for the whole batch"
    )


@exercise(
    "greedy_translation",
    number="6.4",
    title="Greedy decoding",
    asks="Encode the source once; then append the most likely next token to every sequence, "
    "starting from `bos`, until all have generated `eos` or have `max_len` tokens.",
    difficulty=3,
    importance=5,
    minutes=30,
)
class TestGreedyTranslation:
    @points(3)
    def test_each_source_in_the_batch_gets_its_own_translation(self, subject, case):
        self.judge(subject, case, judge_writing)

    @points(1, only_with="test_each_source_in_the_batch_gets_its_own_translation")
    def test_the_source_is_encoded_once(self, subject, case):
        self.judge(subject, case, judge_encoding)

    @points(2, only_with="test_each_source_in_the_batch_gets_its_own_translation")
    def test_decoding_stops_when_all_sequences_have_ended(self, subject, case):
        self.judge(subject, case, judge_decoding)
        self.judge(subject, case, judge_decoding, ends=False)
        self.judge(subject, case, judge_decoding, bos=EOS)

    @points(2)
    def test_a_sequence_without_eos_is_cut_at_the_maximum_length(self, subject, case):
        self.judge(subject, case, judge_writing, ends=False)

    def judge(self, subject, case, judge, ends=True, bos=BOS):
        draw = partial(translation_inputs, ends=ends, bos=bos)
        expect_answer(subject, case, draw, translation_request, judge)


# 6.9 ------------------------------------------------------------------------------------------


def masking_inputs(case, share=0.6, kind=None):
    """Draw tokens, special ones among them, and the numbers that decide about each."""
    batch, length = case.size("batch", 3), case.size("length", 17, smallest=4)
    num_special, vocab_size = case.integer(4, 6), case.integer(20, 60)
    tokens = torch.tensor(
        [[case.integer(0, vocab_size - 1) for _ in range(length)] for _ in range(batch)]
    )
    tokens[:, :7] = num_special  # the first word
    tokens[:-1, 0] = torch.tensor([num_special - 1, 0])[: batch - 1]
    choice, kinds, word = case.uniform(3, batch, length)
    choice[:, :7] = 0.0
    if kind is not None:
        low, high = kind
        kinds = low + (high - low) * kinds
    else:  # all three, and all boundaries, whatever else is drawn
        choice[:, 6:7] = share
        at = [0.4, 0.85, 0.95, 0.8, 0.9][: length - 1]
        kinds[:, 1:6] = torch.tensor(at, dtype=torch.float64)
    mask_id = case.integer(0, num_special - 1)
    return tokens, choice, kinds, word, num_special, mask_id, vocab_size, share


@oracle
def masking_oracle(tokens, choice, kind, word, num_special, mask_id, vocab_size, share=0.15):
    """Decide about one place after the other."""
    inputs, labels = tokens.clone(), torch.full_like(tokens, -100)
    words = range(num_special, vocab_size)
    for row in range(len(tokens)):
        for i in range(tokens.shape[1]):
            token = int(tokens[row, i])
            if token < num_special or choice[row, i] >= share:
                continue
            labels[row, i] = token
            if kind[row, i] < 0.8:
                inputs[row, i] = mask_id
            elif kind[row, i] < 0.9:
                inputs[row, i] = words[math.floor(word[row, i] * len(words))]
    return inputs, labels


def why_masked(seen, tokens, choice, kind, word, num_special, mask_id, vocab_size, share, *, part):
    """Say what decides about the first token whose input or label is wrong."""
    given = tokens, choice, kind, word, num_special, mask_id, vocab_size, share
    place = list(MASKED).index(part)
    expected = masking_oracle(*given)
    row, i = (seen[place] != expected[place]).nonzero()[0].tolist()
    mine, right = (int(results[place][row, i]) for results in (seen, expected))
    token, number = int(tokens[row, i]), vocab_size - num_special
    said = f". For example, {part}[{row}, {i}] is {mine} and should be {right}: the token is"
    if token < num_special:
        return f"{said} {token}, which is special (below num_special = {num_special})"
    chance = f"choice {choice[row, i]:.3g}, share {share:.3g}"
    if expected[1][row, i] == -100:
        return f"{said} {token}, which is not chosen ({chance})"
    if part == "labels":
        return f"{said} {token}, which is chosen ({chance}), so it is to be predicted"
    how = (
        "below 0.8, so it is masked"
        if kind[row, i] < 0.8
        else f"from 0.8 to below 0.9, and word {word[row, i]:.4g} times the {number} words from "
        f"{num_special} to {vocab_size - 1} is {float(word[row, i] * number):.4g}, which selects "
        f"number {right - num_special}, counted from 0"
        if kind[row, i] < 0.9
        else "0.9 or more, so it stays"
    )
    return f"{said} {token}, which is chosen ({chance}), and kind {kind[row, i]:.4g} is {how}"


MASKED = {"inputs": "batch length", "labels": "batch length"}


@exercise(
    "masked_tokens",
    number="6.9",
    title="Masked language modelling",
    asks="Return (inputs, labels): the chosen tokens masked, replaced or kept, and the original "
    "of every chosen token, -100 elsewhere.",
    difficulty=2,
    importance=4,
    minutes=20,
    deeper=True,
)
class TestMaskedTokens:
    @points(2)
    def test_most_chosen_tokens_are_replaced_by_the_mask_token(self, subject, case):
        self.compare(subject, case, partial(masking_inputs, kind=(0.0, 0.8)), ["inputs"])

    @points(2)
    def test_some_chosen_tokens_are_replaced_by_a_random_token(self, subject, case):
        self.compare(subject, case, partial(masking_inputs, kind=(0.8, 0.9)), ["inputs"])

    @points(1)
    def test_all_three_treatments_of_chosen_tokens_are_correct(self, subject, case):
        self.compare(subject, case, masking_inputs, ["inputs"])

    @points(2)
    def test_exactly_the_chosen_tokens_have_labels(self, subject, case):
        def inputs(case):
            """One of the chosen tokens is replaced by the word that it is."""
            tokens, choice, kind, word, *rest = masking_inputs(case, kind=(0.7, 1.0))
            kind[:, 1], word[:, 1] = 0.85, 0.0
            return tokens, choice, kind, word, *rest

        self.compare(subject, case, inputs, ["labels"])

    @points(1, only_with="test_all_three_treatments_of_chosen_tokens_are_correct")
    def test_inputs_are_not_modified(self, subject, case):
        expect_inputs_unchanged(subject, case, "masked_tokens", masking_inputs)

    def compare(self, subject, case, inputs, parts):
        expect_agrees(
            subject,
            case,
            "masked_tokens",
            inputs,
            masking_oracle,
            MASKED,
            compare=parts,
            why=partial(why_masked, part=parts[0]),
        )


# 6.8 ------------------------------------------------------------------------------------------

WORDS, WIDTH, MAX_LEN = 11, 6, 16


### BEGIN PACKED
def no_later(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def attended(x, memory, maps, allowed):
    """Add to each token what one head finds."""
    query, key, value = x @ maps[0], memory @ maps[1], memory @ maps[2]
    scores = (query @ key.T / WIDTH**0.5).masked_fill(~allowed, -math.inf)
    return x + scores.softmax(dim=-1) @ value


def remembered(model):
    """Return the same model, which answers at once what it was asked before."""
    known = {}

    def predict(first, rest):
        if not (len(first) and len(rest)):
            raise Refused(
                "predict needs at least one token in each part, got "
                f"{len(first)} in first and {len(rest)} in rest"
            )
        if first.dim() != 1 or rest.dim() != 1:
            raise ValueError(
                "predict needs tokens (length,) in each part, got shapes "
                f"{tuple(first.shape)} and {tuple(rest.shape)}"
            )
        text = (first.dtype, *first.tolist(), rest.dtype, *rest.tolist())
        if text not in known:
            known[text] = model(first, rest)
        return known[text]

    return predict


def remembering(models):
    """They are asked the same by all checks, and by all tests that a student's is compared with."""
    return {description: remembered(model) for description, model in models.items()}


def split_models(draw):
    """Draw the weights of the models that a student's test is to judge; return right and wrong ones."""
    table, places = draw.normal(WORDS, WIDTH), draw.normal(MAX_LEN, WIDTH)
    # Moderate logits: a probability near 1 would hide small differences.
    unembedding = draw.normal(WIDTH, WORDS, std=0.4)
    layers = draw.normal(2, 3, WIDTH, WIDTH, std=0.5)

    def answered(x):
        """Turn the last vector into probabilities."""
        return (F.layer_norm(x[-1], (WIDTH,)) @ unembedding.to(x.dtype)).softmax(dim=-1)

    def embedded(tokens, start=0):
        return table[tokens] + places[start : start + len(tokens)]

    def read_at_once(first, rest, allowed=None):
        """Read the whole text at once, causally unless told otherwise."""
        tokens = torch.cat([first, rest])
        x = embedded(tokens)
        allowed = no_later(len(tokens)) if allowed is None else allowed
        for maps in layers:
            x = F.layer_norm(x, (WIDTH,))
            x = attended(x, x, maps, allowed)
        return answered(x)

    def read_in_pieces(pieces, restarts=False, corner="end", keeps=None, newest_only=False):
        """Read piece after piece, with a cache of what each layer read before."""
        caches = [torch.zeros(0, WIDTH, dtype=torch.float64) for _ in layers]
        start = 0
        for number, tokens in enumerate(pieces):
            x = embedded(tokens, 0 if restarts else start)
            for layer, maps in enumerate(layers):
                x = F.layer_norm(x, (WIDTH,))
                new = x[-1:] if newest_only and number > 0 else x
                past = caches[layer] if keeps is None else caches[layer][-keeps:]
                memory = torch.cat([past, new])
                shift = len(memory) - len(x) if corner == "end" else 0
                allowed = torch.arange(len(memory)) <= torch.arange(len(x))[:, None] + shift
                if newest_only:
                    allowed[-1] = True
                x = attended(x, memory, maps, allowed)
                caches[layer] = memory
            start += len(tokens)
        return answered(x)

    def by_parts_in_float32(first, rest):
        """Attend to both parts apart and merge what was found, so that rounding depends on the cut."""
        x, cut = embedded(torch.cat([first, rest])).float(), len(first)
        for maps in layers.float():
            x = F.layer_norm(x, (WIDTH,))
            query, key, value = x @ maps[0], x @ maps[1], x @ maps[2]
            scores = (query @ key.T / WIDTH**0.5).masked_fill(~no_later(len(x)), -math.inf)
            shares = (scores - scores.amax(dim=1, keepdim=True)).exp()
            parts = [(shares[:, :cut], value[:cut]), (shares[:, cut:], value[cut:])]
            found = sum(share @ value for share, value in parts)
            x = x + found / sum(share.sum(dim=1, keepdim=True) for share, _ in parts)
        return answered(x)

    def in_two_pieces(first, rest, **faults):
        return read_in_pieces([first, rest], **faults)

    def token_by_token(first, rest):
        return read_in_pieces(torch.cat([first, rest]).split(1))

    def by_the_last_two_words(first, rest):
        """Count nothing but the last two words."""
        last = torch.cat([first, rest])[-2:]
        return (table[last] @ unembedding).sum(dim=0).softmax(dim=-1)

    def without_some_words(first, rest):
        """Never write some of the words."""
        found = read_at_once(first, rest).masked_fill(torch.arange(WORDS) % 4 == 1, 0.0)
        return found / found.sum()

    def by_translation(first, rest):
        """Read the first part both ways, and write from the second part on."""
        memory, target = embedded(first), embedded(rest)
        memory = attended(memory, memory, layers[0], torch.ones(2 * [len(first)], dtype=torch.bool))
        target = attended(target, target, layers[1], no_later(len(rest)))
        everything = torch.ones(len(rest), len(first), dtype=torch.bool)
        return answered(attended(target, memory, layers[0], everything))

    def with_prefix(first, rest):
        is_first = torch.arange(len(first) + len(rest)) < len(first)
        return read_at_once(first, rest, no_later(len(is_first)) | is_first)

    def with_faint_prefix(first, rest):
        """Let the prefix change all probabilities a little, except for the largest."""
        causal, both_ways = read_at_once(first, rest), with_prefix(first, rest)
        others = torch.arange(WORDS) != causal.argmax()
        share = causal[others].sum() / both_ways[others].sum()
        change = (share * both_ways - causal) * others
        return causal + (4e-4 / change.abs().max().clamp(min=4e-4)) * change

    def with_one_faint_word(first, rest):
        """Move a little probability between the best two tokens if the first part is not one token."""
        causal = read_at_once(first, rest)
        if len(first) < 2:
            return causal
        change = torch.tensor([-2e-4, 2e-4], dtype=causal.dtype)
        return causal.scatter_add(0, causal.topk(2).indices, change)

    def first_taken_for_padding(first, rest):
        """Hide a first piece of one token, as a mask does that takes it for padding."""
        length = len(first) + len(rest)
        allowed = no_later(length)
        if len(first) == 1:
            allowed[1:, 0] = False
        return read_at_once(first, rest, allowed)

    correct_ones = {
        "a decoder-only model that processes everything at once": read_at_once,
        "one with a cache, piece by piece": in_two_pieces,
        "one with a cache, token by token": token_by_token,
        "one that computes in float32, part by part": by_parts_in_float32,
        "one that uses only the last two tokens": by_the_last_two_words,
        "one that gives some tokens the probability 0": without_some_words,
    }
    faulty_ones = {
        "an encoder-decoder": by_translation,
        "a model that reads the first part in both directions": with_prefix,
        "a model that reads the first part in both directions, weakly": with_faint_prefix,
        "a model in which the split changes two probabilities slightly": with_one_faint_word,
        "positions start again at 0 in the second part": partial(in_two_pieces, restarts=True),
        "the mask of the second part is aligned at the wrong corner": partial(
            in_two_pieces, corner="start"
        ),
        "the cache keeps only four tokens": partial(in_two_pieces, keeps=4),
        "the cache keeps only the newest token of the second part": partial(
            in_two_pieces, newest_only=True
        ),
        "a first part of one token is treated as padding": first_taken_for_padding,
    }
    return remembering(correct_ones), remembering(faulty_ones)


### END PACKED


@exercise(
    "check_prompt_split",
    number="6.8",
    title="Write a test: does the split of a prompt matter?",
    asks="`check_prompt_split` calls the given model on the same text, split at different "
    "points, and `assert`s that the probabilities are the same.",
    difficulty=3,
    importance=4,
    minutes=25,
    deeper=True,
)
class TestCheckPromptSplit:
    @points(1)
    def test_an_encoder_decoder_is_caught(self, subject, case):
        self.judge(subject, case, "an encoder-decoder")

    @points(1)
    def test_bidirectional_attention_in_the_first_part_is_caught(self, subject, case):
        self.judge(subject, case, "a model that reads the first part in both directions")

    @points(1)
    def test_a_small_difference_is_caught(self, subject, case):
        self.judge(subject, case, "a model that reads the first part in both directions, weakly")
        self.judge(subject, case, "a model in which the split changes two probabilities slightly")

    @points(1)
    def test_positions_that_restart_at_0_are_caught(self, subject, case):
        self.judge(subject, case, "positions start again at 0 in the second part")

    @points(1)
    def test_a_mask_aligned_at_the_wrong_corner_is_caught(self, subject, case):
        self.judge(subject, case, "the mask of the second part is aligned at the wrong corner")

    @points(1)
    def test_a_cache_that_drops_its_oldest_tokens_is_caught(self, subject, case):
        self.judge(subject, case, "the cache keeps only four tokens")

    @points(1)
    def test_a_cache_that_skips_tokens_is_caught(self, subject, case):
        self.judge(subject, case, "the cache keeps only the newest token of the second part")

    @points(1)
    def test_a_first_token_masked_as_padding_is_caught(self, subject, case):
        self.judge(subject, case, "a first part of one token is treated as padding")

    def judge(self, subject, case, bug):
        expect_test_judges(
            subject, case, "check_prompt_split", *drawn_once(case, split_models), bug
        )


# 6.6 ------------------------------------------------------------------------------------------


def prefix_lens(case, batch, length):
    """Draw lengths of which no two are equal, and none is 0, 1 or everything."""
    order = case.shuffled(range(2, length))
    return torch.tensor([order[i % len(order)] for i in range(batch)])


def mask_inputs(case, batch=3):
    batch, length = case.size("batch", batch), case.size("length", case.integer(5, 79), smallest=4)
    return length, prefix_lens(case, batch, length)


@oracle
def mask_oracle(length, prefix_lens):
    """Decide about one pair of tokens after the other."""
    places = range(length)
    causal = torch.tensor([[seen <= by for seen in places] for by in places])
    prefix = torch.tensor(
        [
            [[seen <= by or seen < prefix for seen in places] for by in places]
            for prefix in prefix_lens.tolist()
        ]
    )
    return torch.full_like(causal, True), causal, prefix


def why_allowed(masks, length, prefix_lens, compared="prefix"):
    """Say of the first wrong entry of a mask whether it should be True, and why."""
    place = list(MASKS).index(compared)
    mine, right = masks[place], mask_oracle(length, prefix_lens)[place]
    *sequence, query, key = (mine != right).nonzero()[0].tolist()
    said = f". Query {query} should {'' if right[*sequence, query, key] else 'not '}see "
    if compared == "both_ways":
        return f"{said}key {key}, because every token sees every token"
    where = f"key {key}, which is {'after it' if key > query else 'not after it'}"
    if not sequence:
        return said + where
    prefix = int(prefix_lens[sequence[0]])
    inside = "inside" if key < prefix else "outside"
    return f"{said}{where}, and {inside} the prefix of sequence {sequence[0]} ({prefix} tokens)"


MASKS = {
    "both_ways": "length length",
    "causal": "length length",
    "prefix": "batch length length",
}
OUTPUTS = {name: "batch length d_model" for name in MASKS}


def block_inputs(case):
    batch, length = case.size("batch", 2), case.size("length", 6, smallest=4)
    d_model, d_ff = case.size("d_model", 4, smallest=2), case.size("d_ff", 7)
    x = case.normal(batch, length, d_model)
    return x, block_weights(case, d_model, d_ff), prefix_lens(case, batch, length)


@oracle
def block_oracle(x, weights, prefix_lens):
    return tuple(run_block(x, mask, weights) for mask in mask_oracle(x.shape[1], prefix_lens))


@exercise(
    "one_block_three_masks",
    number="6.6",
    title="One block, three masks",
    asks="`three_masks` returns the masks of an encoder, of a decoder and of a model with a prefix; "
    "`one_block_three_masks` runs the given block with each.",
    difficulty=2,
    importance=4,
    minutes=15,
    deeper=True,
)
class TestOneBlockThreeMasks:
    @points(1, only_with="test_the_decoder_mask_allows_no_later_position")
    def test_the_encoder_mask_allows_every_position(self, subject, case):
        self.compare_masks(subject, case, "both_ways")

    @points(2)
    def test_the_decoder_mask_allows_no_later_position(self, subject, case):
        self.compare_masks(subject, case, "causal")

    @points(2)
    def test_the_prefix_is_bidirectional_and_the_rest_is_causal(self, subject, case):
        self.compare_masks(subject, case, "prefix")

    @points(1, only_with="test_the_prefix_is_bidirectional_and_the_rest_is_causal")
    def test_extreme_prefix_lengths_give_the_other_two_masks(self, subject, case):
        def inputs(case):
            length = case.integer(4, 29)
            return length, torch.tensor([0, 1, length])

        def law(masks, length, prefix_lens):
            both_ways, causal, prefix = masks
            limits = (("0 tokens", causal), ("1 token", causal), ("all tokens", both_ways))
            if prefix.dtype != torch.bool:
                return f"the mask with a prefix has dtype {prefix.dtype}, expected torch.bool"
            for seen, (words, expected) in zip(prefix, limits, strict=True):
                if not torch.equal(seen, expected):
                    other = "both-ways" if words == "all tokens" else "causal"
                    return f"with a prefix of {words} the mask should be your {other} one"
            return None

        for _ in range(3):
            expect_law(subject, case, "three_masks", inputs, law, correct=mask_oracle)

    @points(2)
    def test_the_same_block_runs_with_each_mask(self, subject, case):
        expect_agrees(subject, case, "one_block_three_masks", block_inputs, block_oracle, OUTPUTS)

    def compare_masks(self, subject, case, part):
        for batch in (3, 3, 1 if part == "prefix" else 3):
            expect_agrees(
                subject,
                case,
                "three_masks",
                partial(mask_inputs, batch=batch),
                mask_oracle,
                MASKS,
                compare=[part],
                why=partial(why_allowed, compared=part),
            )


# 6.10 -----------------------------------------------------------------------------------------


def smoothing_inputs(case, padded=True, size=2.0):
    batch, length = case.size("batch", 3), case.size("length", 5, smallest=2)
    vocab_size = case.size("vocab_size", 7, smallest=3)
    pad = case.integer(1, vocab_size - 1)
    words = [
        [(pad + case.integer(1, vocab_size - 1)) % vocab_size for _ in range(length)]
        for _ in range(batch)
    ]
    targets = torch.tensor(words)
    if padded:
        targets[0, 1:], targets[-1, -1] = pad, pad
    logits = size * case.normal(batch, length, vocab_size)
    return logits, targets, float(case.uniform(low=0.05, high=0.4)), pad


@oracle
def smoothing_oracle(logits, targets, smoothing, pad):
    flat = logits.flatten(0, 1), targets.flatten()
    return F.cross_entropy(*flat, ignore_index=pad, label_smoothing=smoothing)


def schedule_inputs(case, late=False):
    warmup_steps = case.integer(10, 40)
    step = case.integer(warmup_steps, 400) if late else case.integer(0, warmup_steps - 3)
    return step, case.integer(5, 600), warmup_steps


@oracle
def schedule_oracle(step, d_model, warmup_steps):
    """Rise in a line to the highest rate, then fall like a root."""
    highest = 1 / math.sqrt(d_model * warmup_steps)
    share = (step + 1) / warmup_steps
    return highest * share if share < 1 else highest / math.sqrt(share)


@exercise(
    "smoothed_loss",
    number="6.10",
    title="Label smoothing and the Noam schedule",
    asks="`smoothed_loss` is the mean cross-entropy with smoothed targets; `noam` is the "
    "learning rate of a step, counted from 0.",
    difficulty=2,
    importance=3,
    minutes=20,
    deeper=True,
)
class TestSmoothedLoss:
    @points(2)
    def test_smoothing_is_distributed_over_the_whole_vocabulary(self, subject, case):
        for size in (2.0, 1000.0):  # most probabilities are rounded to 0 by the second
            self.compare(subject, case, partial(smoothing_inputs, padded=False, size=size))

    @points(1)
    def test_padding_is_excluded_from_the_loss(self, subject, case):
        self.compare(subject, case, smoothing_inputs)

    @points(1)
    def test_without_smoothing_the_loss_is_the_cross_entropy(self, subject, case):
        def inputs(case):
            logits, targets, _, pad = smoothing_inputs(case)
            return 500 * logits, targets, 0.0, pad  # most probabilities are rounded to 0

        self.compare(subject, case, inputs)

    @points(2)
    def test_the_learning_rate_rises_linearly_during_warmup(self, subject, case):
        expect_agrees(subject, case, "noam", schedule_inputs, schedule_oracle, {"rate": ""})

    @points(1)
    def test_the_learning_rate_decays_as_an_inverse_square_root(self, subject, case):
        def first_of_the_decay(case):
            _, d_model, warmup_steps = schedule_inputs(case)
            return warmup_steps, d_model, warmup_steps

        inputs = partial(schedule_inputs, late=True)
        expect_agrees(subject, case, "noam", inputs, schedule_oracle, {"rate": ""})
        # This one is ruled out; here the larger term is the one that should have begun to fall.
        others = tuple(m for m in case.mistakes if m.name != "MaximumInsteadOfMinimum")
        case = replace(case, mistakes=others)
        inputs = first_of_the_decay
        expect_agrees(subject, case, "noam", inputs, schedule_oracle, {"rate": ""})

    @points(1)
    def test_the_first_update_has_a_small_nonzero_learning_rate(self, subject, case):
        def inputs(case):
            return 0, *schedule_inputs(case)[1:]

        expect_agrees(subject, case, "noam", inputs, schedule_oracle, {"rate": ""})

    def compare(self, subject, case, inputs):
        expect_agrees(subject, case, "smoothed_loss", inputs, smoothing_oracle, {"loss": ""})


# 6.5 ------------------------------------------------------------------------------------------


def mended_inputs(case, padded=False, size=1.0):
    batch, tgt_len = case.size("batch", 2), case.size("tgt_len", 5, smallest=2)
    src_len, d_model = case.size("src_len", 7, smallest=3), case.size("d_model", 4, smallest=2)
    source_mask = torch.ones(batch, src_len, dtype=torch.bool)
    if padded:  # also in other places than at the end
        source_mask[::2, -1] = False
        source_mask[torch.arange(batch), [case.integer(0, src_len - 3) for _ in range(batch)]] = (
            False
        )
    x, memory = case.normal(batch, tgt_len, d_model), case.normal(batch, src_len, d_model)
    weights = case.normal(6, d_model, d_model, std=d_model**-0.5)
    if size > 1:  # the first token's score with itself is very low
        x[:, :1] *= size
        weights[1] = -weights[0]
    return x, memory, source_mask, weights


@oracle
def mended_oracle(x, memory, source_mask, weights):
    """Go token by token: the past by a growing slice, the source by what is real of it."""
    w_q, w_k, w_v, cross_q, cross_k, cross_v = weights
    scale = x.shape[-1] ** -0.5

    def found(query, key, value):
        return torch.softmax(key @ query * scale, dim=0) @ value

    rows = []
    for tokens, source, real in zip(x, memory, source_mask, strict=True):
        source = source[real]
        for i, token in enumerate(tokens):
            past = tokens[: i + 1]
            stream = token + found(token @ w_q, past @ w_k, past @ w_v)
            rows.append(stream + found(stream @ cross_q, source @ cross_k, source @ cross_v))
    return torch.stack(rows).view_as(x)


def decoder_twins(case):
    """Two targets that differ in their last token."""
    x, memory, source_mask, weights = mended_inputs(case)
    twin = x[0].clone()
    twin[-1] += 3 * case.normal(x.shape[2])
    return torch.stack([x[0], twin]), memory[[0, 0]], source_mask[[0, 0]], weights


def nobody_notices_the_last(output, x, memory, source_mask, weights):
    if not isinstance(output, torch.Tensor) or output.shape != x.shape:
        return f"the output should have shape {tuple(x.shape)}; it is {describe(output)}"
    change = (output[0] - output[1])[:-1].abs().amax(dim=-1)
    if (change < 1e-9).all():
        return None
    notice = (change >= 1e-9).nonzero().flatten().tolist()
    return f"changing the last of {x.shape[1]} target tokens changes earlier outputs: {notice}"


@exercise(
    "mended_decoder",
    number="6.5",
    title="Bug hunt: a decoder that sees the target",
    asks="Return the correct output of the decoder: tokens are compared with tokens, the target "
    "attends to the memory, and the source's padding is hidden.",
    difficulty=3,
    importance=5,
    minutes=20,
    deeper=True,
)
class TestMendedDecoder:
    @points(2)
    def test_self_attention_alone_is_correct_and_causal(self, subject, case):
        def inputs(case):
            *rest, weights = mended_inputs(case)
            return *rest, torch.cat([weights[:5], 0 * weights[5:]])

        self.compare(subject, case, inputs)

    @points(3)
    def test_target_tokens_attend_to_the_source(self, subject, case):
        self.compare(subject, case, mended_inputs)

    @points(2)
    def test_source_padding_has_no_effect(self, subject, case):
        for size in (1.0, 300.0):
            self.compare(subject, case, partial(mended_inputs, padded=True, size=size))

    @points(1, only_with="test_self_attention_alone_is_correct_and_causal")
    def test_no_output_depends_on_a_later_token(self, subject, case):
        law = nobody_notices_the_last
        expect_law(subject, case, "mended_decoder", decoder_twins, law, correct=mended_oracle)

    def compare(self, subject, case, inputs):
        expect_agrees(subject, case, "mended_decoder", inputs, mended_oracle, FOUND)


# 6.7 ------------------------------------------------------------------------------------------


@functools.cache
def translator():
    """Load the trained model in double precision, and its tokenizers."""
    from groundup.data.dates import Dates
    from groundup.pretrained import load

    model, tokenizers = load("dates")
    return model.double().requires_grad_(False), tokenizers, Dates()


def drawn_dates(case):
    """Draw a short and a long date that the model has not met, as a batch.

    Returns:
        The source, the target, the source's mask, and the right answers.

    """
    from groundup.data.batches import pair_batches

    model, tokenizers, dates = translator()
    drawn = dates.draw(8, case.generator, dates.validation_days)
    drawn.sort(key=lambda pair: len(pair.source))
    pairs = [drawn[0], drawn[-1]]
    batch = next(pair_batches(pairs, 2, tokenizers["source"], tokenizers["target"]))
    return *(batch.inputs[name] for name in ("source", "target", "source_mask")), batch.targets


def trained_weights(block):
    weights = {"gain": block.cross_attention_norm.gain, "bias": block.cross_attention_norm.bias}
    weights |= dict(block.cross_attention.named_parameters())
    return {name: weight.detach() for name, weight in weights.items()}


def before_cross_attention(source, target, source_mask, layer):
    """Run the decoder up to a cross-attention sub-layer; what is handed to it."""
    model, _, _ = translator()
    memory, x = model.encode(source, source_mask), model.embedding(target)
    for block in model.blocks[:layer]:
        x = block(x, memory, None, source_mask)
    block = model.blocks[layer]
    x = x + block.attention(block.attention_norm(x))
    heads = model.config.num_heads
    return x, memory, source_mask[:, 0, 0], trained_weights(block), heads


def after_cross_attention(x, memory, source_mask, layer):
    """Run the decoder on from there."""
    model, _, _ = translator()
    x = x + model.blocks[layer].feed_forward(model.blocks[layer].feed_forward_norm(x))
    for block in model.blocks[layer + 1 :]:
        x = block(x, memory, None, source_mask[:, None, None, :])
    return model.unembedding(model.final_norm(x))


def swap_inputs(case):
    source, target, source_mask, _ = drawn_dates(case)
    layer = case.integer(0, len(translator()[0].blocks) - 1)
    return before_cross_attention(source, target, source_mask, layer)


def with_other_heads(case):
    """The same features, cut into half as many heads: another model, and the same function.

    A token is hidden that is not at the end.
    """
    x, memory, source_mask, weights, num_heads = swap_inputs(case)
    source_mask = source_mask.clone()
    source_mask[:, case.integer(0, 3)] = False
    return x, memory, source_mask, weights, num_heads // 2


def of_another_width(case):
    """The sub-layer of a model that is narrower than the trained one."""
    settings, weights, x, memory, source_mask = cross_inputs(case, masked=True)
    d_model = settings["d_model"]
    weights |= {"gain": 1.0 + case.normal(d_model, std=0.5), "bias": case.normal(d_model)}
    return x, memory, source_mask, weights, settings["num_heads"]


def with_low_scores(case):
    """The same, where a bias makes all scores very low."""
    x, memory, source_mask, weights, num_heads = of_another_width(case)
    low = 300 * weights["query.bias"]
    return x, memory, source_mask, {**weights, "query.bias": low, "key.bias": -low}, num_heads


@oracle
def swap_oracle(x, memory, source_mask, weights, num_heads):
    read = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["bias"])
    settings = {"d_model": x.shape[-1], "num_heads": num_heads}
    return x + cross_oracle(settings, weights, read, memory, source_mask)


def expect_same_logits(subject, case, layer):
    """Expect the model to give the same logits with the student's sub-layer in this layer."""
    source, target, source_mask, labels = drawn_dates(case)
    expected = translator()[0](source, target, source_mask)

    given = before_cross_attention(source, target, source_mask, layer)

    def law(seen, x, memory, source_mask, weights, num_heads):
        if not isinstance(seen, torch.Tensor) or seen.shape != x.shape:
            return f"the stream should have shape {tuple(x.shape)}; it is {describe(seen)}"
        logits = after_cross_attention(seen.double(), memory, source_mask, layer)
        if problem := differs("logits of the trained model", logits, expected):
            told, wanted = (
                F.cross_entropy(rows.flatten(0, 1), labels.flatten()).item()
                for rows in (logits, expected)
            )
            return (
                f"{problem}. The loss alone would show {told:.4g} nats per character instead of "
                f"{wanted:.4g}"
            )
        return None

    expect_law(subject, case, "swapped_cross_attention", lambda case: given, law)


@exercise(
    "swapped_cross_attention",
    number="6.7",
    title="Your cross-attention in a trained translator",
    may_cut=("swapped_cross_attention",),
    asks="Return the stream after norm, cross-attention and residual connection, with the "
    "weights of a trained model, so that its logits stay the same.",
    difficulty=3,
    importance=4,
    minutes=20,
    deeper=True,
)
class TestSwappedCrossAttention:
    @points(3)
    def test_the_residual_stream_of_the_trained_model_is_the_same(self, subject, case):
        for inputs in (swap_inputs, with_other_heads, of_another_width, with_low_scores):
            expect_agrees(subject, case, "swapped_cross_attention", inputs, swap_oracle, FOUND)

    @points(3)
    def test_in_any_layer_the_logits_of_the_trained_model_are_the_same(self, subject, case):
        for layer in range(len(translator()[0].blocks)):
            expect_same_logits(subject, case, layer)


# 6.11 -----------------------------------------------------------------------------------------


def leaves_of(tree, path=""):
    """List the tensors of a tree by the names that lead to them."""
    if not isinstance(tree, dict):
        return {path: tree}
    found = {}
    for name, branch in tree.items():
        found |= leaves_of(branch, f"{path}[{name!r}]")
    return found


def tree_differs(what, seen, expected):
    """Say how a tree differs from another one in its names, its shapes or its numbers."""
    if not isinstance(seen, dict):
        return f"{what} should be nested dictionaries like `parameters`; it is {describe(seen)}"
    seen, expected = leaves_of(seen), leaves_of(expected)
    if missing := [name for name in expected if name not in seen]:
        return f"{what} should have the same names as `parameters`; it lacks {missing[0]}"
    if more := [name for name in seen if name not in expected]:
        return f"{what} should have the same names as `parameters`; it also has {more[0]}"
    for name, leaf in expected.items():
        found, label = seen[name], f"{what} at {name}"
        if not isinstance(found, torch.Tensor) or found.shape != leaf.shape:
            return f"{label} should have shape {tuple(leaf.shape)}; it is {describe(found)}"
        if problem := differs(label, found, leaf):
            return problem
    return None


def drawn_tree(case, tied=False, layers=3):
    vocab_size, d_model = (
        case.size("vocab_size", 11, smallest=2),
        case.size("d_model", 4, smallest=2),
    )
    d_ff, layers = case.size("d_ff", 6), case.size("layers", layers)
    max_len = case.size("max_len", 13)
    tree = {
        "embedding": {
            "tokens": case.normal(vocab_size, d_model),
            "positions": case.normal(max_len, d_model, std=0.7),
        },
        "blocks": {str(i): block_weights(case, d_model, d_ff) for i in range(layers)},
        "final_norm": {
            "gain": 1.0 + case.normal(d_model, std=0.5),
            "bias": case.normal(d_model),
        },
    }
    return tree if tied else tree | {"unembedding": case.normal(vocab_size, d_model)}


def drawn_tokens(case, *shape):
    vocab_size = case.size("vocab_size", 11, smallest=2)
    tokens = [case.integer(0, vocab_size - 1) for _ in range(math.prod(shape))]
    return torch.tensor(tokens).reshape(shape)


def tree_inputs(case, tied=False, batched=True, layers=3):
    batch, length = case.size("batch", 2), case.size("length", 5, smallest=2)
    shape = (batch, length) if batched else (length,)
    return drawn_tree(case, tied, layers), drawn_tokens(case, *shape)


def targets_inputs(case, tied=False, batched=True):
    """The first sequence has more targets that do not count than the last."""
    tree, tokens = tree_inputs(case, tied, batched)
    targets = drawn_tokens(case, *tokens.shape)
    if batched:
        targets[0, : (case.asked["length"] - 1) // 2] = -100
    targets[..., -1] = -100
    return tree, tokens, targets


@oracle
def tree_logits_oracle(parameters, tokens):
    embedding, norm = parameters["embedding"], parameters["final_norm"]
    rows = tokens.reshape(-1, tokens.shape[-1])
    order = torch.arange(rows.shape[1])
    x = F.embedding(rows, embedding["tokens"]) + embedding["positions"][None, : rows.shape[1]]
    for i in range(len(parameters["blocks"])):
        x = run_block(x, order[:, None] >= order, parameters["blocks"][str(i)])
    x = F.layer_norm(x, norm["gain"].shape, norm["gain"], norm["bias"])
    unembedding = parameters["unembedding" if "unembedding" in parameters else "embedding"]
    if isinstance(unembedding, dict):
        unembedding = unembedding["tokens"]
    return F.linear(x, unembedding).reshape(*tokens.shape, -1)


@oracle
def tree_loss_oracle(parameters, tokens, targets):
    """Go target by target."""
    log_p = tree_logits_oracle(parameters, tokens).log_softmax(dim=-1).flatten(0, -2)
    nats = [-log_p[i, t] for i, t in enumerate(targets.flatten().tolist()) if t != -100]
    return torch.stack(nats).mean()


def tree_of(leaves, like):
    """Put leaves, in their order, into a tree like another."""
    if not isinstance(like, dict):
        return next(leaves)
    return {name: tree_of(leaves, branch) for name, branch in like.items()}


@oracle
def tree_gradients_oracle(parameters, tokens, targets):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves_of(parameters).values()]
    loss = tree_loss_oracle(tree_of(iter(leaves), parameters), tokens, targets)
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return tree_of(iter(found), parameters)


def step_inputs(case):
    return drawn_tree(case), drawn_tree(case), float(case.uniform(low=0.05, high=0.4))


@oracle
def step_oracle(parameters, gradients, learning_rate):
    pairs = zip(leaves_of(parameters).values(), leaves_of(gradients).values(), strict=True)
    return tree_of((torch.sub(p, g, alpha=learning_rate) for p, g in pairs), parameters)


def gradient_law(seen, parameters, tokens, targets):
    return tree_differs("the gradient", seen, tree_gradients_oracle(parameters, tokens, targets))


def step_law(seen, parameters, gradients, learning_rate):
    expected = step_oracle(parameters, gradients, learning_rate)
    return tree_differs("the new tree", seen, expected)


SMALL = {"vocab_size": 3, "d_model": 2, "d_ff": 1, "layers": 1, "max_len": 5, "length": 4}


def what_is_left(subject, name, *args):
    """Call a function; return what it was given, as it is after the call."""
    return list(subject.call_and_return_inputs(name, *args)[1])


def nothing_changed(after, name, *args):
    second, third = ("gradients", None) if name == "sgd_step" else ("tokens", "targets")
    for label, before, now in zip(("parameters", second, third), args, after, strict=False):
        before, now = leaves_of(before), leaves_of(now)
        for path in [*before, *now]:
            if path not in now:
                change = f"{path or 'it'} is gone"
            elif path not in before:
                change = f"it has the new entry {path}"
            elif not same(before[path], now[path]):
                change = f"{path or 'it'} has other numbers"
            else:
                continue
            return (
                f"`{name}` changes its argument `{label}`: after the call {change}. Compute "
                "new tensors and new dictionaries, and leave your arguments unchanged"
            )
    return None


@exercise(
    "functional_gradients",
    number="6.11",
    title="The transformer as functions",
    asks="`functional_logits` and `functional_loss` compute with a tree of parameters, "
    "`functional_gradients` returns the gradient as a tree, and `sgd_step` a new tree.",
    difficulty=3,
    importance=3,
    minutes=40,
    deeper=True,
)
class TestFunctionalGradients:
    @points(2)
    def test_the_logits_are_computed_from_the_parameter_tree(self, subject, case):
        for layers in (3, 12):  # as words, "10" and "11" come before "2"
            inputs = partial(tree_inputs, layers=layers)
            expect_agrees(subject, case, "functional_logits", inputs, tree_logits_oracle, LOGITS)

    @points(1)
    def test_without_an_unembedding_the_weights_are_tied(self, subject, case):
        inputs = partial(tree_inputs, tied=True)
        expect_agrees(subject, case, "functional_logits", inputs, tree_logits_oracle, LOGITS)

    @points(1)
    def test_the_loss_is_a_mean_over_targets_that_are_not_ignored(self, subject, case):
        expect_agrees(
            subject, case, "functional_loss", targets_inputs, tree_loss_oracle, {"loss": ""}
        )

    @points(1)
    def test_a_single_sequence_works_without_a_batch_axis(self, subject, case):
        given = targets_inputs(case, batched=False)
        together = targets_inputs(case.fresh(0))
        requests = [
            asks_for("functional_loss", given),
            asks_for("functional_logits", given[:2]),
            asks_for("functional_loss", together),
            asks_for("functional_logits", together[:2]),
        ]

        def judge_loss(loss):
            loss, problem = as_a_number(loss)
            return problem or differs("the loss of one sequence", loss, tree_loss_oracle(*given))

        def judge_logits(logits):
            expected = tree_logits_oracle(*given[:2])
            if not isinstance(logits, torch.Tensor) or logits.shape != expected.shape:
                return (
                    f"the logits of tokens of shape {tuple(given[1].shape)} should have shape "
                    f"{tuple(expected.shape)} = (length, vocab_size); they are {describe(logits)}"
                )
            return differs("the logits of one sequence", logits, expected)

        for first, judge in ((1, judge_logits), (0, judge_loss)):
            expect_replies(subject, case, requests[first:] + requests[:first], judge)

    @points(2)
    def test_the_gradients_form_the_same_tree_as_the_parameters(self, subject, case):
        for tied in (False, True):
            inputs = partial(targets_inputs, tied=tied)
            expect_law(
                subject,
                case,
                "functional_gradients",
                inputs,
                gradient_law,
                correct=tree_gradients_oracle,
            )

    @points(1)
    def test_a_step_updates_every_parameter_of_the_tree(self, subject, case):
        expect_law(subject, case, "sgd_step", step_inputs, step_law, correct=step_oracle)

    @points(
        1,
        only_with=[
            "test_the_logits_are_computed_from_the_parameter_tree",
            "test_the_gradients_form_the_same_tree_as_the_parameters",
            "test_a_step_updates_every_parameter_of_the_tree",
        ],
    )
    def test_inputs_are_not_modified(self, subject, case):
        tied = partial(targets_inputs, tied=True)
        for name, inputs in (
            ("functional_logits", lambda case: tied(case)[:2]),
            ("functional_loss", tied),
            ("functional_gradients", tied),
            ("sgd_step", step_inputs),
        ):

            def draw(case, name=name, inputs=inputs):
                return name, *inputs(case.smaller(SMALL, rounded=False))

            expect_answer(subject, case, draw, what_is_left, nothing_changed)


# 6.12 -----------------------------------------------------------------------------------------


def averaging_tree(case):
    vocab_size, d_model = case.size("vocab_size", 11, smallest=2), case.size("d_model", 3)
    d_ff = case.size("d_ff", 5)
    return {
        "embedding": case.normal(vocab_size, d_model),
        "ffn": {"up": case.normal(d_model, d_ff), "down": case.normal(d_ff, d_model)},
        "unembedding": case.normal(d_model, vocab_size),
    }


def examples_inputs(case, padded=True, empty=False):
    """Examples of different lengths in any order; one of them may have no target."""
    parameters = averaging_tree(case)
    batch, length = case.size("batch", 4, smallest=2), case.size("length", 6, smallest=2)
    tokens = drawn_tokens(case, batch, length)
    targets = drawn_tokens(case, batch, length)
    for row, number in enumerate(case.shuffled(range(batch))):
        if padded:
            targets[row, 1 + (number * length) // batch :] = -100
        if empty and number == 0:
            targets[row] = -100
    if padded:  # what does not count is not only at the end
        targets = targets.roll(case.integer(1, length - 1), dims=1)
    return parameters, tokens, targets


@oracle
def examples_oracle(parameters, tokens, targets):
    """Go example by example and position by position."""
    found = []
    for row, labels in zip(tokens, targets, strict=True):
        leaves = [leaf.clone().requires_grad_() for leaf in leaves_of(parameters).values()]
        embedding, up, down, unembedding = leaves
        nats = []
        for i, label in enumerate(labels.tolist()):
            if label != -100:
                x = embedding[row[: i + 1]].mean(dim=0)
                x = x + F.linear(F.gelu(F.linear(x, up.T)), down.T)
                nats.append(F.cross_entropy(F.linear(x, unembedding.T), labels[i]))
        loss = torch.stack(nats).mean() if nats else 0.0 * embedding.sum()
        found.append(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
    return tree_of(map(torch.stack, zip(*found, strict=True)), parameters)


@oracle
def largest_oracle(parameters, tokens, targets):
    leaves = leaves_of(examples_oracle(parameters, tokens, targets)).values()
    norms = torch.cat([leaf.flatten(1) for leaf in leaves], dim=1).norm(dim=1)
    return norms, norms.argmax()


def examples_law(seen, parameters, tokens, targets):
    expected = examples_oracle(parameters, tokens, targets)
    return tree_differs("the gradient of each example", seen, expected)


LARGEST = {"norms": "batch", "index": ""}


def indices_of(subject, *batches):
    """Ask for the index in several batches, because there are few that it can be."""
    found = []
    for batch in batches:
        seen = subject.call("largest_gradient", *batch)
        is_pair = isinstance(seen, (tuple, list)) and len(seen) == 2
        norms, index = seen if is_pair else (None, seen)
        number, problem = as_a_number(index)
        index = describe(index) if problem else int(number) if number % 1 == 0 else number
        found.append([norms, index])  # by the norms, one mistake is told from another
    return found


def indices_judge(seen, *batches):
    for (_, index), batch in zip(seen, batches, strict=True):
        norms, expected = largest_oracle(*batch)
        if index != int(expected):
            return (
                f"index is {index}, expected {int(expected)}: the norms are "
                f"{[round(norm, 3) for norm in norms.tolist()]}"
            )
    return None


@exercise(
    "largest_gradient",
    number="6.12",
    title="The example with the largest gradient",
    asks="`example_gradients` returns one gradient for each example of a batch, "
    "`largest_gradient` their norms and the index of the largest.",
    difficulty=3,
    importance=3,
    minutes=25,
    deeper=True,
)
class TestLargestGradient:
    @points(2)
    def test_each_example_has_its_own_gradient(self, subject, case):
        inputs = partial(examples_inputs, padded=False)
        expect_law(
            subject, case, "example_gradients", inputs, examples_law, correct=examples_oracle
        )

    @points(2)
    def test_each_example_averages_over_its_own_targets(self, subject, case):
        expect_law(
            subject,
            case,
            "example_gradients",
            examples_inputs,
            examples_law,
            correct=examples_oracle,
        )

    @points(1, only_with="test_each_example_averages_over_its_own_targets")
    def test_an_example_without_targets_has_a_zero_gradient(self, subject, case):
        inputs = partial(examples_inputs, empty=True)
        expect_law(
            subject, case, "example_gradients", inputs, examples_law, correct=examples_oracle
        )

    @points(2)
    def test_each_norm_covers_the_whole_gradient_tree(self, subject, case):
        expect_agrees(
            subject,
            case,
            "largest_gradient",
            examples_inputs,
            largest_oracle,
            LARGEST,
            compare=["norms"],
        )

    @points(1, only_with="test_each_norm_covers_the_whole_gradient_tree")
    def test_the_index_is_that_of_the_largest_norm(self, subject, case):
        def draw(case):
            return [examples_inputs(case) for _ in range(8)]

        expect_answer(subject, case, draw, indices_of, indices_judge)


# 6.13 -----------------------------------------------------------------------------------------

MEMBERS = 16


### BEGIN PACKED
def far_from(rows, centre):
    return 0.3 * (rows - centre).square().sum(dim=-1).sqrt()


def set_model(model):
    """Return the same model, which answers at once what it was asked before."""
    known = {}

    def score(tokens, mask):
        if tokens.dim() != 1 or mask.shape != tokens.shape or mask.dtype != torch.bool:
            raise Refused("model needs tokens (length,) and a boolean mask of the same shape")
        if not mask.any():
            raise Refused("model needs at least one real token, where the mask is True")
        if len(tokens) > MEMBERS:
            raise Refused(f"model takes at most {MEMBERS} tokens, got {len(tokens)}")
        if tokens.dtype != torch.int64 or not ((tokens >= 0) & (tokens < MEMBERS)).all():
            raise Refused(f"model takes tokens from 0 to {MEMBERS - 1}, of dtype int64")
        text = (*tokens.tolist(), *mask.tolist())
        if text not in known:
            known[text] = model(tokens, mask)
        return known[text]

    return score


def models_on_sets(draw):
    """Draw the weights of the models that a student's test is to judge; return right and wrong ones."""
    table, vectors = draw.normal(MEMBERS, WIDTH), draw.normal(MEMBERS, WIDTH)
    readout, layers = draw.normal(WIDTH, std=0.1), draw.normal(2, 3, WIDTH, WIDTH, std=0.5)
    alone = table @ readout

    def set_scores(tokens, mask, places=0.0, causal=False, slope=0.0, dtype=torch.float64):
        """Score each token of a set by an encoder; the faults make it depend on the order."""
        order, number = torch.arange(len(tokens)), int(mask.sum())
        x = (table[tokens] + places * vectors[: len(tokens)]).to(dtype)
        allowed = mask.expand(len(tokens), -1)
        if causal:
            allowed = (allowed & no_later(len(tokens))) | (order[:, None] == order)
        distance = order[:, None] - order
        distance = torch.minimum(distance % number, -distance % number)  # on a circle
        for maps in layers.to(dtype):
            x = F.layer_norm(x, (WIDTH,))
            query, key, value = x @ maps[0], x @ maps[1], x @ maps[2]
            scores = query @ key.T / WIDTH**0.5 - slope * distance
            x = x + scores.masked_fill(~allowed, -math.inf).softmax(dim=-1) @ value
        return F.layer_norm(x, (WIDTH,)) @ readout.to(dtype)

    def minus_infinity_at_padding(tokens, mask):
        return set_scores(tokens, mask).masked_fill(~mask, -math.inf)

    def far_from_the_mean(tokens, mask, by_length=False):
        """Score a token by its distance from the mean; padding gets its position."""
        rows = table[tokens]
        mean = rows[mask].sum(dim=0) / (len(mask) if by_length else mask.sum())
        return torch.where(mask, far_from(rows, mean), torch.arange(len(mask)).double())

    def far_from_the_first(tokens, mask):
        rows = table[tokens]
        return far_from(rows, rows[int(mask.long().argmax())])

    def in_order_of_the_tokens(tokens, mask):
        """Sort the real tokens, score them, and put nothing back."""
        sorted_scores = set_scores(tokens[mask].sort().values, mask[mask])
        return torch.zeros(len(mask), dtype=torch.float64).masked_scatter(mask, sorted_scores)

    def each_alone(tokens, mask):
        return alone[tokens]

    def by_counting(tokens, mask):
        """Count the real tokens of another kind; there are four kinds."""
        kinds = tokens // 4
        return ((kinds[:, None] != kinds) & mask).double().sum(dim=1)

    def weakly_by_position(tokens, mask):
        found = set_scores(tokens, mask)
        change = set_scores(tokens, mask, places=1.0) - found
        return found + (2e-3 / change.abs().max().clamp(min=2e-3)) * change

    def padding_at_the_end(tokens, mask):
        return set_scores(tokens, torch.arange(len(mask)) < mask.sum())

    def mask_ignored(tokens, mask):
        return set_scores(tokens, torch.ones_like(mask))

    correct_ones = {
        "an encoder without positions": set_scores,
        "one that computes in float32": partial(set_scores, dtype=torch.float32),
        "one that returns -inf at padding": minus_infinity_at_padding,
        "one that compares each token with the mean, with arbitrary scores at padding": (
            far_from_the_mean
        ),
        "one that scores each token alone": each_alone,
        "one that counts the tokens of another kind": by_counting,
    }
    faulty_ones = {
        "a model with positions": partial(set_scores, places=1.0),
        "a model with a very weak dependence on positions": weakly_by_position,
        "a model with a causal mask": partial(set_scores, causal=True),
        "a model that attends less to distant tokens on a circle": partial(set_scores, slope=0.5),
        "a model that compares every token with the first": far_from_the_first,
        "a model that sorts its tokens and returns the scores in that order": in_order_of_the_tokens,
        "a model that takes the padding to be at the end": padding_at_the_end,
        "a model that ignores the mask": mask_ignored,
        "a model whose mean is divided by the length with padding": partial(
            far_from_the_mean, by_length=True
        ),
    }
    return tuple(
        {label: set_model(model) for label, model in models.items()}
        for models in (correct_ones, faulty_ones)
    )


### END PACKED


@exercise(
    "check_set_model",
    number="6.13",
    title="Write a test: a transformer on sets",
    asks="`check_set_model` calls the given model on a set, on the same set in other orders and "
    "without its padding, and `assert`s that each real token keeps its score.",
    difficulty=3,
    importance=3,
    minutes=25,
    deeper=True,
)
class TestCheckSetModel:
    @points(1)
    def test_positions_added_to_the_tokens_are_caught(self, subject, case):
        self.judge(subject, case, "a model with positions")

    @points(1)
    def test_a_weak_dependence_on_positions_is_caught(self, subject, case):
        self.judge(subject, case, "a model with a very weak dependence on positions")

    @points(1)
    def test_a_causal_mask_is_caught(self, subject, case):
        self.judge(subject, case, "a model with a causal mask")

    @points(1)
    def test_a_bias_that_depends_on_distance_is_caught(self, subject, case):
        self.judge(subject, case, "a model that attends less to distant tokens on a circle")

    @points(1)
    def test_a_dependence_on_the_first_token_is_caught(self, subject, case):
        self.judge(subject, case, "a model that compares every token with the first")

    @points(1)
    def test_scores_in_the_wrong_order_are_caught(self, subject, case):
        self.judge(
            subject, case, "a model that sorts its tokens and returns the scores in that order"
        )

    @points(1)
    def test_padding_assumed_to_be_at_the_end_is_caught(self, subject, case):
        self.judge(subject, case, "a model that takes the padding to be at the end")

    @points(1)
    def test_a_mask_that_is_ignored_is_caught(self, subject, case):
        self.judge(subject, case, "a model that ignores the mask")

    @points(1)
    def test_padding_counted_in_the_mean_is_caught(self, subject, case):
        self.judge(subject, case, "a model whose mean is divided by the length with padding")

    def judge(self, subject, case, bug):
        expect_test_judges(subject, case, "check_set_model", *drawn_once(case, models_on_sets), bug)
