"""Cells that run and exercises that are checked, in a sandbox, as a grader asks for it."""

import time

import pytest
import torch

from classroom.calls.subject import (
    Crashed,
    Died,
    NotByHand,
    NotDefined,
    StudentError,
    TooSlow,
    WrongKind,
)
from classroom.limits import Limits
from classroom.sandbox.job import JobDied, JobTooSlow, ProtocolError
from classroom.sandbox.launcher import Launcher

ONE = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture
def job(launcher):
    with launcher.start_job() as job:
        yield job


def shown(outputs):
    return "".join(output.get("text", "") for output in outputs)


def test_a_cell_shows_what_a_notebook_shows(job):
    run = job.run("print('one')\n'two'\n2 + 3")
    assert not run.error
    assert run.outputs == [
        {"output_type": "stream", "name": "stdout", "text": "one\n"},
        {
            "output_type": "execute_result",
            "data": {"text/plain": "5"},
            "metadata": {},
            "execution_count": None,
        },
    ]


def test_cells_share_their_variables(job):
    job.run("number = 7")
    assert shown(job.run("print(number)").outputs) == "7\n"


def test_a_cell_that_only_adds_leaves_what_is_defined(job):
    job.run("written = 3")
    assert not job.run("written = other = 5", only_adds=True).error
    assert shown(job.run("print(written, other)").outputs) == "3 5\n"


def test_a_cell_may_use_the_score_of_a_check_that_is_made_elsewhere(job):
    run = job.run("from classroom import check\nprint(f'{check(\"f\") + 2:.1f}')\ncheck('g')")
    assert shown(run.outputs) == "f is graded elsewhere\n2.0\ng is graded elsewhere\n"


@pytest.mark.parametrize(
    "before",
    [
        "import torch\ntorch.set_num_threads(2)\nx = torch.ones(700, 700)\nuse = lambda: x @ x",
        "from concurrent.futures import ThreadPoolExecutor as P\nuse = P(1).submit(int).result",
        "from multiprocessing import pool\np = pool.ThreadPool(2)\nuse = lambda: p.map(abs, [2])",
        "from multiprocessing import Pool\np = Pool(1)\nuse = lambda: p.map(abs, [2, 3])",
    ],
)
def test_an_answer_does_not_wait_for_threads_of_a_cell(launcher, before):
    with launcher.start_job(Limits(seconds_per_exercise=5.0)) as job:
        assert not job.run(f"{before}\nuse()\ndef answer():\n    use()\n    return 7").error
        with job.serving() as subject:
            assert subject.call("answer") == 7


def test_what_answers_print_and_warn_of_is_discarded(job):
    job.run("import warnings\nwarnings.simplefilter('error')")
    job.run("def answer():\n    warnings.warn('x')\n    print('x' * 10**8)\n    return 7")
    with job.serving() as subject:
        assert subject.call("answer") == 7


def test_a_module_that_a_cell_has_written_is_found_by_the_next(job):
    for number in (2, 3, 5):
        job.run(f"%%writefile part{number}.py\nnumber = {number}")
        assert not job.run(f"import part{number}\nassert part{number}.number == {number}").error


def test_a_plot_is_a_picture(job):
    run = job.run("import matplotlib.pyplot as plt\nplt.plot([2, 3, 5])\nplt.show()")
    assert [list(output["data"]) for output in run.outputs] == [["text/plain", "image/png"]]


def test_magics_and_commands_work(job):
    assert "loop" in shown(job.run("%timeit -n1 -r1 1").outputs)
    assert shown(job.run("!echo $((2 * 3))").outputs).strip() == "6"


def test_an_exception_is_an_output_and_the_job_goes_on(job):
    run = job.run("before = 5\n1 / 0")
    assert run.error == "ZeroDivisionError: division by zero"
    assert run.outputs[-1]["ename"] == "ZeroDivisionError"
    assert not job.run("assert before == 5").error


def test_a_slow_cell_is_interrupted_and_what_it_defined_remains(launcher):
    with launcher.start_job(Limits(seconds_per_cell=0.3)) as job:
        run = job.run("number = 7\nwhile True: pass")
        assert run.error == "KeyboardInterrupt"
        assert run.seconds < 1
        assert not job.run("assert number == 7").error


