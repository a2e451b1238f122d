"""Results that are released as data, so that no code that computes an answer has to be.

The checks of an assignment call oracles, and compare code with known mistakes. The author runs
both; students get neither. For the published seed, `classroom release` records what oracles and
mistakes return, and a self-check reads these results from `prepared.zip`. The key of a result is
the function's name and its arguments up to rounding, because the last digit of an input may differ
on another CPU.

Some code must run on students' machines, such as the implementations that a student's test is
applied to. The code in `checks.py` between `### BEGIN PACKED` and `### END PACKED` is released in
compressed form.
"""

import base64
import contextlib
import functools
import hashlib
import types
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classroom.calls import subject
from classroom.calls.files import File
from classroom.calls.local import LocalSubject
from classroom.calls.subject import Crashed, StudentError, Subject
from classroom.calls.wire import CannotCross, Handle, pack, unpack
from classroom.course import PREPARED, is_handout
from classroom.exercise.answers import Answer, load_answers
from classroom.exercise.cases import Case
from classroom.exercise.comparing import Sketch, same

SECONDS_PER_MISTAKE = 10.0
"""Time limit for a known mistake. It is far more than any needs, because a mistake that runs out of
time on a busy machine is not diagnosed."""
SECONDS_TO_RECORD = 120.0
"""The same while results are prepared: the recording must not depend on the machine."""

_ABOUT, _PACKED = "about", "packed.py"
_NARROW, _SKETCH = "\0 float64", "\0 sketch"
_WHOLE = 512
# Rows of a tensor or items of a list that are exchanged one by one, and how deep dicts are read.
MANY = 8
_DEEPEST = 3
_PLAIN = (bool, int, float, str, type(None))
_TIMES_COMPUTED = 2  # the second time shows that the answer depends on the arguments alone

Place = tuple[int, str]
WRONG_FORM = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
CALL_FAILED = (StudentError, *WRONG_FORM)
Asked = tuple[Any, ...]
Lent = Mapping[int, Callable[..., Any]]


class BrokenCheck(Exception):
    """A check cannot judge, because something of its own fails; the student did nothing wrong."""


class NotPrepared(StudentError):
    """No result was recorded for this call."""


# Oracles ---------------------------------------------------------------------------------------


class Oracle:
    """A function that computes the correct result, which can be recorded and read again.

    It must depend on its arguments alone, and take and return what `wire.pack` can pack. Arguments
    may also be functions, which are identified by their names and the arguments of `partial`.
    """

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result, or the recorded one."""
        asked = ("oracle", _name_of(self), args, kwargs)
        return _answered(asked, lambda: self._function(*args, **kwargs))

    def gradients(
        self, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate the function, as `LocalSubject.gradients` does."""
        asked = ("gradients", _name_of(self), args, wrt, cotangents)
        right = LocalSubject({"oracle": self._function})
        return _answered(asked, lambda: right.gradients("oracle", args, wrt, cotangents))

    def influences(self, args: tuple[Any, ...], others: tuple[Any, ...]) -> dict[Place, bool]:
        """Return which arguments the result changes with, as `influences` does."""
        asked = ("influences", _name_of(self), args)
        found = _answered(asked, lambda: _listed(influences(self._function, args, others)))
        return {(index, key): changes for index, key, changes in found}


def influences(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    others: tuple[Any, ...],
    wanted: Collection[Place] | None = None,
) -> dict[Place, bool]:
    """Return with which arguments a function's result changes.

    Args:
        function: Is called once for each argument, and for each part of one that is a dict, a list
            or a tensor with few rows.
        args: Its arguments.
        others: Of the same shapes; each takes the place of one at a time.
        wanted: The places to exchange, all by default.

    Returns:
        Whether the result is another one, by the argument's index and the part's name, if the two
        differ and the call succeeds.

    """
    found: dict[Place, bool] = {}
    try:
        first = function(*args)
    except CALL_FAILED:
        return found
    for place, changed in _exchanged(args, others):
        if wanted is None or place in wanted:
            with contextlib.suppress(*CALL_FAILED):
                found[place] = not same(function(*changed), first)
    return found


def _exchanged(
    args: tuple[Any, ...], others: tuple[Any, ...]
) -> Iterator[tuple[Place, tuple[Any, ...]]]:
    for index, (one, other) in enumerate(zip(args, others, strict=True)):
        for part, changed in _mixed(one, other):
            if part or not isinstance(one, dict):
                yield (index, part), (*args[:index], changed, *args[index + 1 :])


