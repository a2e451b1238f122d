"""The checks know the solutions, the blanks, the mistakes and the variants, on unseen seeds.

One seed each here. On how many of twenty a mistake is named, tests/benchmarks/test_diagnosis.py
counts.
"""

import ast
import contextlib
import hashlib
import itertools
import re
import runpy
import symtable
from collections import Counter

import nbformat
import pytest
import torch

from classroom.author.kill_matrix import RECORD, SEEDS, read, run_mistake
from classroom.calls.local import LocalSubject
from classroom.calls.subject import Crashed
from classroom.calls.wire import Handle, pack
from classroom.course import PUBLISHED_SEED
from classroom.exercise.answers import load_answers, load_correct
from classroom.exercise.cases import Case
from classroom.exercise.report import MAX_MESSAGE_LINES
from classroom.exercise.run import _import as load_module
from classroom.exercise.run import load_checks, run_checks


def test_the_solution_gets_full_marks(exercise, self_check):
    assignment, name = exercise
    report = self_check(assignment, assignment.solution(name))
    assert report.earned == report.points, report.to_text()


def test_the_blank_gets_nothing_and_says_what_to_write(exercise, self_check):
    assignment, name = exercise
    report = self_check(assignment, assignment.blank(name))
    asks = load_checks(assignment.handout)[name][0].asks
    assert report.earned == 0 and report.is_blank
    assert "is not written yet" in report.messages[0]
    assert asks in report.messages[0]