def test_a_cell_that_heeds_no_interrupt_ends_the_job_in_time(launcher):
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    with launcher.start_job(Limits(seconds_per_cell=0.3)) as job:
        started = time.monotonic()
        with pytest.raises(JobTooSlow):
            job.run(stubborn)
        assert time.monotonic() - started < 0.3 + 2 + 1  # its limit, the time to heed, the machine
        with pytest.raises(JobDied):
            job.run("1")


def test_cells_share_one_wall_budget(launcher):
    with launcher.start_job(Limits(seconds_per_submission=0.8)) as job:
        started = time.monotonic()
        with pytest.raises(JobTooSlow):
            for _ in range(10):
                job.run("import time; time.sleep(0.2)")
                job.run("try:\n  time.sleep(5)\nexcept KeyboardInterrupt: pass")
        assert time.monotonic() - started < 0.8 + 1


def test_a_cell_that_ends_its_process_says_how(job):
    with pytest.raises(JobDied, match="ended its own process with the status 4"):
        job.run("import os; os._exit(4)")


def test_a_cell_that_crashes_its_process_says_how(job):
    with pytest.raises(JobDied, match="SIGSEGV"):
        job.run("import ctypes; ctypes.string_at(0)")


def test_functions_are_called_by_name_with_copies(job):
    job.run("def triple(x):\n  x *= 3\n  return x")
    given = ONE.clone()
    with job.serving() as subject:
        assert subject.call("triple", given).equal(3 * ONE)
        result, (after,) = subject.call_and_return_inputs("triple", given)
        assert subject.parameters("triple") == ["x"]
    assert given.equal(ONE)
    assert after.equal(result)


_DIFFERENTIATED = """
import sys
import torch

def num_imported(x):
    before = set(sys.modules)
    x.requires_grad_()
    torch.autograd.grad(2 * x, x, torch.ones_like(x))
    return len(set(sys.modules) - before)
"""

_IMPORTED = """
import sys, torch
from torch.utils.checkpoint import checkpoint
def num_imported(x):
    before = set(sys.modules)
    torch.testing.assert_close(x, x)
    torch.autograd.gradcheck(torch.sin, x.double().requires_grad_())
    torch.autograd.functional.jacobian(torch.sin, x, vectorize=True)
    checkpoint(torch.sin, x, use_reentrant=False)
    torch.func.jacrev(torch.sin)(x)
    torch.use_deterministic_algorithms(True)
    torch.optim.AdamW([x.requires_grad_()])
    repr(x)
    return len(set(sys.modules) - before)
"""


def test_a_call_pays_for_no_import_of_torch_s_that_each_fork_would_repeat(job):
    job.import_compiler()
    job.run(_IMPORTED)
    with job.serving() as subject:
        assert subject.call("num_imported", ONE) <= 3


def test_a_gradient_with_a_given_slope_imports_nothing_in_each_fork(job):
    job.run(_DIFFERENTIATED)
    with job.serving() as subject:
        assert subject.call("num_imported", ONE) == 0


def has_compiler(job):
    run = job.run("import sys\n'torch._dynamo' in sys.modules")
    return run.outputs[0]["data"]["text/plain"] == "True"


def test_torchs_compiler_is_in_the_job_that_asks_for_it_or_in_all(job, launcher):
    assert not has_compiler(job)
    job.import_compiler()
    with launcher.start_job() as other:
        assert has_compiler(job) and not has_compiler(other)
    with Launcher() as another:
        another.be_ready(compiler=True)
        with another.start_job() as other:
            assert has_compiler(other)


def test_the_import_of_the_compiler_does_not_count_against_a_cell(launcher):
    with launcher.start_job(Limits(seconds_per_cell=0.3)) as job:
        job.import_compiler()
        assert job.run("2 + 3").error == ""


_LEAVES = """
import os, time
def num_processes(): return len([name for name in os.listdir("/proc") if name.isdigit()])
def leave():
  before = num_processes()
  if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
      time.sleep(1000)
    os._exit(0)
  os.wait()
  assert num_processes() == before + 1
"""


def test_no_call_finds_what_another_left(job):
    job.run("calls = []\ndef count():\n  calls.append(1)\n  return len(calls)")
    with job.serving() as subject:
        assert [subject.call("count") for _ in range(3)] == [1, 1, 1]
    assert not job.run("assert calls == []").error