def _mixed(one: Any, other: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield `other`, and `one` with a part of `other`, each with the name of what is exchanged."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or not one.numel():
            return
        if not same(one, other):
            yield "", other
        for row in range(len(one)) if depth == 0 and one.dim() and 1 < len(one) <= MANY else ():
            if not same(one[row], other[row]):
                changed = one.clone()
                changed[row] = other[row]
                yield f"[{row}]", changed
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if depth == 0 and len(one) == len(other) <= MANY:
            for item, (mine, theirs) in enumerate(zip(one, other, strict=True)):
                for part, changed in _mixed(mine, theirs, depth + 1):
                    if not part:
                        yield f"[{item}]", type(one)([*one[:item], changed, *one[item + 1 :]])
    elif isinstance(one, dict) and isinstance(other, dict):
        if depth > 0 and one.keys() == other.keys():
            yield "", other
        for key in [k for k in one if k in other] if depth < _DEEPEST else ():
            for part, changed in _mixed(one[key], other[key], depth + 1):
                name = f"[{key!r}]" if depth else key
                yield name + part, {**one, key: changed}
    elif isinstance(one, _PLAIN) and isinstance(other, _PLAIN) and one != other:
        yield "", other


def _listed(found: dict[Place, bool]) -> list[list[Any]]:
    return [[index, key, changes] for (index, key), changes in found.items()]


def as_oracle(function: Callable[..., Any]) -> Oracle:
    """Return a function as an oracle; one without the mark cannot be released."""
    if isinstance(function, Oracle):
        return function
    if isinstance(source := _source.get(), Recorder):
        source.problems.append(f"{_name_of(function)} is an oracle: mark it with @oracle")
    return Oracle(function)


def require_words(
    returns: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]
) -> None:
    """Note, while results are recorded, words for axes that do not fit the results.

    Args:
        returns: The name of each result and the names of its axes.
        shapes: Of the correct results.
        sizes: Sizes that the case has drawn, by name.

    """
    if not isinstance(source := _source.get(), Recorder):
        return
    for label, shape in shapes.items():
        words = returns[label].split()
        source.words.update(words)
        drawn = [sizes.get(word, size) for word, size in zip(words, shape, strict=False)]
        is_exchanged = drawn != list(shape) and sorted(drawn) == sorted(shape)
        if len(words) != len(shape) or is_exchanged:
            source.problems.append(
                f"{returns[label]!r} are no words for the axes of {label}, whose shape is {shape}"
            )


oracle = Oracle
"""Marks a function of `checks.py` as an oracle: its body is not released."""


class HandedOut(Oracle):
    """An oracle in a handout, without its body; its results are read from `prepared.zip`."""

    def __init__(self, function: Callable[..., Any]):
        def missing(*args: Any, **kwargs: Any) -> Any:
            raise FileNotFoundError(f"{PREPARED} must be in the folder of checks.py")

        super().__init__(function)
        self._function = missing


handed_out = HandedOut


def _answered(asked: Asked, compute: Callable[[], Any]) -> Any:
    if (source := _source.get()) is None:
        return compute()
    with answering(None):  # calls from one oracle to another need not be recorded
        return _widened(source.answer(asked, {}, lambda: _narrowed(compute())))


# Known mistakes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedMistake(Answer):
    """A known mistake without its code: only its recorded answers are available."""

    cell: str = ""


def known(mistake: Answer) -> Subject:
    """Return a known mistake as code under test: it runs, or its recorded answers are read."""
    source, inner = _source.get(), None
    if not isinstance(mistake, PreparedMistake):
        seconds = SECONDS_PER_MISTAKE if source is None else SECONDS_TO_RECORD
        try:
            inner = LocalSubject(mistake.namespace, seconds=seconds)
        except Exception as error:
            why = f"{type(error).__name__} in the mistake {mistake.name}: {error}"
            raise BrokenCheck(why) from error
    if source is None:
        assert inner is not None
        return inner
    return RecordedSubject(mistake.name, source, inner)


