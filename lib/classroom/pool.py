"""Processes that grade side by side, each with a sandbox of its own.

pytest turns the standard streams and the folder of a whole process to itself, so graders are
processes and not threads. They are spawned, because a fork would take threads and locks along.
What a process needs is imported in it late, after what makes importing fast.
"""

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from classroom.startup import skip_the_grammar_of_addresses

_work: Callable[[Any], Any] | None = None
"""What a process does with each job; set when it starts."""


def side_by_side(
    start: Callable[[], Callable[[Any], Any]], jobs: Sequence[Any], workers: int
) -> Iterator[tuple[Any, Any]]:
    """Do jobs in several processes.

    If a process is killed, all of them end, and so does this, without the jobs that are left.

    Args:
        start: Called once in each process; returns what does a job. It is pickled, as jobs and
            results are.
        jobs: Done in this order, as far as there is one.
        workers: Number of processes.

    Yields:
        Jobs and results, in the order in which they are done.

    """
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(pickle.dumps(start),),
    )
    try:
        futures = {pool.submit(_do, job): job for job in map(pickle.dumps, jobs)}
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool:
                continue
            yield pickle.loads(futures[future]), result
    finally:
        pool.shutdown(cancel_futures=True)


def _start(start: bytes) -> None:
    global _work
    # No process is left over, whether the run is stopped or killed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from classroom import kernel

    kernel.end_with_parent()
    skip_the_grammar_of_addresses()
    _work = pickle.loads(start)()


def _do(job: bytes) -> Any:
    assert _work is not None
    return _work(pickle.loads(job))
