"""Grades on an existing Dask cluster: folders travel there as bytes, and verdicts back as JSON.

Dask moves the work and knows nothing of what it holds. Each of its workers has a process below it
that grades, with a sandbox of its own: if a submission could end that process, Dask would not
notice, or else it would take every job that waits there for deadly. A worker needs this package
in the same version, and bubblewrap; no file system has to be shared.

Whoever can reach a Dask scheduler can run what he likes on its workers. So its network must be
closed, or its connections secured by TLS, as Dask's own settings say.
"""

import base64
import hashlib
import itertools
import json
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from classroom.grade import (
    Assignment,
    Grader,
    HandedIn,
    Judged,
    Settings,
    not_judged,
)
from classroom.intake import Master, Parcel
from classroom.pool import Ended, Process
from classroom.report import Verdict
from classroom.sandbox import Limits, probe

_SECONDS_TO_ANSWER = 30
_JOBS_PER_THREAD = 2
_TRIES = 2
# What is sent to the one who asked is never unpickled there.
_PLAIN = ("dask", "msgpack")


class Refused(ValueError):
    """A worker cannot grade as it was told; the text says why."""


# On the machine of the instructor


class Cluster:
    """Grades on the workers of a Dask cluster; a context manager.

    Args:
        address: Of its scheduler, such as `tcp://10.0.0.7:8786`.

    Raises:
        ValueError: If Dask is not installed.
        OSError: If there is no scheduler, or it has no workers.

    """

    def __init__(self, address: str):
        try:
            from distributed import Client
        except ImportError:
            raise ValueError(
                "grading on a cluster takes Dask: python -m pip install distributed"
            ) from None
        self._address = address
        try:
            self._client = Client(
                address,
                timeout=_SECONDS_TO_ANSWER,
                set_as_default=False,
                deserializers=_PLAIN,
                name="classroom",
            )
        except OSError:
            raise ConnectionError(f"no scheduler answers at {address}") from None
        try:
            self._client.wait_for_workers(1, timeout=_SECONDS_TO_ANSWER)
        except TimeoutError:
            self._client.close()
            raise TimeoutError(f"the scheduler at {address} has no workers") from None

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def layers(self, allow_weaker: bool) -> frozenset[str]:
        """Return the layers without which no worker grades, unless it may."""
        if allow_weaker:
            return frozenset()
        return frozenset(layer.name for layer in probe() if layer.is_required)

    def judge_all(self, settings: Settings, submissions: Iterable[HandedIn]) -> Iterator[Judged]:
        """Grade submissions; no more of them is on its way than there is work for.

        Raises:
            Refused: If a worker cannot grade as it is told.
            ConnectionError: If the scheduler is gone.

        """
        from distributed import as_completed

        order = _Order.of(settings).to_bytes()
        waiting = iter(submissions)
        students: dict[Any, str] = {}
        under_way = as_completed(loop=self._client.loop)

        def send() -> bool:
            each = next(waiting, None)
            if each is None:
                return False
            parcel = json.dumps(each.parcel(settings.assignment.master).to_json()).encode()
            future = self._client.submit(
                grade_on_worker, order, each.student, parcel, pure=False, retries=0
            )
            students[future.key] = each.student
            under_way.add(future)
            return True

        for _ in range(self._num_jobs()):
            if not send():
                break
        for number in itertools.count(1):
            future = next(under_way, None)
            if future is None:
                return
            student = students.pop(future.key)
            judged = self._result(future, settings, student)
            future.release()
            # Workers may have come since.
            room = self._num_jobs() - len(students) if number % 20 == 0 else 1
            for _ in range(room):
                if not send():
                    break
            yield judged

    def _num_jobs(self) -> int:
        threads: Any = self._client.nthreads()
        return max(_JOBS_PER_THREAD * sum(threads.values()), 1)

    def _result(self, future: Any, settings: Settings, student: str) -> Judged:
        if future.status == "finished":
            answer = json.loads(future.result())
            if why := answer.get("refused"):
                raise Refused(why)
            return Judged(Verdict.from_json(answer["verdict"]), answer["notebook"], answer["final"])
        if self._client.status != "running" or future.status == "cancelled":
            raise ConnectionError(
                f"the scheduler at {self._address} is gone: run the command again, it goes on"
            )
        return not_judged(settings, student, "workers of the cluster were ended at it")


