"""Files of JSON lines that survive a stop: each line is there whole, or not at all."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def append(path: Path, records: Iterable[Any]) -> None:
    """Add records, and return when they are on the disk.

    A writer that was stopped has left half a line, which is cut off. Only one may write at a time.
    """
    with path.open("ab+") as file, _naming(path):
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"\n", b""):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file's name to an error that lacks it, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def read(path: Path, parse: Callable[[Any], T], what: str) -> Iterator[T]:
    """Read the records of a file; none if there is no such file.

    Half a line at its end is passed over: it may be being written.

    Args:
        path: What `append` wrote.
        parse: Makes something of a record; raises ValueError, KeyError or TypeError if it cannot.
        what: A line holds, for messages.

    Raises:
        ValueError: If a line holds something else.

    """
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found = parse(json.loads(line))
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: this is not a {what}") from None
        yield found
