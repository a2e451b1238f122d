"""Grades on a Dask cluster: submissions travel there as bytes, and verdicts back as JSON.

Dask moves the work and knows nothing of what is in it. Each of its workers starts a process that
grades, with a sandbox of its own. If a submission ended the worker itself, Dask would blame every
job that waits there. A worker needs this package in the same version, and bubblewrap; no file
system has to be shared.

Anyone who can reach a Dask scheduler can run anything on its workers. So its network must be
closed, or its connections secured by TLS, as Dask's own settings say.
"""

import hashlib
import itertools
import json
import pickle
import tempfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from classroom.course import folder_for
from classroom.grader.processes import Ended, Process
from classroom.grader.run import (
    Assignment,
    Graded,
    Grader,
    Settings,
    grader_failed,
)
from classroom.grader.submission import Submission
from classroom.grader.verdicts import Verdict
from classroom.limits import Limits
from classroom.sandbox.layers import probe

_SECONDS_TO_ANSWER = 30
_JOBS_PER_THREAD = 2
_TRIES = 2
# What a worker answers is never unpickled here.
_PLAIN = ("dask", "msgpack")


class Refused(ValueError):
    """A worker cannot grade; the text says why."""


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
                "grading on a cluster needs Dask: python -m pip install distributed"
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

    def grade_all(self, settings: Settings, submissions: Iterable[Submission]) -> Iterator[Graded]:
        """Grade submissions; no more of them is on its way than there is work for.

        Raises:
            Refused: If a worker cannot grade.
            ConnectionError: If the scheduler is gone.

        """
        from distributed import as_completed

        # To all of them: if the only worker that has it dies, nobody does.
        order = self._client.scatter(_order(settings), broadcast=True)
        waiting = iter(submissions)
        students: dict[Any, str] = {}
        under_way = as_completed(loop=self._client.loop)

        def send(number: int) -> None:
            for submission in itertools.islice(waiting, max(number, 0)):
                future = self._client.submit(
                    grade_on_worker, order, pickle.dumps(submission), pure=False, retries=0
                )
                students[future.key] = submission.student
                under_way.add(future)

        send(self._num_jobs())
        for number, future in enumerate(under_way, 1):
            graded = self._result(future, settings, students.pop(future.key))
            future.release()
            # Workers may have joined since.
            send(self._num_jobs() - len(students) if number % 20 == 0 else 1)
            yield graded

    def _num_jobs(self) -> int:
        threads: Any = self._client.nthreads()
        return max(_JOBS_PER_THREAD * sum(threads.values()), 1)

    def _result(self, future: Any, settings: Settings, student: str) -> Graded:
        if future.status == "finished":
            answer = json.loads(future.result())
            if why := answer.get("refused"):
                raise Refused(why)
            return Verdict.from_json(answer["verdict"]), answer["notebook"]
        if self._client.status != "running" or future.status == "cancelled":
            raise ConnectionError(
                f"the scheduler at {self._address} is gone: run the command again to continue"
            )
        return grader_failed(settings, student, "workers were killed while they graded it")


def _order(settings: Settings) -> bytes:
    """Return what a worker needs to know of a run, in types that every version reads."""
    folder = settings.assignment.folder
    order = {
        "name": settings.assignment.name,
        "files": _files("exercises", folder),
        "digest": settings.assignment.digest,
        "limits": asdict(settings.limits),
        "allow_weaker": settings.allow_weaker,
        "seed": settings.seed,
    }
    if (whole := folder_for(folder, settings.seed)) != folder:
        order["files"] |= _files("solutions", whole)
    return zlib.compress(pickle.dumps(order))


def _files(kind: str, folder: Path) -> dict[str, bytes]:
    """Return the files of an assignment's folder, by the path that they have in a course."""
    return {
        str(Path(kind, folder.name, path.relative_to(folder))): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "__pycache__"
    }


# On a worker


def grade_on_worker(order: bytes, submission: bytes) -> bytes:
    """Grade a submission; called by Dask.

    Args:
        order: See `_order`.
        submission: A `Submission`, pickled.

    Returns:
        JSON: a verdict and the notebook as it ran; or why it is refused.

    """
    try:
        verdict, notebook = _bench_for(order).grade(pickle.loads(submission))
    except Exception as error:  # Dask would pickle it
        why = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        return json.dumps({"refused": why}).encode()
    return json.dumps({"verdict": verdict.to_json(), "notebook": notebook}).encode()


class _Bench:
    """A process that grades for one thread of a worker, and the files that it needs.

    It is started by that thread, because it ends with the thread that started it.
    """

    def __init__(self, order: bytes):
        run: dict[str, Any] = pickle.loads(zlib.decompress(order))
        self.digest = hashlib.sha256(order).hexdigest()
        self._files = tempfile.TemporaryDirectory(prefix="classroom-")
        for name, data in run["files"].items():
            path = Path(self._files.name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        assignment = Assignment(Path(self._files.name, "exercises", run["name"]))
        if assignment.digest != run["digest"]:
            self._files.cleanup()
            raise Refused(
                "a worker of the cluster and this machine have different versions of Python, torch "
                "or this package, and scores would not be comparable: install the same versions"
            )
        self._settings = Settings(
            assignment=assignment,
            limits=Limits(**run["limits"]),
            allow_weaker=run["allow_weaker"],
            seed=run["seed"],
        )
        self._process = self._started()

    def _started(self) -> Process:
        process = Process()
        process.begin(Grader(self._settings))
        return process

    def grade(self, submission: Submission) -> Graded:
        """Grade a submission; if the process is killed, once more."""
        how = ""
        for _ in range(_TRIES):
            self._process.give(submission)
            try:
                return self._process.take()
            except Ended as ended:
                how = str(ended)
                self._process = self._started()
        why = f"a process of the grader was killed {how}"
        return grader_failed(self._settings, submission.student, why)

    def close(self) -> None:
        """End the process and delete the files."""
        self._process.end()
        self._files.cleanup()


_of_thread = threading.local()


def _bench_for(order: bytes) -> _Bench:
    """Return this thread's bench: that of the previous job, unless another run begins."""
    bench: _Bench | None = getattr(_of_thread, "bench", None)
    if bench is None or bench.digest != hashlib.sha256(order).hexdigest():
        if bench is not None:
            bench.close()
            _of_thread.bench = None
        bench = _of_thread.bench = _Bench(order)
    return bench