def observing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function whose calls by code under test must be recorded and repeated.

    Checks pass such a function to code under test, with `lend`, to observe how it is called.
    """
    function.observes = True  # type: ignore[attr-defined]
    return function


class RecordedSubject:
    """A known mistake whose answers are recorded, or read.

    Args:
        who: Name of the mistake.
        source: Records the answers, or reads them.
        inner: Its code; None if answers are read.

    """

    def __init__(self, who: str, source: "Recorder | Reader", inner: LocalSubject | None):
        self._who, self._source, self._inner = who, source, inner
        self._files: Mapping[str, File] | None = None
        self._lent: dict[int, Callable[..., Any]] = {}
        self._heard: list[list[Any]] = []

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function, as `LocalSubject.call` does; a large tensor becomes a `Sketch`."""
        asked = ("call", name, args, kwargs)
        return self.answer(asked, lambda code: code.call(name, *args, **kwargs))

    def call_without_trace(self, name: str, *args: Any) -> Any:
        """Call a function of ours, which has nothing to hide."""
        return self.call(name, *args)

    def call_by_hand(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function, as `LocalSubject.call_by_hand` does."""
        asked = ("by hand", name, args, kwargs)
        return self.answer(asked, lambda code: code.call_by_hand(name, *args, **kwargs))

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call a function; also return its arguments as they are after the call."""
        asked = ("inputs", name, args)
        return self.answer(asked, lambda code: code.call_and_return_inputs(name, *args), True)

    def parameters(self, name: str) -> list[str]:
        """Return no names: those of known mistakes are not recorded."""
        return []

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate a function, as `LocalSubject.gradients` does."""
        asked = ("gradients", name, args, wrt, cotangents)
        return self.answer(asked, lambda code: code.gradients(name, args, wrt, cotangents))

    @contextlib.contextmanager
    def together(self, one_module: bool = False, explains: bool = False) -> Iterator[None]:
        """Let calls share a process, as they do here in any case."""
        yield

    def lend(self, function: Callable[..., Any]) -> Handle:
        """Pass a function to the code; if answers are read, only an `observing` one is called."""
        number = len(self._lent)

        def observed(*args: Any, **kwargs: Any) -> Any:
            # Counted from the last one, so that equal calls have equal answers.
            self._heard.append([number - len(self._lent), args, kwargs])
            return function(*args, **kwargs)

        handle = Handle(number)
        if self._inner is not None:
            is_heard = getattr(function, "observes", False)
            handle = self._inner.lend(observed if is_heard else function)
        self._lent[handle.id] = function
        return handle

    def file(self, name: str) -> bytes:
        """Refuse: the files of known mistakes are not recorded.

        Raises:
            NotPrepared: Always.

        """
        raise NotPrepared(f"{name} of {self._who} is not recorded")

    def answer(
        self, asked: Asked, ask: Callable[[LocalSubject], Any], is_exact: bool = False
    ) -> Any:
        """Return the mistake's answer to a call.

        Args:
            asked: Identifies the call.
            ask: Makes the call, if there is code.
            is_exact: Whether the answer must be kept bit for bit rather than as a sketch.

        Raises:
            StudentError: If the code raised one; `NotPrepared` if the call was not recorded.

        """

        def compute() -> dict[str, Any]:
            assert self._inner is not None
            self._heard = []
            try:
                value = ask(self._inner)
            except Crashed as error:
                said = [str(error), error.kind, error.text, error.where]
                return {"raised": ["Crashed", *said], "heard": self._heard}
            except StudentError as error:
                return {"raised": [type(error).__name__, str(error)], "heard": self._heard}
            return {"value": value if is_exact else _sketched(value), "heard": self._heard}

        found = self._source.answer((self._who, *asked), self._lent, compute)
        if self._inner is None:
            for number, args, kwargs in found["heard"]:
                with contextlib.suppress(Exception):  # the mistake's call was wrong
                    list(self._lent.values())[number](*args, **kwargs)
        if "raised" in found:
            kind, *said = found["raised"]
            raise getattr(subject, kind)(*said)
        return _widened(found["value"])


def has_sketch(value: Any) -> bool:
    """Return whether an answer contains a sketch instead of a whole tensor."""
    items = value.values() if isinstance(value, dict) else value
    is_container = isinstance(value, (dict, list, tuple))
    return isinstance(value, Sketch) or (is_container and any(map(has_sketch, items)))


def _sketched(value: Any) -> Any:
    """Replace large tensors by sketches."""
    if isinstance(value, Tensor) and value.numel() > _WHOLE:
        sketch = Sketch.of(value)
        return {_SKETCH: [sketch.dtype, sketch.shape, sketch.sums]}
    return _with_items(value, _sketched)


def _narrowed(value: Any) -> Any:
    """Store large float64 tensors in float32 if that loses less than any tolerance."""
    if isinstance(value, Tensor) and value.dtype is torch.float64 and value.numel() > _WHOLE:
        narrow = value.detach().float()
        is_kept = bool(torch.isclose(narrow.double(), value, rtol=1e-6, equal_nan=True).all())
        return {_NARROW: narrow} if is_kept else value
    return _with_items(value, _narrowed)


def _widened(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {_NARROW}:
        return value[_NARROW].double()
    if isinstance(value, dict) and value.keys() == {_SKETCH}:
        return Sketch(*value[_SKETCH])
    return _with_items(value, _widened)


def _with_items(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Change what a list, a tuple or a dict holds; anything else stays as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(changed, value))
    if isinstance(value, dict):
        return {key: changed(item) for key, item in value.items()}
    return value


# Keys ------------------------------------------------------------------------------------------


def _key(asked: Asked, lent: Lent) -> str:
    """Hash a call to 16 digits, the same for numbers that are equal up to rounding."""
    digest = hashlib.blake2b(digest_size=8)
    for piece in _pieces(asked, lent):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any, lent: Lent) -> Iterator[bytes]:
    match value:
        case Tensor():
            yield f"{value.dtype} {tuple(value.shape)}".encode()
            array = value.detach()
            yield (
                _steps(array.double().numpy())
                if array.is_floating_point()
                else (array.contiguous().numpy().tobytes())
            )
        case float():
            yield b"float" + _steps(np.array(value))
        case None | bool() | int() | str() | bytes():
            yield f"{type(value).__name__} {value!r}".encode()
        case list() | tuple():
            yield f"{len(value)} items".encode()
            for item in value:
                yield from _pieces(item, lent)
        case dict():
            yield f"{len(value)} entries".encode()
            for name, item in value.items():
                yield from _pieces(name, lent)
                yield from _pieces(item, lent)
        case Handle():
            yield from _pieces(lent[value.id], lent)
        case Sketch():
            yield from _pieces((value.dtype, value.shape, value.sums), lent)
        case Case():
            yield from _pieces((value.seed, dict(value.sizes), value.rounded), lent)
        case functools.partial():
            yield from _pieces((value.func, value.args, value.keywords), lent)
        case torch.dtype():
            yield str(value).encode()
        case _ if callable(value):
            yield _name_of(value).encode()
        case _:
            raise TypeError(f"{type(value).__name__} cannot be recorded: pass plain values")


def _name_of(function: Callable[..., Any]) -> str:
    label = getattr(function, "label", None)
    return label or getattr(function, "__qualname__", None) or type(function).__name__


def _steps(numbers: np.ndarray) -> bytes:
    """Round to six significant digits, or for small numbers to eight after the decimal point.

    The boundaries between steps are not at round numbers, which inputs often are.
    """
    steps = np.floor(np.arcsinh(numbers * 100.0) * 1e6 + 0.31830988618)
    return np.where(np.isnan(steps), 1e300, steps).tobytes()


# Where answers come from -----------------------------------------------------------------------


@dataclass
class Recorder:
    """Runs all code and keeps the answers.

    Attributes:
        mistakes: Those that checks know during recording.
        answers: By the key of the call.
        problems: Reasons why answers could not be kept; the checks themselves only look broken.
        words: For the axes of results, as students read them.

    """

    mistakes: Sequence[Answer] = ()
    answers: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    _times_asked: Counter[str] = field(default_factory=Counter)

    def answer(self, asked: Asked, lent: Lent, compute: Callable[[], Any]) -> Any:
        """Compute an answer and keep it; an oracle is computed twice, and then its answer known."""
        try:
            key = _key(asked, lent)  # before anything that was passed is changed in place
            if asked[0] == "oracle":
                self._times_asked[key] += 1
                if self._times_asked[key] > _TIMES_COMPUTED:
                    return unpack(pack(self.answers[key]))
            found = unpack(pack(compute()))
        except (TypeError, CannotCross) as error:
            self.problems.append(f"{_what(asked)}: {error}")
            raise
        if not same(self.answers.setdefault(key, found), found):
            self.problems.append(
                f"{_what(asked)} has two different answers: it depends on more than its arguments, "
                "or on digits that are rounded away"
            )
        return found


def _what(asked: Asked) -> str:
    return " ".join(map(str, asked[:3]))[:80]


class Reader:
    """Reads the recorded answers for the checks of one exercise."""

    def __init__(self, path: Path, exercise: str):
        with zipfile.ZipFile(path) as file:
            about = unpack(file.read(_ABOUT))
            is_there = exercise in file.namelist()
        self._answers = recorded(path, exercise) if is_there else {}
        self.mistakes = [
            PreparedMistake(name, exercise, explanation)
            for name, explanation in about.get(exercise, ())
        ]

    def answer(self, asked: Asked, lent: Lent, compute: Callable[[], Any]) -> Any:
        """Return a copy of the recorded answer.

        Raises:
            NotPrepared: If there is none.

        """
        key = _key(asked, lent)
        if key not in self._answers:
            raise NotPrepared("no result is recorded for this call")
        return unpack(pack(self._answers[key]))


_source: ContextVar[Recorder | Reader | None] = ContextVar("source", default=None)


def is_recording() -> bool:
    """Return whether answers are being recorded, so that what may be asked for must be."""
    return isinstance(_source.get(), Recorder)


@contextlib.contextmanager
def answering(source: Recorder | Reader | None) -> Iterator[None]:
    """Make oracles and known mistakes record their answers, or read them."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


@contextlib.contextmanager
def checking(folder: Path, exercise: str) -> Iterator[Sequence[Answer]]:
    """Give the checks of an exercise access to results; yield the mistakes for diagnosis."""
    if isinstance(recorder := _source.get(), Recorder):
        yield recorder.mistakes
    elif is_handout(folder):
        reader = _reader(folder / PREPARED, exercise, (folder / PREPARED).stat().st_mtime_ns)
        with answering(reader):
            yield reader.mistakes
    else:
        yield [m for m in load_answers(folder / "mistakes.py") if m.exercise == exercise]


@functools.lru_cache(maxsize=128)
def _reader(path: Path, exercise: str, changed: int) -> Reader:
    return Reader(path, exercise)


# The file --------------------------------------------------------------------------------------


def write(
    path: Path,
    mistakes: Sequence[Answer],
    answers: Mapping[str, Mapping[str, Any]],
    packed: Sequence[str],
) -> None:
    """Write the prepared results of an assignment; the same ones always give the same bytes.

    Args:
        path: The file.
        mistakes: All known mistakes; their names and explanations are kept.
        answers: Those of a recorder, by exercise.
        packed: Pieces of source code to compress.

    """
    about: dict[str, list[list[str]]] = {}
    for mistake in mistakes:
        about.setdefault(mistake.exercise, []).append([mistake.name, mistake.explanation])
    members = {name: pack(dict(sorted(found.items()))) for name, found in answers.items()}
    members |= {_ABOUT: pack(about), _PACKED: pack([_squeezed(source) for source in packed])}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in sorted(members.items()):
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)


def recorded(path: Path, exercise: str) -> dict[str, Any]:
    """Return the answers of an exercise, as `write` got them."""
    with zipfile.ZipFile(path) as file:
        return unpack(file.read(exercise))


def alike(one: Path, other: Path) -> bool:
    """Return whether two files hold the same results, up to rounding and compression."""
    contents = []
    for path in (one, other):
        with zipfile.ZipFile(path) as file:
            contents.append({name: unpack(file.read(name)) for name in file.namelist()})
    return same(*contents)


def _squeezed(source: str) -> str:
    return base64.b85encode(zlib.compress(source.encode(), 9)).decode()


def packed(checks: str, number: int) -> types.CodeType:
    """Return a piece of packed code, compiled, for the checks that it belongs to.

    Args:
        checks: The path of these checks.
        number: Index of the piece in the order of the file.

    """
    with zipfile.ZipFile(Path(checks).with_name(PREPARED)) as file:
        squeezed = unpack(file.read(_PACKED))[number]
    source = zlib.decompress(base64.b85decode(squeezed)).decode()
    return compile(source, f"<packed {number}>", "exec")