# Each makes a channel between calls. `seen` says what is in it, and puts something in.
_BETWEEN_CALLS = {
    "a file": """
path = "/tmp/between"
def find(): return os.path.exists(path)
def leave(): open(path, "w").close()
""",
    "the name of a file": """
open("/tmp/a", "w").close()
def find(): return os.path.exists("/tmp/b")
def leave(): os.link("/tmp/a", "/tmp/b")
""",
    "a file that is open": """
file = open("/tmp/between", "wb", buffering=0)
def find(): return os.stat("/tmp/between").st_size > 0
def leave(): os.write(file.fileno(), b"1")
""",
    "what was printed, in memory": """
def printed():
    links = {int(n): f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")}
    return [n for n, link in links.items() if os.path.islink(link) and "prin" in os.readlink(link)]
def find(): return any(os.fstat(number).st_size for number in printed())
def leave():
    for number in printed(): os.write(number, b"1")
""",
    "shared memory": """
with open("/dev/shm/between", "w+b") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
def find(): return shared[0] == 7
def leave(): shared[0] = 7
""",
    "shared memory that is read-only until it is used": """
with open("/dev/shm/between", "w+b") as file:
    file.truncate(4096)
    shared = mmap.mmap(file.fileno(), 4096)
place = ctypes.addressof(ctypes.c_char.from_buffer(shared))
libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect(place, 4096, 1)
def find(): return shared[0] == 7
def leave():
    libc.mprotect(place, 4096, 3)
    shared[0] = 7
""",
    "a pipe": """
reading, writing = os.pipe()
os.set_blocking(reading, False)
def find():
    try: return bool(os.read(reading, 1))
    except OSError: return False
def leave(): os.write(writing, b"1")
""",
    "what is left to read in a pipe of the parent": """
reading, writing = os.pipe()
os.write(writing, b"x" * 9)
def opened(): return open(f"/proc/{os.getppid()}/fd/{reading}", "rb", buffering=0)
def find():
    left = bytearray(4)
    try:
        with opened() as file: fcntl.ioctl(file, termios.FIONREAD, left)
    except OSError: return False
    return left[0] < 9
def leave():
    with opened() as file: file.read(1)
""",
    "standard input": """
os.dup2(os.open("/tmp/between", os.O_RDWR | os.O_CREAT), 0)
def find(): return bool(os.pread(0, 9, 0))
def leave(): os.pwrite(0, b"1", 0)
""",
    "the mode of a file, by a new system call": """
open("/tmp/a", "w").close()
libc = ctypes.CDLL(None)
def find(): return os.stat("/tmp/a").st_mode & 0o777 == 0o711
def leave():
    if libc.syscall(452, -100, b"/tmp/a", 0o711, 0) and find.__name__: raise OSError
""",
    "a thread of a pool": """
import multiprocessing.pool
pool = multiprocessing.pool.ThreadPool(1)
def find(): return os.path.exists("/tmp/between")
def leave(): pool.apply_async(lambda: open("/tmp/between", "w").close()).get(0.3)
""",
    "a signal": """
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
def find(): return bool(heard)
def leave(): os.kill(os.getppid(), signal.SIGUSR1)
""",
    "a limit of the parent": """
def find():
    try: return resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)[0] == 63
    except OSError: return False
def leave(): resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (63, 64))
""",
    "the number of the next process": """
first = os.getpid()
def find(): return os.getpid() > first + 25
def leave():
    for _ in range(30):
        if os.fork() == 0: os._exit(0)
        os.wait()
""",
    "the number of the next thread": """
first = os.getpid()
def find(): return os.getpid() > first + 25
def leave():
    for _ in range(30):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
""",
}


@pytest.mark.parametrize("cell", _BETWEEN_CALLS.values(), ids=_BETWEEN_CALLS)
def test_a_call_without_trace_tells_the_next_one_nothing(job, cell):
    job.run("import ctypes, fcntl, mmap, os, resource, signal, termios, threading")
    assert not job.run(cell).error
    job.run("""
def seen():
    found = find()
    try: leave()
    except Exception: pass
    return found
""")
    with job.serving() as subject:
        assert [subject.call_without_trace("seen") for _ in range(3)] == [False] * 3
        assert [subject.call("seen") for _ in range(3)] == [False, True, True]  # it is a channel


