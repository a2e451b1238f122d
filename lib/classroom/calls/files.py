"""Files from outside, read as bytes: no link is followed, and nothing is read beyond a bound."""

import base64
import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 32 * 2**20
MAX_SHOWN = 80


@dataclass(frozen=True)
class File:
    """A file that may be graded, as bytes.

    Attributes:
        data: Its bytes.
        received: When it arrived on this machine; None if it cannot be read.
        problem: Why it cannot be read, in a sentence.

    """

    data: bytes = b""
    received: datetime | None = None
    problem: str = ""

    @cached_property
    def digest(self) -> str:
        """Of its bytes, sha256 in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the file as JSON types."""
        return {
            "data": base64.b64encode(self.data).decode(),
            "received": self.received and self.received.isoformat(),
            "problem": self.problem,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "File":
        """Rebuild a file from what `to_json` returned."""
        received = record["received"] and datetime.fromisoformat(record["received"])
        return cls(base64.b64decode(record["data"]), received, record["problem"])


def read_file(folder: Path, name: str) -> File:
    """Read a file of at most `MAX_FILE_BYTES`; if it cannot be read, the result says why."""
    try:
        with opened(folder, os.O_DIRECTORY) as parent, opened(name, 0, parent) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return File(problem=f"{shown(name)} is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        if (folder / name).is_symlink():
            return File(problem=f"{shown(name)} is a link: submit the file itself")
        return File(problem=f"{shown(name)} cannot be opened: {error.strerror}")
    if len(data) > MAX_FILE_BYTES:
        remedy = ": clear its outputs and save it again" if name.lower().endswith(".ipynb") else ""
        limit = f"{MAX_FILE_BYTES // 2**20} MB"
        return File(problem=f"{shown(name)} is larger than {limit}{remedy}")
    # The date of the last change of content comes with the file; this one is the machine's own.
    return File(data, datetime.fromtimestamp(int(status.st_ctime), UTC))


@contextlib.contextmanager
def opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file or a folder for reading: a link is refused, and a pipe is not waited for.

    Args:
        path: What to open.
        flags: Further flags of `os.open`.
        folder: Descriptor of the folder that `path` is relative to.

    Yields:
        A file descriptor, which is closed afterwards.

    """
    safe = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, safe | flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def shown(name: str, limit: int = MAX_SHOWN) -> str:
    """Return a name from outside as text to print: on one line, at most `limit` characters."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