# What travels


@dataclass(frozen=True)
class _Order:
    """What a worker needs to know of a run.

    Attributes:
        name: Of the assignment.
        files: Of its folder, by name.
        digest: Which the assignment must have there as well.
        limits: See `Limits`.
        allow_weaker: See `Settings`.
        seed: See there.

    """

    name: str
    files: Mapping[str, bytes]
    digest: str
    limits: Mapping[str, Any]
    allow_weaker: bool
    seed: str

    @classmethod
    def of(cls, settings: Settings) -> "_Order":
        folder = settings.assignment.folder
        paths = sorted([*folder.glob("*.py"), *folder.glob("*.ipynb")])
        return cls(
            settings.assignment.name,
            {path.name: path.read_bytes() for path in paths},
            settings.assignment.digest,
            asdict(settings.limits),
            settings.allow_weaker,
            settings.seed,
        )

    def to_bytes(self) -> bytes:
        files = {name: base64.b64encode(data).decode() for name, data in self.files.items()}
        return zlib.compress(json.dumps({**self.__dict__, "files": files}).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> "_Order":
        fields = json.loads(zlib.decompress(data))
        fields["files"] = {name: base64.b64decode(f) for name, f in fields["files"].items()}
        return cls(**fields)


@dataclass(frozen=True)
class _Sent:
    """A submission that has come as bytes; to a grader it is like `HandedIn`."""

    student: str
    sent: Parcel

    def parcel(self, master: Master) -> Parcel:
        return self.sent


# On a worker


def grade_on_worker(order: bytes, student: str, parcel: bytes) -> bytes:
    """Grade what a student handed in; called by Dask.

    Args:
        order: See `_Order`.
        student: Whose it is.
        parcel: See `Parcel.to_json`.

    Returns:
        JSON: a verdict, the notebook as it ran, and whether it is final; or why it is refused.

    """
    try:
        bench = _bench_for(order)
        judged = bench.do(_Sent(student, Parcel.from_json(json.loads(parcel))))
    except Exception as error:  # Dask would pickle it
        why = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        return json.dumps({"refused": why}).encode()
    answer = {
        "verdict": judged.verdict.to_json(),
        "notebook": judged.notebook,
        "final": judged.is_final,
    }
    return json.dumps(answer).encode()


class _Bench:
    """A process that grades for one thread of a worker, and the files that it needs.

    It is started by that thread, because it ends with the thread that started it.
    """

    def __init__(self, order: bytes):
        told = _Order.from_bytes(order)
        self.digest = hashlib.sha256(order).hexdigest()
        self._files = tempfile.TemporaryDirectory(prefix="classroom-")
        folder = Path(self._files.name, told.name)
        folder.mkdir()
        for name, data in told.files.items():
            (folder / name).write_bytes(data)
        assignment = Assignment(folder)
        if assignment.digest != told.digest:
            self._files.cleanup()
            raise Refused(
                "a worker of the cluster has another version of Python, torch or this package "
                "than this machine: scores would not be comparable"
            )
        self._settings = Settings(
            assignment=assignment,
            limits=Limits(**told.limits),
            allow_weaker=told.allow_weaker,
            seed=told.seed,
        )
        self._process = self._started()

    def _started(self) -> Process:
        process = Process()
        process.begin(Grader(self._settings))
        return process

    def do(self, job: _Sent) -> Judged:
        """Grade a submission; if the process is killed, once more."""
        how = ""
        for _ in range(_TRIES):
            self._process.give(job)
            try:
                return self._process.take()
            except Ended as ended:
                how = str(ended)
                self._process = self._started()
        return not_judged(self._settings, job.student, f"a process of the grader was killed {how}")

    def close(self) -> None:
        """End the process and delete the files."""
        self._process.end()
        self._files.cleanup()


_of_thread = threading.local()


def _bench_for(order: bytes) -> _Bench:
    """Return this thread's bench: that of the job before, unless another run begins."""
    bench: _Bench | None = getattr(_of_thread, "bench", None)
    if bench is None or bench.digest != hashlib.sha256(order).hexdigest():
        if bench is not None:
            bench.close()
            _of_thread.bench = None
        bench = _of_thread.bench = _Bench(order)
    return bench