@pytest.mark.parametrize(
    "cell",
    [
        "for number in range(3, 64):\n  try: os.close(number) if 'landlock' in os.readlink("
        "f'/proc/self/fd/{number}') else None\n  except OSError: pass",
        "resource.setrlimit(resource.RLIMIT_DATA, (2**20, 2**20))",
    ],
    ids=["closed rules", "no room for private memory"],
)
def test_a_call_that_cannot_be_made_without_trace_is_not_made(job, cell):
    job.run("import mmap, os, resource\nfile = open('/dev/shm/x', 'w+b')\nfile.truncate(2**22)")
    job.run("shared = mmap.mmap(file.fileno(), 2**22)\ndef tell(): shared[0] = 7")
    job.run("def was_told(): return shared[0] == 7")
    job.run(cell)
    with job.serving() as subject:
        with pytest.raises(StudentError):
            subject.call_without_trace("tell")
        assert not subject.call("was_told")


def test_no_call_is_told_what_earlier_ones_took_or_were_lent(job):
    job.run("""
import sys, time
def seen(function):
    started = time.process_time()
    while time.process_time() < started + 0.1: pass
    frame, found = sys._getframe(1), []
    while frame:
        found += [f"{name} {value}" for name, value in frame.f_locals.items()
                  if "seconds" in name]
        frame = frame.f_back
    return sorted(found)
""")
    with job.serving() as subject:
        lent = subject.lend(lambda x: x)
        first, again, last = (subject.call("seen", lent) for _ in range(3))
    assert first == again == last
    with job.serving() as subject:
        assert abs(subject.lend(lambda x: x).id - subject.lend(lambda x: x).id) > 1


def test_a_call_reaches_no_function_that_was_lent_to_another(job):
    job.run("""
from classroom.calls.wire import Handle
def cell(g): return dict(zip(g.__code__.co_freevars, (c.cell_contents for c in g.__closure__)))
def check(function, numbers):
    inner = cell(cell(function)["call"])
    found = []
    for number in numbers:
        try: found.append(inner["self"]._resolve(Handle(number))(3))
        except Exception as error: found.append(type(error).__name__)
    return found
""")
    with job.serving() as subject:
        lent = [subject.lend(lambda x, n=n: n * x) for n in (2, 3, 5)]
        numbers = [one.id for one in lent]
        seen = [subject.call_without_trace("check", one, numbers) for one in lent]
    for place, found in enumerate(seen):
        assert [type(x) for x in found].count(int) == 1 and found[place] == 3 * (2, 3, 5)[place]


def test_when_a_file_was_read_tells_nothing(job):
    job.run("import os\nopen('/tmp/a', 'w').write('x')\nos.utime('/tmp/a', (1, 2))")
    job.run(
        "def seen():\n  found = os.stat('/tmp/a').st_atime\n  open('/tmp/a').read()\n  return found"
    )
    with job.serving() as subject:
        assert [subject.call("seen") for _ in range(2)] == [1.0, 1.0]


def test_a_call_without_trace_can_do_what_a_test_needs(job):
    job.run("""
import pathlib, torch
pathlib.Path("numbers.txt").write_text("5")
large = torch.arange(1e5).share_memory_()
def check(function):
    import colorsys  # the first time
    print("printed", flush=True)
    five = float(pathlib.Path("numbers.txt").read_text())
    x = torch.rand(3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    function(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), five)) and large[7] == 7
    torch.testing.assert_close(function(x), five * x)
    return True
""")
    with job.serving() as subject:
        assert subject.call_without_trace("check", subject.lend(lambda x: 5 * x)) is True
        with pytest.raises(Crashed, match="AssertionError"):
            subject.call_without_trace("check", subject.lend(lambda x: 6 * x))


def test_calls_that_explain_a_failure_share_a_process_and_no_other_call_does(job):
    job.run("calls = []\ndef count():\n  calls.append(1)\n  return len(calls)")
    with job.serving() as subject:
        with subject.together():
            assert [subject.call("count") for _ in range(3)] == [1, 2, 3]
        assert [subject.call("count") for _ in range(2)] == [1, 1]


