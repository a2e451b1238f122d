"""Puts the memory of this process where forking it costs little.

A fork copies the table of all pages that were written to: at four kilobytes a page, tens of
thousands of entries for Python with torch, and as many again to take down at its end. In pages of
two megabytes there are a hundred.
"""

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE = 2 * 2**20
# Private, and of no file: `55d0c0000000-55d0c2000000 rw-p 00000000 00:00 0 [heap]`.
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.p \S+ \S+ 0 +(\[heap\])?$")


def gather() -> int:
    """Put what has been written so far into huge pages, as far as the kernel has any to give.

    Nothing depends on it but time: a kernel before 6.1, or one without huge pages, says no.

    Returns:
        Number of huge pages asked for and given.

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