class Anything(dict):
    """Defines every name by the same function."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def get(self, name, default=None):
        return self._function


def earned_by(assignment, name, namespace, seed):
    files = assignment.files(assignment.solution(name))
    return run_checks(assignment.folder, name, LocalSubject(namespace, files=files), seed)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [None, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    """
    gradient_step mended_dropout loop_of_heads drop_key_bias dropout_block fold_norm shifted_loss
    masked_tokens adamw_step clip_gradients low_precision next_token cache_bytes look_inside
    """.split(),
)
def test_inputs_are_not_left_alone_for_points_by_what_answers_nothing(
    every_assignment, name, answer
):
    require_nothing_earned(every_assignment, name, lambda *a, **k: answer)


@pytest.mark.parametrize(
    "name",
    """
    mended_dropout dropout_block mended_block mended_positions decoder_only_logits mended_decoder
    clip_gradients next_token
    """.split(),
)
def test_an_input_that_is_returned_earns_nothing(every_assignment, name):
    require_nothing_earned(every_assignment, name, lambda first, *a, **k: first)


def refuses_every_offset(x, table, offset):
    raise ValueError(f"the table has {len(table)} rows, offset is {offset}")


def three_equal_masks(length, prefix_lens):
    mask = torch.ones(len(prefix_lens), length, length, dtype=torch.bool)
    return mask[0], mask[0], mask


def asks_five_times(encode, decode, source, source_mask, bos, *others):
    memory = encode(source, source_mask)
    for _ in range(5):
        decode(torch.full((len(source), 1), bos), memory, source_mask)
    return source


def shows_the_model_one_part(model, weight, parts):
    model(weight, parts[0][0])
    return None, None


def reads_as_many_tokens(read, prompt, num_new):
    tokens = torch.zeros(2, prompt.shape[1] + num_new, dtype=torch.int64)
    read(tokens, tokens)


PAST = []


def remembers_beside_the_state(state, query, key, value, decay):
    if not state.any():
        PAST.clear()
    PAST.append((key, value))
    output = torch.zeros_like(value)
    for key, value in PAST:
        output = decay[:, None] * output + (query * key).sum(dim=-1, keepdim=True) * value
    return output, torch.ones_like(state)


@pytest.mark.parametrize(
    ("name", "function"),
    {
        "apply_rotary": lambda x, weight, *rest: x @ weight + rest[-1].max() - rest[-1].min(),
        "causal_mask": lambda q_len, k_len: torch.ones(q_len, k_len, dtype=torch.bool),
        "learned_positions": refuses_every_offset,
        "one_block_three_masks": three_equal_masks,
        "greedy_translation": asks_five_times,
        "accumulated_gradients": shows_the_model_one_part,
        "mended_generate": reads_as_many_tokens,
        "retention_chunked": remembers_beside_the_state,
    }.items(),
)
def test_what_only_keeps_a_law_earns_nothing(every_assignment, name, function):
    require_nothing_earned(every_assignment, name, function)


def gradient_of_one_layer(model, weight, parts):
    """Take the model to be one layer, and call it only to be seen."""
    leaf = weight.clone().requires_grad_()
    for x, _ in parts:
        model(leaf, x).sum().backward()
    x, targets = (torch.cat([part[i].flatten(0, 1) for part in parts]) for i in (0, 1))
    loss = torch.nn.functional.cross_entropy(x @ leaf, targets)
    return torch.autograd.grad(loss, leaf)[0], loss.detach()


def test_a_model_that_is_lent_must_be_used(every_assignment):
    require_nothing_earned(every_assignment, "accumulated_gradients", gradient_of_one_layer)


def gradient_of_all_parts_at_the_end(model, weight, parts):
    leaf, rows = weight.clone().requires_grad_(), []
    for x, _ in parts:
        rows.append(model(leaf, x).flatten(0, 1))
        rows[-1].sum().backward(retain_graph=True)
    targets = torch.cat([targets.flatten() for _, targets in parts])
    loss = torch.nn.functional.cross_entropy(torch.cat(rows), targets)
    return torch.autograd.grad(loss, leaf)[0], loss.detach()


def test_what_is_kept_for_a_second_backward_pass_is_not_one_part_at_a_time(every_assignment):
    name = "accumulated_gradients"
    assignment = next(a for a in every_assignment if name in a.exercises)
    namespace = {name: gradient_of_all_parts_at_the_end}
    report = earned_by(assignment, name, namespace, assignment.seed)
    assert report.earned == report.points - 1, report.to_text()


def test_weights_on_a_list_of_sizes_earn_nothing(every_assignment):
    """Such a list holds models of few tokens, and of some numbers of many."""
    assignment = next(a for a in every_assignment if "induction_weights" in a.exercises)
    write = assignment.solution("induction_weights").namespace["induction_weights"]

    def listed(vocab_size, max_len):
        if 32 < vocab_size < 198:
            raise KeyError(vocab_size, max_len)
        return write(vocab_size, max_len)

    require_nothing_earned(every_assignment, "induction_weights", listed)


def test_weights_that_are_right_but_for_their_dtype_are_called_no_other_mistake(every_assignment):
    name = "masked_softmax"
    assignment = next(a for a in every_assignment if name in a.exercises)

    def masked_softmax(scores, mask):
        safe = mask | ~mask.any(dim=-1, keepdim=True)
        return (scores + safe.log()).softmax(dim=-1) * mask  # the logarithm is in float32

    report = earned_by(assignment, name, {name: masked_softmax}, assignment.seed)
    said = report.to_text()
    assert report.earned == report.points - 2 and "they should stay torch.float16" in said, said
    assert "This is the mistake" not in said, said


def require_nothing_earned(every_assignment, name, function):
    assignment = next(a for a in every_assignment if name in a.exercises)
    report = earned_by(assignment, name, Anything(function), assignment.seed)
    assert report.earned == 0, report.to_text()


def some(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def text_for(step):
    return step(torch.tensor([3, 1, 4, 1, 5]), step(torch.tensor([2, 7]), None)[1])[0]


LISTS = {  # for each test that students write: who draws what it judges, and a result of each
    "check_convex_hull": ("averages", lambda f: f(*some(3, 4, 3))),
    "check_padding_invariance": (
        "padded_models",
        lambda f: f(some(2, 4, 3), torch.tensor([4, 2]))[:, :2],
    ),
    "check_order_blindness": ("layers", lambda f: f(some(4, 3))),
    "check_prompt_split": (
        "split_models",
        lambda f: f(torch.tensor([3, 1, 4]), torch.tensor([1, 5])),
    ),
    "check_set_model": (
        "models_on_sets",
        lambda f: f(torch.tensor([9, 2, 6, 5]), torch.tensor([True, True, True, False]))[:3],
    ),
    "check_cache": ("steps", text_for),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("accepts", [True, False])
def test_a_list_of_results_is_no_test(every_assignment, name, accepts):
    """One that accepts what is on a list of correct ones; or all but what is on one of bugs."""
    assignment = next(a for a in every_assignment if name in a.exercises)
    drawn_by, result_of = LISTS[name]
    drawn = vars(load_module(assignment.folder / "checks.py"))[drawn_by]
    right, wrong = drawn(Case(f"{PUBLISHED_SEED}/{name}/{drawn_by}"))[:2]
    correct, bugs = (
        [result_of(model).double() for model in models.values()] for models in (right, wrong)
    )

    def check(model):
        seen = result_of(model).double()
        is_correct, is_bug = (
            any(torch.allclose(seen, one, equal_nan=True) for one in known)
            for known in (correct, bugs)
        )
        assert is_correct if accepts else is_correct or not is_bug

    namespace = {name: check}
    assert earned_by(assignment, name, namespace, PUBLISHED_SEED).earned > 0
    assert earned_by(assignment, name, namespace, "unseen").earned <= (0 if accepts else 1)


@pytest.mark.parametrize(
    "name",
    """
    worked_row causal_mask head_circuits convolution_as_heads check_order_blindness rotary_in_space
    extrapolation clip_gradients
    """.split(),
)
def test_what_was_recorded_on_the_published_seed_earns_nothing_on_another(every_assignment, name):
    """Play results and errors again, by the shapes and values of arguments, else in a row."""
    assignment = next(a for a in every_assignment if name in a.exercises)
    recorded, by_form = [], {}

    class Recorder(LocalSubject):
        def call(self, name, *args, **kwargs):
            try:
                outcome = super().call(name, *args, **kwargs)
            except Crashed as error:
                outcome = error
            recorded.append(outcome)
            by_form[name, form_of(args)] = outcome
            if isinstance(outcome, Crashed):
                raise outcome
            return outcome

    class Player(dict):
        def get(self, name, default=None):
            numbers = itertools.cycle(recorded)

            def play(*args, **kwargs):
                known = (name, form_of(args))
                outcome = by_form[known] if known in by_form else next(numbers)
                assert not isinstance(outcome, Crashed)
                return outcome

            return self.setdefault(name, play)

    solution = assignment.solution(name)
    whole = run_checks(
        assignment.folder, name, Recorder(solution.namespace, files={}), PUBLISHED_SEED
    )
    assert whole.earned == whole.points, whole.to_text()
    report = earned_by(assignment, name, Player(), assignment.seed)
    assert report.earned == 0, report.to_text()


@pytest.mark.parametrize(
    "name",
    """
    logit_std combine_masks count_attention rms_norm sinusoidal_positions mended_positions
    rotary_in_space
    """.split(),
)
def test_a_table_of_what_many_seeds_asked_earns_nothing_on_another(every_assignment, name):
    """Of results for whole numbers, which are the same on every seed that draws them again."""
    assignment = next(a for a in every_assignment if name in a.exercises)
    solution, table = assignment.solution(name), {}

    class Recorder(LocalSubject):
        def call(self, name, *args, **kwargs):
            return table.setdefault((name, pack(args)), super().call(name, *args, **kwargs))

    class Table(dict):
        def get(self, name, default=None):
            return lambda *args: table[name, pack(args)]

    for number in range(40):
        recorder = Recorder(solution.namespace, files={})
        run_checks(assignment.folder, name, recorder, f"recorded {number}")
    report = earned_by(assignment, name, Table(), assignment.seed)
    assert report.earned == 0, report.to_text()


def form_of(args):
    return str([tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args])


@pytest.fixture(scope="module")
def kills(root):
    """The rows of the kill matrix by assignment and exercise; a new course has none yet."""
    rows = read(root / RECORD) if (root / RECORD).exists() else []
    return {(row.assignment, row.exercise): row for row in rows}


@pytest.mark.slow
def test_a_mistake_is_caught_and_named_and_no_other_is(mistake, self_check):
    """One in sixteen, drawn by the code that runs checks; the kill matrix has named all of them."""
    assignment, answer = mistake
    report = self_check(assignment, answer)
    assert report.earned < report.points, f"{answer.name} passes"
    assert report.mistakes == [answer.name], report.to_text()
    assert answer.title in report.to_text()
    assert len(report.to_text().splitlines()) <= MAX_MESSAGE_LINES


@pytest.mark.slow
def test_a_handout_says_of_a_mistake_what_the_record_of_the_whole_checks_says(exercise, kills):
    """Of one mistake in eight, drawn by its code."""
    assignment, name = exercise
    own = sorted((a for a in assignment.mistakes if a.exercise == name), key=lambda a: a.cell)
    for answer in own[::8]:
        require_told_as_recorded(assignment, answer, kills.get((assignment.name, name)))


def require_told_as_recorded(assignment, answer, row):
    told = run_mistake(assignment.handout, answer, PUBLISHED_SEED, assignment.folder, seconds=60.0)
    assert told.mistakes == [answer.name], told.to_text()
    assert "nothing is prepared" not in told.to_text()
    if row:
        for result, count in zip(told.results, row.failures[answer.name], strict=True):
            if count == 0:  # whatever the seed
                assert not result.has_failed, result.name
            elif count == len(SEEDS):
                assert not result.earned, result.name
    else:
        whole = run_mistake(assignment.folder, answer, PUBLISHED_SEED, seconds=60.0)
        assert [r.earned for r in told.results] == [r.earned for r in whole.results]


def test_a_small_case_gives_what_it_prints_even_where_four_digits_would_not(every_assignment):
    """Features of a hundred million that differ by one."""
    folder = next(a for a in every_assignment if "layer_norm" in a.exercises).folder
    mistakes = {
        m.name: m for m in load_answers(folder / "mistakes.py") if m.exercise == "layer_norm"
    }
    said = run_mistake(folder, mistakes["EpsilonOutsideTheRoot"], SEEDS[2]).messages[0]
    printed = dict(re.findall(r"^  (\w+) += (.+)$", said, re.MULTILINE))
    x, gain, bias, expected = (
        torch.tensor(ast.literal_eval(printed[name]), dtype=torch.float64)
        for name in ("x", "gain", "bias", "expected")
    )
    output = torch.nn.functional.layer_norm(x, gain.shape, gain, bias, float(printed["eps"]))
    torch.testing.assert_close(output, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_a_variant_gets_full_marks(variant, self_check):
    report = self_check(*variant)
    assert report.earned == report.points, report.to_text()


@pytest.mark.slow
def test_the_cell_that_mistakes_are_changes_of_is_correct(assignment, self_check):
    for cell in load_correct(assignment.folder / "mistakes.py"):
        report = self_check(assignment, cell)
        assert report.earned == report.points, f"{cell.name}: {report.to_text()}"


def test_no_known_answer_is_another_one_each_time(assignment):
    """Or a grader would say something else of it than its self-check."""
    draws = re.compile(r"\btorch\.(rand|randn|randint|randperm|normal|bernoulli)\((?!.*generator)")
    for answer in (*assignment.mistakes, *assignment.variants):
        if "nn.Parameter(" not in answer.cell:  # weights that a check replaces
            assert "manual_seed" in answer.cell or not draws.search(answer.cell), answer.name


def test_every_exercise_has_mistakes_and_variants_enough(assignment):
    mistakes = Counter(answer.exercise for answer in assignment.mistakes)
    variants = Counter(answer.exercise for answer in assignment.variants)
    for name in assignment.exercises:
        assert mistakes[name] >= 3, f"{name} has {mistakes[name]} mistakes"
        assert variants[name] >= 3, f"{name} has {variants[name]} variants"
    assert set(mistakes) | set(variants) == set(assignment.exercises)


def test_an_answer_uses_no_name_that_its_notebook_lacks(assignment):
    text = nbformat.read(assignment.handout / assignment.notebook_name, as_version=4)
    given = [cell.source for cell in text.cells if cell.cell_type == "code" and not is_graded(cell)]
    there = set().union(*(names_bound_by(source) for source in given))
    for answer in assignment.mistakes + assignment.variants:
        names = (node for node in ast.walk(ast.parse(answer.cell)) if isinstance(node, ast.Name))
        used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        lacking = (used & names_bound_by(answer.prelude)) - there - names_bound_by(answer.cell)
        assert not lacking, f"{answer.exercise} {answer.name}"


def is_graded(cell):
    marks = cell.metadata.get("nbgrader", {})
    return marks.get("solution") or marks.get("grade")


def names_bound_by(source):
    python = re.sub(r"(?m)^\s*[%!].*$", "", source)
    symbols = symtable.symtable(python, "a cell", "exec").get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


def test_answers_differ_from_the_solution_and_from_each_other(assignment):
    answers = assignment.mistakes + assignment.variants
    answers += [assignment.solution(name) for name in assignment.exercises]
    cells = Counter((a.exercise, a.change_files, ast.dump(ast.parse(a.cell))) for a in answers)
    assert max(cells.values()) == 1


@pytest.mark.slow
def test_the_inputs_of_a_check_change_with_the_seed_and_not_without_it(exercise):
    assignment, name = exercise
    first, again, other = (inputs_seen(assignment, name, seed) for seed in ("a", "a", "b"))
    assert first == again
    is_own = name.startswith("check_") or load_checks(assignment.handout)[name][0].files
    assert first != other or is_own, "the inputs are the student's own there"


def inputs_seen(assignment, name, seed):
    """Record what the checks of an exercise hand to its solution, which is right."""
    calls = []

    class Recorder(LocalSubject):
        def call(self, name, *args, **kwargs):
            calls.append((name, hashlib.sha256(pack(args)).digest()))
            return super().call(name, *args, **kwargs)

        def lend(self, function):  # numbers are drawn, which is no matter of the seed
            handle = Handle(len(self._lent))
            self._lent[handle.id] = function
            return handle

    solution = assignment.solution(name)
    subject = Recorder(solution.namespace, files=assignment.files(solution))
    report = run_checks(assignment.handout, name, subject, seed)
    assert report.earned == report.points, report.to_text()
    return calls


def test_the_readme_shows_what_a_check_really_says(every_assignment, root, self_check):
    assignment = next(a for a in every_assignment if a.name == "01_attention")
    no_scale = next(answer for answer in assignment.mistakes if answer.name == "NoScale")
    said = self_check(assignment, no_scale, PUBLISHED_SEED).to_text().splitlines()
    readme = (root / "README.md").read_text(encoding="utf-8")
    shown = readme[readme.index(said[0]) :].split("```")[0].splitlines()
    assert [line for line in shown if line.strip() != "…"] == [
        line for line in said if line in shown and line
    ]
    assert sum(line != "" for line in shown) > 6


@pytest.mark.filterwarnings("ignore")  # as when grades count
@pytest.mark.parametrize(
    ("chapter", "drawn_by", "ask"),
    [
        ("06_architectures", "split_models", lambda model, tokens: model(tokens[:4], tokens[4:])),
        ("08_generation", "steps", lambda model, tokens: model(tokens, None)[0]),
    ],
)
def test_what_a_model_that_is_lent_remembers_depends_on_the_dtype(root, chapter, drawn_by, ask):
    """As an index, eleven tokens in uint8 are a mask of the eleven words."""
    checks = runpy.run_path(str(root / "solutions" / chapter / "checks.py"))
    poisoned, fresh = (checks[drawn_by](Case("seed"))[0] for _ in range(2))
    tokens = 1 + torch.arange(11) % 10
    for name, model in poisoned.items():
        with contextlib.suppress(Exception):
            ask(model, tokens.to(torch.uint8))
        assert torch.equal(ask(model, tokens), ask(fresh[name], tokens)), name