def test_calls_that_explain_a_failure_tell_later_ones_nothing(job):
    job.run("import os\ndef was_there():\n  return os.path.exists('/tmp/told')")
    job.run("def tell():\n  try: open('/tmp/told', 'w').close()\n  except OSError: pass")
    with job.serving() as subject:
        with subject.together(explains=True):
            subject.call("tell")
            assert not subject.call("was_there")
        assert not subject.call("was_there")
        subject.call("tell")
        assert subject.call("was_there")


def test_a_module_is_one_for_the_calls_of_a_block_where_that_is_asked_for(job):
    job.run("import torch\nclass Counts(torch.nn.Module):\n  calls = 0")
    job.run("def forward(self):\n  self.calls += 1\n  return self.calls\nCounts.forward = forward")
    with job.serving() as subject:
        for one_module, counted in ((True, [1, 2, 3]), (False, [1, 1, 1]), (True, [1, 2, 3])):
            with subject.together(one_module):
                assert [subject.call("Counts", {}, {}) for _ in range(3)] == counted


def test_a_call_that_ends_the_process_it_shares_is_followed_by_one_in_another(job):
    job.run("import os\ncalls = []\ndef count():\n  calls.append(1)\n  return len(calls)")
    job.run("def die(): os._exit(3)\ndef crash(): raise ValueError")
    with job.serving() as subject, subject.together():
        assert subject.call("count") == 1
        with pytest.raises(Crashed):
            subject.call("crash")
        assert subject.call("count") == 2
        with pytest.raises(Died):
            subject.call("die")
        assert [subject.call("count") for _ in range(2)] == [1, 2]


def test_a_process_that_a_call_leaves_is_gone_before_the_next_call(job):
    job.run(_LEAVES)
    with job.serving() as subject:
        before = subject.call("num_processes")
        subject.call("leave")
        assert subject.call("num_processes") == before


def test_each_call_draws_random_numbers_of_its_own(job):
    job.run("import torch\ndef draw(): return torch.rand(7)")
    with job.serving() as subject:
        assert not subject.call("draw").equal(subject.call("draw"))


def test_an_exercise_sees_the_variables_as_they_are_at_its_place(job):
    job.run("def value(): return 2")
    with job.serving() as subject:
        assert subject.call("value") == 2
    job.run("def value(): return 3")
    with job.serving() as subject:
        assert subject.call("value") == 3


def test_errors_are_those_of_a_notebook(job):
    job.run("def crash(x):\n  return x.nothing\ndef thing(): return object()")
    with job.serving() as subject:
        with pytest.raises(Crashed, match="AttributeError.*in line 2: return x.nothing"):
            subject.call("crash", 5)
        with pytest.raises(WrongKind, match="object cannot be passed"):
            subject.call("thing")
        with pytest.raises(NotDefined, match="`crash`: is that its name"):
            subject.call("crahs")


def test_what_is_to_be_done_by_hand_is_not_done_by_torch_there_either(job):
    job.run(
        "def by_hand(x): return 2 * x\n"
        "def by_torch(x):\n  w = x.clone().requires_grad_()\n"
        "  w.square().sum().backward()\n  return w.grad\n"
        "import _thread\n"
        "def in_a_thread(x): return _thread.start_new_thread(by_torch, (x,))"
    )
    with job.serving() as subject:
        assert subject.call_by_hand("by_hand", ONE).equal(2 * ONE)
        assert subject.call("in_a_thread", ONE)
        with pytest.raises(Crashed, match="can't start new thread"):
            subject.call_by_hand("in_a_thread", ONE)
        assert subject.call("by_torch", ONE).equal(2 * ONE)
        with pytest.raises(NotByHand, match="`by_torch` calls torch.autograd.backward"):
            subject.call_by_hand("by_torch", ONE)


def test_a_gradient_may_be_asked_there_of_what_a_lent_function_returned(job):
    job.run("def f(g, x): return g(x).square().sum()")
    with job.serving() as subject:
        triple = subject.lend(lambda x: 3 * x)
        (gradient,) = subject.gradients("f", [triple, ONE], [0], [torch.ones(())])
    assert gradient.equal(6 * ONE)


def test_a_function_that_ends_its_process_costs_that_call_only(job):
    job.run("import os\ndef die(): os._exit(3)\ndef live(): return 5")
    with job.serving() as subject:
        with pytest.raises(Died, match="`die` ended the process"):
            subject.call("die")
        assert subject.call("live") == 5
    assert not job.run("live()").error


