"""What answers earn that were not thought about, on five unseen seeds, beside what blanks earn.

Four kinds of attack on every exercise: bodies of a line or two; verdicts and results that depend on
the number of the call alone; what the solution did on the published seed, played again by the
number of the call and by its arguments; and a test that judges a function by all that Python tells
of it but its results. Calls share a process here, which helps the attacks: in the sandbox each call
has its own. Run by `make bench`; `CHAPTERS=01,02` runs some and keeps the others' records; the
date is that of the oldest.
"""

import datetime
import inspect
import itertools
import json
import os
import pickle
import shutil
from collections import defaultdict
from pathlib import Path

import nbformat
import pytest
import torch

from classroom.author.notebooks import cell_of
from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.calls.subject import StudentError
from classroom.course import PUBLISHED_SEED, assignments
from classroom.exercise import expect, run
from classroom.exercise.answers import Answer, files_beside

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).parent / "records" / "unearned.json"
CHAPTERS = os.environ.get("CHAPTERS", "").replace(",", " ").split()
SEEDS = [f"unseen {number}" for number in range(1, 6)]

BODIES = {
    **{
        text: f"lambda *a, **k: ({text})"
        for text in """
        None True 0 1 -1 2 0.5 20.0 1e9 inf -inf nan '' 'x' () [] {} a a[0] a[-1] a[0]*0 a[0]+1
        -a[0] a[0]*nan a[0]*inf a[0].T a[0].sum() a[0].mean() (a[0],a[0]) (a[0],a[0],a[0])
        (None,None) (0,0) torch.zeros(()) torch.nan_ torch.zeros_like(a[0]) torch.ones_like(a[0])
        torch.zeros_like(a[-1]) len(a[0]) a[0]>0 a[0](*a[1:]) [a[0]]*9 a[:2] a[:3] a[1]
        """.split()
    },
    "raise ValueError": "raising(ValueError)",
    "raise AssertionError": "raising(AssertionError)",
    "raise Exception": "raising(Exception)",
}
BODIES = {name: body.replace("torch.nan_", "torch.tensor(nan)") for name, body in BODIES.items()}

WORDS = {"torch": torch, "inf": float("inf"), "nan": float("nan")}


class Namespace(dict):
    """Defines every name by the same function."""

    def get(self, name, default=None):
        return self["any"]


def body(source):
    def raising(kind):
        def function(*args, **kwargs):
            raise kind

        return function

    return eval(source, {**WORDS, "raising": raising})


def counter(is_wrong):
    """A test that condemns some calls by their number, and any other function, too."""
    numbers = itertools.count()

    def function(*args, **kwargs):
        if is_wrong(next(numbers)):
            raise AssertionError
        return True

    return function


COUNTERS = {
    **{f"the first {k} pass": lambda n, k=k: n >= k for k in (1, 2, 3, 5, 8, 13)},
    **{f"the first {k} are wrong": lambda n, k=k: n < k for k in (1, 2, 3, 5, 8, 13)},
    **{f"number {k} is wrong": lambda n, k=k: n == k for k in range(6)},
    **{
        f"every number {k} is {what}": lambda n, k=k, v=v: (n % k == 0) is v
        for k in (2, 3)
        for what, v in (("wrong", True), ("right", False))
    },
}


class Recorder(LocalSubject):
    """Keeps what the solution did, by the number of the call and by its arguments."""

    def __init__(self, namespace, **settings):
        super().__init__(namespace, **settings)
        self.outcomes = []

    def _run(self, name, compute):
        try:
            result = super()._run(name, compute)
        except StudentError as error:
            kind = getattr(error, "kind", "")
            self.outcomes.append((name, "raised", kind))
            raise
        self.outcomes.append((name, "returned", result))
        return result

    def call(self, name, *args, **kwargs):
        found = len(self.outcomes)
        try:
            return super().call(name, *args, **kwargs)
        finally:
            for i in range(found, len(self.outcomes)):
                self.outcomes[i] = (*self.outcomes[i], form(args))


def form(value):
    """What of arguments does not depend on numbers drawn: shapes, and plain values."""
    match value:
        case torch.Tensor():
            return str((value.dtype, tuple(value.shape)))
        case list() | tuple():
            return str([form(item) for item in value])
        case dict():
            return str({key: form(item) for key, item in value.items()})
    return type(value).__name__ if callable(value) else repr(value)[:200]


def played(outcome):
    _, how, what, *_ = outcome
    if how == "raised":
        raise {"AssertionError": AssertionError, "ValueError": ValueError}.get(what, RuntimeError)
    return what


def replays(outcomes):
    """Play outcomes again: all in a row, those of a function in a row, and by arguments."""

    def in_a_row(name):
        numbers = itertools.count()
        return lambda *a, **k: played(outcomes[next(numbers) % len(outcomes)])

    row = in_a_row("")
    yield "by the number of the call", lambda name: row

    def of_its_own(name):
        own = itertools.cycle([o for o in outcomes if o[0] == name] or outcomes)
        return lambda *a, **k: played(next(own))

    yield "by the number of the call of a function", of_its_own

    def by_form(name):
        known, seen = defaultdict(list), defaultdict(itertools.count)
        for outcome in outcomes:
            if outcome[0] == name and len(outcome) > 3:
                known[outcome[3]].append(outcome)

        def function(*args, **kwargs):
            found = known.get(key := form(args)) or outcomes
            return played(found[next(seen[key]) % len(found)])

        return function

    yield "by its arguments", by_form


class Replayed(dict):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def get(self, name, default=None):
        return self.setdefault(name, self.make(name))


