import subprocess
import sys

import pytest

from classroom.sandbox.inside import memory

# In a process of its own, and without torch: what is gathered is all that there is.
SCRIPT = """
import os, runpy, sys
gather = runpy.run_path(sys.argv[1])["gather"]

def huge():
    with open("/proc/self/smaps_rollup") as file:
        (line,) = [line for line in file if line.startswith("AnonHugePages:")]
    return int(line.split()[1])

numbers = [bytearray(os.urandom(2**20)) for _ in range(23)]
before, copies = huge(), list(map(bytes, numbers))
given = gather()
child = os.fork()
numbers[3][5] ^= child != 0
if child == 0:
    os._exit(numbers != copies)
ended = os.waitpid(child, 0)[1]
numbers[3][5] ^= 1
print(given, huge() - before, numbers == copies, ended)
"""


def test_what_is_gathered_lies_in_huge_pages_and_stays_what_it_is_in_a_fork_too():
    argv = [sys.executable, "-I", "-c", SCRIPT, memory.__file__]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    given, kilobytes, is_same, ended = done.stdout.split()
    assert (is_same, ended) == ("True", "0")
    if given == "0":
        pytest.skip("needs a kernel that gives huge pages")
    assert int(given) >= 10 and int(kilobytes) >= 1500 * int(given)