def test_code_that_only_says_that_its_time_is_over_is_not_believed(job):
    job.run(
        "import sys\ndef f(): raise sys.modules['classroom.calls.subject'].TooSlow('no time')\n"
        "def live(): return 5"
    )
    with job.serving() as subject:
        with pytest.raises(StudentError, match="no time") as raised:
            subject.call("f")
        assert not isinstance(raised.value, TooSlow)
        assert not subject.was_too_slow
        assert subject.call("live") == 5


@pytest.mark.parametrize(
    "loop",
    [
        "while True: pass",
        "while True:\n    try:\n      while True: pass\n    except BaseException: pass",
        "import time\n  time.sleep(99)",
        "import signal\n  signal.pthread_sigmask(signal.SIG_BLOCK, [14])\n  while True: pass",
    ],
)
def test_an_exercise_that_does_not_end_is_stopped_in_time(launcher, loop):
    with launcher.start_job(Limits(seconds_per_exercise=0.3)) as job:
        job.run(f"def endless():\n  {loop}\ndef live(): return 5")
        started = time.monotonic()
        with job.serving() as subject:
            with pytest.raises(TooSlow, match="compute for 0.3 seconds|may take 1.8 seconds"):
                subject.call("endless")
            with pytest.raises(TooSlow):
                subject.call("live")
        assert time.monotonic() - started < 0.3 + 2 + 1  # its limit, the time to heed, the machine
        with job.serving() as subject:
            assert subject.call("live") == 5