def everything_told(function):
    """All that Python tells of a function, of which none is what it computes."""
    told = [type(function), dir(function), function.__dict__, function.__doc__]
    for name in ("__name__", "__qualname__", "__module__", "__defaults__", "__kwdefaults__"):
        told.append(getattr(function, name, None))
    told += [str(inspect.signature(function)), function.__code__.co_code, function.__annotations__]
    told.append(repr(function).partition(" at ")[0])
    for args, named in (((), {}), ((0,) * 9, {}), ((), {"zzz": 1}), ((object(),), {})):
        try:
            told.append(repr(function(*args, **named)))
        except Exception as error:
            own = error.__traceback__
            names = []
            while own := own.tb_next:
                names.append(own.tb_frame.f_code.co_name)
            told += [type(error), str(error).partition(" at 0x")[0], names, error.__cause__]
            told += [error.__context__, getattr(error, "__notes__", None)]
    try:
        pickle.dumps(function)
    except Exception as error:
        told.append(str(error).partition(" at 0x")[0])
    return repr(told)


def readers(folder, exercise):
    """A test that has learned, on the published seed, what is told of wrong implementations."""
    learned = defaultdict(list)
    judge, namespace = expect._verdict, Namespace(any=None)

    def learning(subject, name, implementation):
        described = implementation.label
        namespace["any"] = lambda f: learned[described].append(everything_told(f))
        return judge(subject, name, implementation)

    subject = LocalSubject(namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expect, "_verdict", learning)
        run.run_checks(folder, exercise, subject, PUBLISHED_SEED)
    for wrong in learned:
        marks = set(learned[wrong])
        yield f"told as of {wrong}", lambda f, marks=marks: raise_if(everything_told(f) in marks)


def raise_if(is_wrong):
    if is_wrong:
        raise AssertionError


class Chapter:
    """The whole checks of a chapter, without mistakes, to score with."""

    def __init__(self, solutions, scratch):
        self.solutions, self.folder = solutions, scratch / solutions.name
        self.folder.mkdir()
        shutil.copy(solutions / "checks.py", self.folder)
        handout = ROOT / "exercises" / solutions.name
        self.notebooks = [
            nbformat.read(next(path.glob("*.ipynb")), as_version=4) for path in (solutions, handout)
        ]
        self.files = {name: File(data) for name, data in files_beside(solutions).items()}
        self.exercises = list(run.list_checks(self.folder))
        self.asks_for_tests = "expect_test_judges(" in (solutions / "checks.py").read_text()

    def namespace(self, exercise, is_solution):
        whole, blank = self.notebooks
        prelude = next(c.source for c in blank.cells if "import check" in c.source)
        source = cell_of(whole if is_solution else blank, exercise).source
        return Answer("Attack", exercise, "", source, prelude).namespace

    def earned(self, exercise, namespace, seed):
        subject = LocalSubject(namespace, seconds=20.0, files={})
        return run.run_checks(self.folder, exercise, subject, seed).earned

    def recorded(self, exercise):
        subject = Recorder(self.namespace(exercise, True), seconds=60.0, files=self.files)
        run.run_checks(self.folder, exercise, subject, PUBLISHED_SEED)
        return subject.outcomes

    def attacks(self, exercise):
        """Give the attacks on an exercise: kind, name, and what makes a namespace anew."""
        for name, source in BODIES.items():
            yield "bodies", name, lambda source=source: Namespace(any=body(source))
        for name, is_wrong in COUNTERS.items():
            yield "counters", name, lambda is_wrong=is_wrong: Namespace(any=counter(is_wrong))
        outcomes = self.recorded(exercise)
        for name, _ in replays(outcomes):
            yield "replays", name, lambda name=name: Replayed(dict(replays(outcomes))[name])
        for name, test in readers(self.folder, exercise):
            yield "readers", name, lambda test=test: Namespace(any=test)


@pytest.fixture
def quick(monkeypatch):
    """Judge without looking for what to say."""
    monkeypatch.setattr(expect, "smallest_example", lambda *args: "")
    monkeypatch.setattr(expect, "mistakes_alike", lambda *args: [])


@pytest.mark.parametrize(
    "solutions",
    [a for a in assignments(ROOT / "solutions") if not CHAPTERS or a.name[:2] in CHAPTERS],
    ids=lambda path: path.name,
)
def test_nothing_is_earned_without_an_answer(solutions, tmp_path, quick):
    chapter, rows, num_attacks = Chapter(solutions, tmp_path), {}, defaultdict(int)
    for exercise in chapter.exercises:
        blanks = [chapter.earned(exercise, chapter.namespace(exercise, False), s) for s in SEEDS]
        for kind, name, namespace in chapter.attacks(exercise):
            num_attacks[kind] += 1
            earned = [chapter.earned(exercise, namespace(), seed) for seed in SEEDS]
            if any(more > less for more, less in zip(earned, blanks, strict=True)):
                rows.setdefault(exercise, {})[f"{kind}: {name}"] = earned
    assert len(BODIES) >= 37
    assert num_attacks["readers"] or not chapter.asks_for_tests
    keep(solutions.name, {"attacks": dict(num_attacks), "unearned": rows})
    assert not rows, json.dumps(rows, indent=1)


def keep(chapter, found):
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    chapters = record.get("chapters", {}) | {chapter: found | {"date": today}}
    record = {
        "metric": "points beyond a blank's that answers without thought earn, on unseen seeds",
        "seeds": SEEDS,
        "total": sum(
            sum(earned)
            for found in chapters.values()
            for attacks in found["unearned"].values()
            for earned in attacks.values()
        ),
        "chapters": dict(sorted(chapters.items())),
        "date": min(found["date"] for found in chapters.values()),
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
