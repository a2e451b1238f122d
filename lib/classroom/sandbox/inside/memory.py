"""How much memory processes use, and how to make forking this one cheap.

A fork copies the table of all pages that were written to: at four kilobytes a page, tens of
thousands of entries for Python with torch, and as many again to take down at its end. In pages of
two megabytes there are a hundred.
"""

import ctypes
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_LARGEST_BUFFER = Path("/proc/sys/net/core/wmem_default")
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE = 2 * 2**20
# Private, and of no file: `55d0c0000000-55d0c2000000 rw-p 00000000 00:00 0 [heap]`.
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.p \S+ \S+ 0 +(\[heap\])?$")


def gather() -> int:
    """Move the memory written so far into huge pages, as far as Linux has any free.

    Only speed depends on it: Linux before 6.1, or without huge pages, refuses.

    Returns:
        Number of huge pages obtained.

    """
    given = 0
    for start, end in _anonymous():
        for page in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            _libc.madvise(page, _HUGE, _MADV_HUGEPAGE)
            given += _libc.madvise(page, _HUGE, _MADV_COLLAPSE) == 0
    return given


def _anonymous() -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := _ANONYMOUS.match(line):
            yield int(found[1], 16), int(found[2], 16)


def in_use(enough: int) -> int:
    """Return the bytes that all processes here use together, an upper bound if below `enough`."""
    processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    # Pages shared between forks count once per fork: an upper bound, cheap to compute.
    total = sum(map(resident, processes))
    return total if total <= enough else sum(map(_proportional, processes))


def in_sockets() -> int:
    """Return what the sockets of this network namespace may hold, which counts for no process."""
    sockets = Path("/proc/net/sockstat").read_text().split()[2]
    return int(sockets) * int(_LARGEST_BUFFER.read_text())


def resident(process: int) -> int:
    """Return the bytes of memory that a process uses, 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def address_space() -> int:
    """Return the bytes of addresses that this process has reserved."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _proportional(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident(process)