def test_a_lent_function_that_raises_raises_in_the_code_that_calls_it(job):
    job.run("def use(f):\n  try:\n    return f(0)\n  except RuntimeError as e:\n    return str(e)")
    with job.serving() as subject:
        said = subject.call("use", subject.lend(lambda x: 1 // x))
    assert said == "this function cannot compute with 0"


_TOLD = """
import pickle
def told(f):
  found = [repr(f).partition(" at ")[0], f.__name__, f.__qualname__, f.__module__, f.__doc__]
  found += [f.__defaults__, sorted(f.__dict__), f.__code__.co_code, dir(f)]
  for args, named in (((), {}), ((1, 2), {}), ((1,), {"zzz": 1}), (("x",), {})):
    try:
      found.append(f(*args, **named))
    except Exception as e:
      frames, trace = [], e.__traceback__.tb_next
      while trace:
        frames.append(trace.tb_frame.f_code.co_qualname)
        trace = trace.tb_next
      found += [type(e), str(e), frames, e.__cause__, e.__context__]
  try:
    pickle.dumps(f)
  except Exception as e:
    found.append(str(e).partition(" at ")[0])
  return repr(found)
"""


def test_two_lent_functions_that_fail_alike_cannot_be_told_apart(job):
    def right_attention(x, mask=None):
        return x.softmax(dim=-1)

    def wrong_attention(x):
        raise KeyError("the wrong one")

    job.run(_TOLD)
    with job.serving() as subject:
        told = [subject.call("told", subject.lend(f)) for f in (right_attention, wrong_attention)]
    assert told[0] == told[1]
    assert "attention" not in told[0] and "cannot compute" in told[0]


def test_jobs_draw_different_random_numbers(launcher):
    draws = []
    for _ in range(2):
        with launcher.start_job() as job:
            job.run("import torch, numpy, random")
            draws.append(
                shown(job.run("print(torch.rand(1), numpy.random.rand(), random.random())").outputs)
            )
    assert draws[0] != draws[1]


IMPORTS = """\
import groundup
from groundup.core.masks import (
    causal_mask,
)
%time number = 5
def triple(x):
    return 3 * x
def line(): raise ValueError
"""
NOT_HERE = "the course's library is not there when grades count"


def test_an_import_of_the_course_s_library_costs_no_line_below_it(job):
    run = job.run(IMPORTS)
    assert run.error.count(NOT_HERE) == 1
    assert run.error.endswith("; the rest of the cell ran without it")
    assert "number" in shown(run.outputs) or "Wall time" in shown(run.outputs)
    assert not job.run("assert triple(number) == 15").error
    with job.serving() as subject, pytest.raises(Crashed, match="in line 8"):
        subject.call("line")


@pytest.mark.parametrize(
    ("cell", "then"),
    [
        ("import groundup\ngroundup.load()", "; NameError: name 'groundup' is not defined"),
        ("if True:\n    import groundup\nnumber = 5", ""),
        ("def f(): import groundup\nf()\nnumber = 5", ""),
        ("import groundup", ""),
    ],
)
def test_who_needs_the_course_s_library_is_told_that_it_is_not_there(job, cell, then):
    assert job.run(cell).error.endswith(NOT_HERE + then)
    assert job.run("number").error.startswith("NameError")


def test_who_can_do_without_the_course_s_library_does(job):
    assert not job.run(
        "import importlib.util\n"
        "assert importlib.util.find_spec('groundup') is None\n"
        "try:\n    import groundup\nexcept ImportError:\n    groundup = None"
    ).error


FORGED = """
import os, struct, sys
from classroom.calls.wire import pack
def look():
    frame = sys._getframe()
    while frame and "token" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["token"] if frame else ""
def forge():
    message = pack(MESSAGE)
    for name in os.listdir("/proc/self/fd"):
        try:
            os.write(int(name), struct.pack(">Q", len(message)) + message)
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "message",
    [
        "['ran', look(), 'nothing', '', False]",
        "['ran', look(), [], 5, False]",
        "['ran', look(), [], '', 5]",
        "['ran', look(), [{'output_type': 'stream', 'name': 'no', 'text': ''}], '', False]",
        "['ran', look(), [{'output_type': 'script'}], '', False]",
        "['ran', 'unknown', [], '', False]",
        "{'scores': 198}",
        "198",
    ],
)
def test_an_account_of_a_cell_that_is_forged_ends_the_job(job, message):
    with pytest.raises(ProtocolError):
        job.run(FORGED.replace("MESSAGE", message) + "\nforge()\nimport time; time.sleep(9)")
    assert not job.is_alive


def test_a_cell_that_knows_what_to_forge_hurts_itself_alone(job):
    """The test above would pass for any message if no forged one could be taken for a real one."""
    forged = FORGED.replace("MESSAGE", "['ran', look(), [], 'forged', False]")
    assert job.run(forged + "\nforge()").error == "forged"


@pytest.mark.parametrize(
    "message",
    ["['raised', 'Crashed', 2]", "['returned']", "198", "['lent']", "['lent', 'x', [], {}]"],
)
def test_an_answer_that_is_none_ends_the_exercise_only(job, message):
    job.run(FORGED.replace("MESSAGE", message) + "\ndef live(): return 5")
    with job.serving() as subject:
        with pytest.raises(StudentError, match="wrote to the grader"):
            subject.call("forge")
        with pytest.raises(StudentError, match="wrote to the grader"):
            subject.call("live")
        assert subject.broken
    with job.serving() as subject:
        assert subject.call("live") == 5


def test_text_that_no_file_takes_becomes_text(job):
    run = job.run("print('\\ud800')\nraise ValueError('\\ud800')")
    assert str(run).encode()


def test_a_function_of_ours_is_not_computed_for_inputs_of_any_size(job):
    job.run("import torch\ndef use(f): return f(torch.zeros(2**20))")
    with job.serving() as subject, pytest.raises(Crashed, match="at most"):
        subject.call("use", subject.lend(lambda x: x))
    job.run("def use(f): return f(torch.zeros(200, 200, 200, device='meta'))")
    with job.serving() as subject, pytest.raises(Crashed, match="at most"):
        subject.call("use", subject.lend(lambda x: x))


def test_memory_is_counted_over_all_processes(launcher):
    hoard = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(2**27)
        time.sleep(99)
time.sleep(99)
"""
    with launcher.start_job(Limits(memory_bytes=2**28)) as job:
        with pytest.raises(JobDied, match="used more than 256 MiB"):
            job.run(hoard)


def test_pending_signals_are_limited_for_each_job(job):
    flood = "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
    flood += "for _ in range(1000):\n  os.kill(os.getpid(), 40)\n"
    status = "[line.split()[1] for line in open('/proc/self/status') if line.startswith('SigQ')]"
    pending, most = shown(job.run(f"{flood}print(*{status})").outputs).split("/")
    assert int(pending) <= int(most) == 128


def test_sockets_count_as_memory(launcher):
    fill = """
import os, socket
for _ in range(30):
    if os.fork() == 0:
        pairs = []
        while True:
            try:
                pairs.append(socket.socketpair())
                for end in pairs[-1]:
                    end.setblocking(False)
                    end.send(bytes(2**20))
            except OSError:
                pass
import time
time.sleep(10)
"""
    with launcher.start_job(Limits(memory_bytes=2**27)) as job:
        assert not job.run("import socket\na, b = socket.socketpair()\na.send(b'1')").error
        with pytest.raises(JobDied, match="used more than 128 MiB"):
            job.run(fill)


@pytest.mark.parametrize(
    "take",
    [
        "mmap.mmap(-1, 2**20)",
        "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 2**20)",
        "mmap.mmap(-1, 2**20, mmap.MAP_PRIVATE).madvise(21)",  # MADV_PAGEOUT
    ],
)
def test_memory_that_counts_for_no_process_is_refused(job, take):
    assert job.run(f"import mmap, os\n{take}").error.startswith("PermissionError")


def test_a_new_session_and_larger_buffers_are_only_pretended_or_refused(job):
    assert not job.run("import os\nbefore = os.getsid(0)\nif os.fork() == 0:\n  os._exit(0)").error
    told = job.run(
        "import subprocess, sys\n"
        "code = 'import os; print(os.getsid(0), os.getpid())'\n"
        "argv = [sys.executable, '-c', code]\n"
        "out = subprocess.run(argv, start_new_session=True, capture_output=True).stdout\n"
        "session, process = map(int, out.split())\n"
        "print(session == before, session == process)"
    )
    assert shown(told.outputs) == "True False\n", told.error
    larger = "import socket\na, b = socket.socketpair()\n"
    larger += "a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)"
    assert job.run(larger).error.startswith("PermissionError")


def test_processes_that_compute_side_by_side_lower_their_priority_together(job):
    assert shown(job.run("import os\nprint(os.nice(0))").outputs) == "0\n"
    many = """
import os, time
children = []
for _ in range(10):
    children.append(os.fork())
    if children[-1] == 0:
        while True:
            pass
time.sleep(2)
print(*sorted({os.getpriority(os.PRIO_PROCESS, child) for child in children}))
"""
    levels = [int(level) for level in shown(job.run(many).outputs).split()]
    assert min(levels) >= 8  # ten weigh as one at 1.25 to the power of -10.3


def test_what_computes_little_and_waits_long_is_not_too_slow(launcher):
    with launcher.start_job(Limits(seconds_per_exercise=0.3)) as job:
        job.run("import time\ndef waits():\n  time.sleep(0.8)\n  return 5")
        with job.serving() as subject:
            assert subject.call("waits") == 5


def test_a_lent_function_is_held_to_the_time_of_the_exercise(launcher):
    def endless(x):
        while True:
            pass

    with launcher.start_job(Limits(seconds_per_exercise=0.3)) as job:
        job.run("def use(f): return f(2)")
        with job.serving() as subject:
            started = time.process_time()
            with pytest.raises(TooSlow, match="compute for 0.3 seconds|may take 1.8 seconds"):
                subject.call("use", subject.lend(endless))
            assert time.process_time() - started < 1.5


def test_a_lent_function_takes_no_long_input_in_whatever_bytes(job):
    job.run("import torch\ndef use(f, n): return f({'x': [torch.zeros(n, dtype=torch.uint8)]})")
    with job.serving() as subject:
        lent = subject.lend(lambda inputs: len(inputs["x"][0]))
        assert subject.call("use", lent, 256) == 256
        with pytest.raises(Crashed, match="this function takes lengths of at most 256"):
            subject.call("use", lent, 257)


def test_outputs_count_with_their_keys_and_names(job):
    keys = "from IPython.display import display\n"
    keys += "display({f'{n} {1000 * \"k\"}': '' for n in range(500)}, raw=True)"
    run = job.run(keys, most_bytes=10_000)
    assert run.num_bytes < 14_000 and "left out" in str(run.outputs)
    named = job.run("raise type(10**6 * 'N', (Exception,), {})()", most_bytes=10_000)
    assert named.num_bytes < 14_000
