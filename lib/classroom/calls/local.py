"""Code under test in this process, such as the cells of an open notebook."""

import ast
import contextlib
import difflib
import inspect
import io
import itertools
import linecache
import math
import os
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from classroom.calls import lending, module_classes, wire
from classroom.calls.files import File, read_file
from classroom.calls.subject import (
    Crashed,
    NotByHand,
    NotDefined,
    NotWritten,
    StudentError,
    Subject,
    TooSlow,
    WrongKind,
    content,
    count,
    too_long,
    too_slow,
    words_of,
)
from classroom.calls.wire import CannotCross, Handle, pack, unpack
from classroom.limits import SECONDS_PER_EXERCISE, WALL_PER_CPU

_REPEAT_ALARM_AFTER = 0.01
_FASTEST_ALARM = 2e-5
_OUR_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages")
_MOST_HEARD = 2000
_OF_A_BLANK = re.compile(r"['\"]|super\(\).__init__\(\)$|raise NotImplementedError")
_NOT_BY_HAND = re.compile(
    r"torch\.(autograd(\.functional|\.forward_ad)?|optim(\..+)?|_functorch\.eager_transforms)"
)
# Operations that only autograd, forward and backward, and optimizers need.
_BELOW_AUTOGRAD = re.compile(
    r"aten::(\w*_(backward|jvp)(_\w+)?|_fused_(ada\w+|sgd\w*)|_has_same_storage_numel)(\.\w+)?"
)
CHANGES_IN_PLACE = r"a leaf Variable that requires grad|modified by an inplace operation"
"""What torch says, as a pattern, of a tensor that gradients flow through and that is changed."""
_HINTS = (
    (
        r"(?i)scalar type|mixed dtype|same dtype|dtypes match",
        "Most checks pass float64 tensors: make new tensors with the dtype and device of "
        "an input, such as x.new_zeros(...) or torch.zeros(..., dtype=x.dtype, device=x.device)",
    ),
    (
        CHANGES_IN_PLACE,
        "A tensor that gradients flow through is changed in place (+=, x[i] = ..., or a method "
        "that ends in _): compute a new one",
    ),
    (
        r"call numpy\(\) on Tensor that requires grad|numpy\.ndarray",
        "NumPy does not track gradients: use torch's functions and tensors throughout",
    ),
    (
        r"torch\.return_types",
        "With a dim, max, min, sort and topk return values and indices: take .values or .indices, "
        "or use amax and amin",
    ),
    (
        r"unsupported operand.*(tuple|'list')|'(tuple|list)' object has no attribute",
        "Something that you call returns several results in a tuple or a list: take the one that "
        "you need, such as the first with [0]",
    ),
    (
        r"NoneType",
        "Something is None here: a function without a return, an argument that was left out, "
        "or the result of a method that returns nothing",
    ),
    (
        r"mat1 and mat2 shapes cannot be multiplied|first two dimensions of batch2",
        "In a product `a @ b`, `a` must have as many columns as `b` has rows: is one of them "
        "transposed (nn.Linear stores its weight as (d_out, d_in)), or joined along another axis?",
    ),
    (
        r"size of tensor a \(\d+\) must match|shape mismatch|not broadcastable"
        r"|Sizes of tensors must match|expanded size of the tensor",
        "Shapes are aligned from the right: is an axis missing, swapped with another, or summed "
        "away?",
    ),
    (
        r"[Vv]alue of Tensor with more than one value is ambiguous",
        "An `if`, `and`, `or` or `not` needs one truth value: choose entry by entry with "
        "torch.where, &, | and ~, or reduce with .any() or .all()",
    ),
    (
        r"cannot be converted to (Python )?[Ss]calar|can be converted to Python scalars",
        "Only a tensor with one entry can be converted to a number: reduce it first (sum, mean, "
        "amax), or compute with tensors",
    ),
    (
        r"view size is not compatible",
        "After transpose or permute the numbers are not contiguous: use reshape or flatten",
    ),
    (
        r"before Module\.__init__\(\) call",
        "`super().__init__()` has to be the first line of `__init__`",
    ),
    (
        r"maximum recursion depth exceeded",
        "A function calls itself, or two call each other, without end",
    ),
    (
        r"too many values to unpack|not enough values to unpack",
        "A tensor is unpacked along its first axis: `a, b = x.shape` is for two axes",
    ),
    (
        r"Dimension out of range",
        "That axis does not exist for this number of axes: count from the right (-1, -2), so that "
        "any number of axes in front is fine",
    ),
    (
        r"Expected (target size|input batch_size)",
        "F.cross_entropy expects the vocabulary on axis 1: transpose the logits (`.mT`), or "
        "flatten both, to (tokens, vocab_size) and (tokens,)",
    ),
    (
        r"same number of dimensions",
        "The index needs as many axes as the tensor: keepdim=True keeps the one that it lost",
    ),
    (
        r"(index|Target) -?\d+ is out of (bounds|range)|index out of (bounds|range)|Index tensor",
        "An index lies beyond its axis: is it counted from 1, one too large, or a number such as "
        "-100 that marks an ignored target?",
    ),
    (
        r"expected .*Long|tensors used as indices must be|must be .*int.* not float"
        r"|'float' object cannot be interpreted as an integer|int64 for index"
        r"|slice indices must be|must be tuple of ints, but found element of type float",
        "An integer is needed here: `//` instead of `/`, or .long()",
    ),
)
# An axis that crashes a later line is made by `F.one_hot(best)`, of which no comma says its size.
_ONE_HOT = re.compile(r"one_hot\(([^,()]|\([^()]*\))*\)")
_ABOUT_SIZES = re.compile(r"mat1|batch2|size of (the )?tensor|[Ss]izes|broadcast|einsum|[Ss]hape")
_LINES_BEFORE = 8
_OF_A_PRODUCT = re.compile(r"@|matmul|bmm|einsum|attention|linear")
_MOST_SHAPES = 4
_OF_A_VIEW = re.compile(
    r"shape '\[(?P<view>.*)\]' is invalid for input of size (?P<entries>\d+)"
    r"|sizes \[(?P<parts>.*)\] don't multiply up to the size of dim -?\d+ \((?P<size>\d+)\)"
)
_ONE_HOT_HINT = (
    "F.one_hot counts the classes by the largest index that it is given, so an axis is too short "
    "where no index is the last: tell it num_classes"
)


@dataclass(frozen=True)
class Settings:
    """What a notebook may set for all computations; by default, what a fresh Python has.

    A check shares its process with the notebook, and must compute as if nothing were set.
    """

    dtype: torch.dtype = torch.float32
    gradients: bool = True
    deterministic: bool = False
    at_errors: Mapping[str, Any] = field(default_factory=lambda: {"all": "warn", "under": "ignore"})

    @classmethod
    def now(cls) -> "Settings":
        """Return those in force."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
        return cls(dtype, gradients, deterministic, np.geterr())

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Compute with these settings in the block."""
        before = Settings.now()
        try:
            self._set()
            yield
        finally:
            before._set()

    def _set(self) -> None:
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.gradients)
        # Only if it differs: torch imports its compiler for this, which takes seconds.
        if self.deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(self.deterministic)
        np.seterr(**self.at_errors)


def _may_have_a_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.requires_grad or value.grad is not None)


class _Operations(TorchDispatchMode):
    """Notes what autograd and optimizers compute in the block, by whichever way it is reached."""

    def __init__(self, used: list[str]):
        super().__init__()
        self._used = used

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() != -1:
            self._used.append("torch.autograd")
        elif _BELOW_AUTOGRAD.fullmatch(func.name()):
            self._used.append(f"torch.ops.{func.overloadpacket}")
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler for this, which takes seconds."""
        return False


class LocalSubject(Subject):
    """Code that lives in this process, such as the cells of an open notebook.

    Every value is packed and unpacked on its way, as it would be between processes, so no answer
    that passes a check here depends on sharing memory with the check.

    Args:
        namespace: Where the functions are found by name, for instance a notebook's variables.
        seconds: CPU time for all calls together, and `WALL_PER_CPU` times as much wall time; after
            that each call fails at once. Enforced in the main thread of systems with POSIX timers,
            elsewhere only between calls.
        files: The files beside the notebook, by name; by default those in the working directory.
        listens: Whether to keep what the first call that prints or warns has to say.

    Attributes:
        called: Names of the functions that were asked for.
        heard: What that call printed and warned of.

    """

    def __init__(
        self,
        namespace: Mapping[str, Any],
        seconds: float = SECONDS_PER_EXERCISE,
        files: Mapping[str, File] | None = None,
        listens: bool = False,
    ):
        self.called: set[str] = set()
        self.heard = ""
        self._listens = listens
        self._namespace = namespace
        self._files = files
        self._seconds = seconds
        self._seconds_left = seconds
        self._wall_left = WALL_PER_CPU * seconds
        self._lent: dict[int, Callable[..., Any]] = {}
        self._theirs = Settings.now()
        self._modules: dict[Any, Any] | None = None

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function `name` of this process; see `Subject`."""
        args, kwargs = self._given((args, kwargs))
        return self._returned(name, self._run(name, lambda function: function(*args, **kwargs)))

    def call_by_hand(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function `name` and note what it calls; see `Subject`."""
        used: list[str] = []

        def note(frame: FrameType, event: str, arg: Any) -> None:
            module = str(frame.f_globals.get("__name__"))
            if event == "call" and _NOT_BY_HAND.fullmatch(module):
                used.append(f"{module}.{frame.f_code.co_name}")

        before = sys.getprofile(), threading.getprofile()
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            with _Operations(used):
                return self.call(name, *args, **kwargs)
        finally:
            if sys.getprofile() is not note:
                used.append("sys.setprofile")
            sys.setprofile(before[0])
            threading.setprofile(before[1])  # type: ignore[arg-type]
            if used:
                raise NotByHand(
                    f"`{name}` calls {used[0]}: this exercise is to be done by hand, without "
                    "torch.autograd, torch.func and torch.optim"
                )

    def call_and_return_inputs(self, name: str, *args: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call the function `name`; return its result, and its arguments after the call.

        A tensor that requires or has a gradient since then is returned with it, and None in place
        of a function.
        """
        given = self._given(args)
        result = self._run(name, lambda function: function(*given))
        after = tuple(
            None if callable(now) else (now, now.grad) if _may_have_a_gradient(now) else now
            for now in given
        )
        return self._returned(name, result), self._returned(name, after)

    def parameters(self, name: str) -> list[str]:
        """Return the names of the parameters of the function `name`; see `Subject`."""
        found = self._namespace.get(name)
        if module_classes.is_module_class(found):
            return ["settings", "weights", *_parameters(found.forward)[1:]]
        return _parameters(found)

    def gradients(
        self, name: str, args: Sequence[Any], wrt: Sequence[int], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Differentiate `sum(output * cotangent)` through the function by autograd."""
        given = list(self._given(tuple(args)))
        leaves: list[list[Tensor]] = []
        for index in wrt:
            leaves.append([])
            if isinstance(given[index], Tensor):
                leaves[-1].append(given[index].requires_grad_())
            else:
                given[index] = _keeping_results(given[index], leaves[-1])

        def differentiate(function: Callable[..., Any]) -> tuple[Tensor | None, ...]:
            with torch.enable_grad():  # a notebook may have switched it off for all that follows
                outputs = _require_tensors(name, function(*given), cotangents)
                total = sum((o * c).sum() for o, c in zip(outputs, cotangents, strict=True))
            if not isinstance(total, Tensor) or not total.requires_grad:
                raise WrongKind(
                    f"the result of `{name}` is cut off from its inputs: no gradient can flow "
                    "back (look for .detach(), .data, torch.no_grad() or a new torch.tensor(...))"
                )
            flat = [leaf for each in leaves for leaf in each]
            found = iter(torch.autograd.grad(total, flat, allow_unused=True))
            return tuple(_together(list(itertools.islice(found, len(each)))) for each in leaves)

        return self._returned(name, self._run(name, differentiate))

    @contextlib.contextmanager
    def together(self, one_module: bool = False, explains: bool = False) -> Iterator[None]:
        """Let the calls of a block share modules; the process, they share in any case."""
        self._modules = {} if one_module else None
        try:
            yield
        finally:
            self._modules = None

    def file(self, name: str) -> bytes:
        """Return the bytes of a file beside the notebook."""
        folder = Path.cwd()
        is_there = (folder / name).exists() or (folder / name).is_symlink()
        if self._files is None and is_there:
            return content(name, read_file(folder, name))
        return super().file(name)

    def _given(self, args: Any) -> Any:
        """Return arguments as the code under test gets them."""
        return self._cross(args)

    def _cross(self, value: Any) -> Any:
        return unpack(pack(value), self._resolve)

    def _resolve(self, handle: Handle) -> Callable[..., Any]:
        if handle.id not in self._lent:
            raise CannotCross("a handle that no check has lent")
        function, cross = Settings().in_force()(self._lent[handle.id]), self._cross

        def answer(compute: Callable[..., Any], *request: Any) -> Any:
            message = pack(request)
            request = unpack(message, self._resolve)
            lending.require_small(request, len(message))
            return cross(lending.neutrally(compute, request))

        return lending.borrowed(
            partial(answer, lambda args, kwargs: function(*args, **kwargs)),
            partial(answer, partial(lending.differentiate, function)),
        )

    def _returned(self, name: str, result: Any) -> Any:
        try:
            return self._cross(result)
        except CannotCross as reason:
            raise WrongKind(f"`{name}` returned something unreadable: {reason}") from None

    def _run(self, name: str, compute: Callable[[Callable[..., Any]], Any]) -> Any:
        """Let `compute` use the function `name` in the time that is left."""
        function = self._find(name)
        try:
            with self._theirs.in_force(), self._listening(), self._time_limit(name):
                return compute(function)
        except StudentError:
            raise
        except module_classes.WrongWeights as error:
            raise WrongKind(f"`{name}` cannot load the weights of this exercise: {error}") from None
        except BaseException as error:
            raise _failure(name, error) from None

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        if not self._listens or self.heard:
            yield
            return
        printed = _Beginning()
        with (
            warnings.catch_warnings(action="default", record=True) as warned,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            try:
                yield
            finally:
                for each in warned or ():
                    printed.write(f"{each.category.__name__}: {each.message}\n")
                self.heard = printed.text

    def _find(self, name: str) -> Callable[..., Any]:
        self.called.add(name)
        found = self._namespace.get(name)
        if module_classes.is_module_class(found):
            return module_classes.as_function(found, self._modules)
        if callable(found):
            return found
        if found is not None:
            raise NotDefined(f"`{name}` should be a function; it is a {type(found).__name__}")
        near = difflib.get_close_matches(
            name, [n for n, v in self._namespace.items() if callable(v) and n[0] != "_"], n=1
        )
        hint = f"; there is a `{near[0]}`: is that its name?" if near else ""
        raise NotDefined(
            f"`{name}` is not defined: its cell has not run to the end "
            f"(run it, and look for an error below it){hint}"
        )

    @contextlib.contextmanager
    def _time_limit(self, name: str) -> Iterator[None]:
        if self._seconds_left <= 0:
            raise too_slow(name, self._seconds)
        if self._wall_left <= 0:
            raise too_long(name, WALL_PER_CPU * self._seconds)
        can_interrupt = (
            hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        )
        started, computed = time.monotonic(), _cpu_seconds()
        armed = can_interrupt
        repeat_after = _REPEAT_ALARM_AFTER
        went_off = is_deciding = False
        error: TooSlow | None = None

        def left() -> tuple[float, float]:
            return (
                self._seconds_left - (_cpu_seconds() - computed),
                self._wall_left - (time.monotonic() - started),
            )

        def stop(signum: int, frame: FrameType | None) -> None:
            nonlocal went_off, is_deciding
            went_off = True
            # Looking at a frame may call an audit hook. The next alarm would take the hook for the
            # code under test, and stop our code below it.
            if armed and frame is not None and not is_deciding:
                is_deciding = True
                try:
                    decide(frame)
                finally:
                    is_deciding = False

        def decide(frame: FrameType) -> None:
            nonlocal repeat_after, error
            if _is_ours(frame.f_code.co_filename):
                return
            if (soonest := min(left())) > 0:
                # It waited while others computed.
                signal.setitimer(signal.ITIMER_REAL, soonest, _REPEAT_ALARM_AFTER)
                return
            # Code under test may catch an alarm. Each alarm is followed by another one sooner,
            # until one comes while the code is outside its `try`.
            repeat_after = max(repeat_after / 2, _FASTEST_ALARM)
            signal.setitimer(signal.ITIMER_REAL, repeat_after, repeat_after)
            # What it computes while it catches alarms is not what stopped it.
            error = error or (
                too_slow(name, self._seconds)
                if left()[0] <= 0
                else too_long(name, WALL_PER_CPU * self._seconds)
            )
            raise error.with_traceback(None)  # or each alarm would make it longer

        previous = signal.signal(signal.SIGALRM, stop) if can_interrupt else None
        try:
            if can_interrupt:
                soonest = min(self._seconds_left, self._wall_left)
                signal.setitimer(signal.ITIMER_REAL, soonest, _REPEAT_ALARM_AFTER)
            yield
        finally:
            armed = False
            seconds_left, wall_left = left()
            if can_interrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                # One of many alarms may still be on its way, through a thread of torch's. The
                # default would end the process, and Python reports an alarm that finds itself
                # ignored between its arrival and its handling. A handler that came from C is
                # None here and cannot be put back.
                may_be_late = went_off or min(seconds_left, wall_left) < _REPEAT_ALARM_AFTER
                keep = callable(previous) or (previous is not None and not may_be_late)
                signal.signal(signal.SIGALRM, previous if keep else _too_late)
            self._seconds_left, self._wall_left = seconds_left, wall_left


class _Beginning(io.TextIOBase):
    """Keeps the beginning of what is printed: code may print without end."""

    text = ""

    def write(self, text: str) -> int:
        self.text += text[: _MOST_HEARD - len(self.text)]
        return len(text)


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _cpu_seconds() -> float:
    """Return what this process and the children that it waited for have computed so far."""
    return time.process_time() + sum(os.times()[2:4])


def _too_late(signum: int, frame: FrameType | None) -> None:
    """Ignore an alarm that arrives after the call has ended."""


def _is_ours(filename: str) -> bool:
    """Say whether a file's code runs without alarms: it clears up after the code under test.

    Packing a value is not part of it, because a value may take long to pack.
    """
    is_in_package = filename.startswith(_OUR_PACKAGE) and filename != wire.__file__
    return is_in_package or filename == contextlib.__file__


def _keeping_results(function: Callable[..., Any], kept: list[Tensor]) -> Callable[..., Any]:
    """Return a lent function whose results are differentiated by, and kept."""

    def call(*args: Any, **kwargs: Any) -> Any:
        kept.append(function(*args, **kwargs).requires_grad_())
        return kept[-1]

    return call


def _together(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Return the one gradient, or those of several results in a row."""
    found = [gradient for gradient in gradients if gradient is not None]
    return torch.cat([g.flatten() for g in found]) if len(found) > 1 else next(iter(found), None)


def _require_tensors(name: str, result: Any, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """Require one tensor per cotangent, of its shape."""
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    if len(outputs) != len(cotangents) or not all(isinstance(o, Tensor) for o in outputs):
        raise WrongKind(f"`{name}` should return {count(len(cotangents), 'tensor')}")
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if output.shape != cotangent.shape:
            raise WrongKind(
                f"`{name}` returned a tensor of shape {tuple(output.shape)}, expected "
                f"{tuple(cotangent.shape)}"
            )
    return outputs


def _failure(name: str, error: BaseException) -> StudentError:
    """Return the error that explains an exception to the author of the code that raised it."""
    frames = _frames_under_test(error)
    frame = frames[-1] if frames else None
    # A blank raises NotImplementedError without arguments; torch raises it with a message.
    if isinstance(error, NotImplementedError) and not error.args:
        blank = frame.name if frame and len(frames) > 1 else name
        asked = f"`{name}`"
        if blank not in (name, "__init__", "forward") and blank.isidentifier():
            asked = f"`{name}` calls `{blank}`, which"
        if frame and _is_begun(frame):
            return NotWritten(
                f"{asked} still raises NotImplementedError in line {frame.lineno}: delete that "
                "line once your code is there"
            )
        return NotWritten(f"{asked} is not written yet")
    where = f" in line {frame.lineno}: {frame.line.strip()}" if frame and frame.line else ""
    kind, said = type(error).__name__, words_of(error)
    text = f": {said.strip().splitlines()[0].rstrip('.')}" if said.strip() else ""
    hint = next((f". {hint}" for pattern, hint in _HINTS if re.search(pattern, said)), "")
    if frame and frame.lineno and _ABOUT_SIZES.search(said):
        lines = linecache.getlines(frame.filename)[: frame.lineno][-_LINES_BEFORE:]
        hint = f". {_ONE_HOT_HINT}" if _ONE_HOT.search("".join(lines)) else hint
        more = _of_a_view(said) or (_shapes_in(frame, error) if kind == "RuntimeError" else "")
        hint += more.removeprefix("." if hint.endswith("?") else "")
    return Crashed(f"`{name}` raised {kind}{text}{where}{hint}", kind, said, where)


def _of_a_view(said: str) -> str:
    """Say how many numbers a shape holds that does not fit."""
    if not (found := _OF_A_VIEW.search(said)):
        return ""
    listed = found["view"] or found["parts"]
    there = int(found["entries"] or found["size"])
    sizes = [int(size) for size in re.findall(r"-?\d+", listed)]
    held = math.prod(size for size in sizes if size >= 0)
    if -1 in sizes:
        holds = f"with -1, ({listed}) holds a multiple of {count(held, 'number')}"
    else:
        holds = f"({listed}) holds {count(held, 'number')}"
    whole = "the axis" if found["parts"] else "the tensor"
    return f". A new shape keeps all numbers: {holds}, and {whole} has {there}"


def _shapes_in(summary: traceback.FrameSummary, error: BaseException) -> str:
    """Say which shapes the tensors of a line have, and where one of them lacks an axis."""
    local: Mapping[str, Any] = {}
    for frame, lineno in traceback.walk_tb(error.__traceback__):
        if (frame.f_code.co_filename, lineno) == (summary.filename, summary.lineno):
            local = frame.f_locals
    lines = linecache.getlines(summary.filename)
    line = "".join(lines[(summary.lineno or 1) - 1 : summary.end_lineno or summary.lineno])
    names = dict.fromkeys(re.findall(r"(?<![\w.])[^\W\d]\w*", line))
    shapes = {n: tuple(local[n].shape) for n in names if isinstance(local.get(n), Tensor)}
    if not 0 < len(shapes) <= _MOST_SHAPES:
        return ""
    said = ", ".join(f"`{name}` is {shape}" for name, shape in shapes.items())
    largest = max(shapes.values(), key=len)
    ends = {largest[-1:], *(shape[-2:-1] for shape in shapes.values())}  # as of a product
    last = -1 if _OF_A_PRODUCT.search(line) else None  # the axis that need not be alike there
    for name, shape in shapes.items():
        fits = [
            s
            for s in _with_more_axes(shape, len(largest), last)
            if _are_alike(s[:last], largest) and (last is None or shape[-1:] in ends)
        ]
        if len(fits) == 1 and len(shape) < len(largest):
            said += f"; `{name}` fits as {fits[0]}"
    return f". There, {said}"


def _with_more_axes(
    shape: tuple[int, ...], dim: int, last: int | None
) -> Iterator[tuple[int, ...]]:
    """Yield a shape with axes of size 1 after its first one, so that it has `dim` axes."""
    for places in itertools.combinations(range(dim)[1:last], max(dim - len(shape), 0)):
        sizes = iter(shape)
        yield tuple(1 if place in places else next(sizes, 1) for place in range(dim))


def _are_alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether one shape can be broadcast to the beginning of another."""
    return all(a in (1, b) for a, b in zip(one, other, strict=False))


def _is_begun(frame: traceback.FrameSummary) -> bool:
    """Say whether a function holds more than a blank does."""
    try:
        cell = ast.parse("".join(linecache.getlines(frame.filename)))
    except (SyntaxError, ValueError):
        return False
    bodies = [
        [ast.unparse(statement) for statement in function.body]
        for function in ast.walk(cell)
        if isinstance(function, ast.FunctionDef)
        and function.lineno < (frame.lineno or 0) <= (function.end_lineno or 0)
    ]
    return bool(bodies) and any(not _OF_A_BLANK.match(statement) for statement in bodies[-1])


def _frames_under_test(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of the code under test, without libraries and without what we lent it."""
    frames = traceback.extract_tb(error.__traceback__)
    from_theirs = itertools.dropwhile(lambda frame: _is_ours(frame.filename), frames)
    theirs = itertools.takewhile(lambda frame: not _is_ours(frame.filename), from_theirs)
    return [
        frame for frame in theirs if not any(library in frame.filename for library in _LIBRARIES)
    ]
