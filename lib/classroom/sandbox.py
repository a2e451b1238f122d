"""What code from outside may see and use, and whether this machine can keep it to that.

Two layers lie around each other. Bubblewrap gives a whole pool worker a file system of allowed
places, without a network and without other processes. In it, each submission gets namespaces of
its own, private folders in memory, Landlock, a filter of system calls and resource limits.
"""

import functools
import itertools
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from classroom import kernel
from classroom.control_groups import JobGroup, NotLent, end_strays, lent_group
from classroom.limits import SECONDS_PER_EXERCISE

NOBODY = 65534
TOO_MANY_THREADS, TOO_LITTLE_MEMORY = 113, 114
"""With these a process ends after a cell that has left nothing for the cells after it."""

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/localtime")
# The reference library can do what the exercises ask for.
HIDDEN_PACKAGES = ("groundup",)
_EPERM, _ENOSYS = 1, 38
_PROBE_SECONDS = 20
_SECONDS_TO_END = 2
_MAX_OUTPUT_BYTES = 2**21
# Unix, and two that lead nowhere without a network. Others lead to the kernel, or to a host.
_SOCKET_FAMILIES = {1, 2, 10}
_MAX_FAMILY = 64

# What keeps namespaces from ordinary users where it has this value, and what helps.
_SWITCHES = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor keeps namespaces from ordinary users; give bubblewrap a profile that allows "
        "them (“Grading a class” in the book shows one), or allow them to all programs with "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "namespaces are kept from ordinary users; `sysctl kernel.unprivileged_userns_clone=1` "
        "allows them",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "namespaces are switched off; `sysctl user.max_user_namespaces=10000` allows them",
    ),
)
_MARKS_OF_A_CONTAINER = ("/.dockerenv", "/run/.containerenv")

# What a program that computes has no use for, and what has let programs out of sandboxes.
_DENIED = """
    mount umount2 pivot_root move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    chroot unshare setns
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
    keyctl add_key request_key
    init_module finit_module delete_module kexec_load kexec_file_load reboot
    swapon swapoff quotactl quotactl_fd acct syslog personality
    settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
    open_by_handle_at name_to_handle_at fanotify_init
    iopl ioperm modify_ldt
    mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node
    memfd_create memfd_secret shmget shmat msgget semget mq_open
    vhangup lookup_dcookie nfsservctl
    seccomp landlock_create_ruleset
""".split()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one submission may use."""

    seconds_per_cell: float = 60.0
    """Wall time of a cell; then it is interrupted."""

    seconds_per_exercise: float = SECONDS_PER_EXERCISE
    """Wall time of all calls that the checks of one exercise make."""

    seconds_per_submission: float = 300.0
    """Wall time of everything together."""

    memory_bytes: int = 2 * 2**30
    """Memory of all its processes together, beyond what Python and torch take."""

    processes: int = 64
    """Processes and threads at a time."""

    file_bytes: int = 64 * 2**20
    """Size of a file, and of all files in each of its two private folders."""

    output_bytes: int = 2**20
    """What its cells may print and plot, each."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.output_bytes > _MAX_OUTPUT_BYTES:
            raise ValueError(
                f"output_bytes must be at most {_MAX_OUTPUT_BYTES}, got {self.output_bytes}"
            )


@dataclass(frozen=True)
class Layer:
    """One way of locking a submission in.

    Attributes:
        name: Such as `Landlock`.
        keeps: What it keeps from happening, in words.
        active: Whether this machine offers it.
        why_not: In a sentence, if it does not.
        is_required: Whether sealed grading refuses to go on without it.

    """

    name: str
    keeps: str
    active: bool
    why_not: str = ""
    is_required: bool = True


class TooWeak(ValueError):
    """This machine cannot seal a submission in."""


@functools.cache
def probe() -> tuple[Layer, ...]:
    """Try every layer out, where and how it will be used."""
    outside = _try_bubblewrap()
    inside = _try_inside(with_bubblewrap=not outside)
    filter_ = inside["seccomp"] or _why_no_filter()
    found = [
        ("bubblewrap", "files, network and processes of this machine out of sight", outside),
        ("namespaces", "submissions out of each other's sight", _explained(inside["namespaces"])),
        ("Landlock", "files out of reach that should be out of sight", inside["landlock"]),
        ("seccomp", "system calls away that no exercise needs", filter_),
    ]
    counted = "memory and processes of a job within what the kernel itself counts"
    groups = _try_control_groups()
    return (
        *(Layer(name, keeps, not why, why) for name, keeps, why in found),
        Layer("control groups", counted, not groups, groups, is_required=False),
    )


def require(layers: Sequence[Layer], allow_weaker: bool = False) -> None:
    """Refuse to go on without a layer.

    Args:
        layers: What `probe` found.
        allow_weaker: Go on all the same.

    Raises:
        TooWeak: If a required layer is not active.

    """
    lacking = [layer for layer in layers if layer.is_required and not layer.active]
    if lacking and not allow_weaker:
        raise TooWeak(
            "this machine cannot seal a submission in: "
            + "; ".join(f"{layer.name} is not active ({layer.why_not})" for layer in lacking)
        )


def readable() -> list[str]:
    """Return the places that a submission may read: the system, Python, and its worker's code."""
    ours = (sys.base_prefix, sys.prefix, str(Path(__file__).parent))
    places = [*_SYSTEM, *_SETTINGS, *itertools.chain.from_iterable(map(for_everybody, ours))]
    return [place for place in dict.fromkeys(places) if os.path.lexists(place)]


def for_everybody(folder: str) -> list[str]:
    """Return a folder, or what is in it if root keeps it from the user that it is read as."""
    if os.geteuid() == 0 and os.stat(folder).st_mode & 0o5 != 0o5:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return [folder]


def command(argv: Sequence[str]) -> list[str]:
    """Return a command that runs another one in a file system of allowed places.

    It is the same for root and for an ordinary user, because a first bubblewrap gives up root:
    it collects the places where an ordinary user can reach them, and becomes that user.
    """
    sandbox = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    # First, because Python may have been installed below it.
    sandbox += ["--perms", "1777", "--tmpfs", "/tmp", *_places()]
    sandbox += ["--proc", "/proc", "--dev", "/dev"]
    # What hides something lies on top of it, and nothing can be written where others would see it.
    for place in _hidden():
        sandbox += ["--tmpfs", place, "--remount-ro", place]
    sandbox += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    sandbox += ["--cap-drop", "ALL", "--", *argv]
    if os.geteuid() != 0:
        return sandbox
    collect = ["bwrap", "--die-with-parent", *_places(), "--bind", "/proc", "/proc"]
    collect += ["--dev", "/dev", "--perms", "0755", "--dir", "/tmp", "--chdir", "/"]
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    become += ["--bounding-set=-all", "--inh-caps=-all", "--"]
    return [*collect, "--", *become, *sandbox]


def environment() -> dict[str, str]:
    """Return the variables that a submission sees: nothing of ours."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "HOME": "/tmp",
        "USER": "student",
        "LOGNAME": "student",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "IPYTHONDIR": "/tmp/.ipython",
        "MPLCONFIGDIR": "/tmp/.matplotlib",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MALLOC_ARENA_MAX": "2",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def system_call_filter() -> bytes:
    """Return the filter of system calls as a program for the kernel; empty if there is none."""
    if _why_no_filter():
        return b""
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in _DENIED:
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), name)
    new_namespaces = kernel.ALL_NAMESPACES
    for flag in (1 << bit for bit in range(32) if new_namespaces >> bit & 1):
        has_flag = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag)
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), "clone", has_flag)
    for family in set(range(_MAX_FAMILY)) - _SOCKET_FAMILIES:
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
    beyond = pyseccomp.Arg(0, pyseccomp.GE, _MAX_FAMILY)
    _add_rule(rules, pyseccomp.ERRNO(_EPERM), "socket", beyond)
    # Its flags lie in memory, where a filter cannot look: libraries then fall back on clone.
    _add_rule(rules, pyseccomp.ERRNO(_ENOSYS), "clone3")
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _add_rule(rules, action: int, name: str, *conditions) -> None:
    try:
        rules.add_rule(action, name, *conditions)
    except (OSError, ValueError):
        pass  # not every architecture has, and not every libseccomp knows, every system call


def _why_no_filter() -> str:
    try:
        import pyseccomp  # noqa: F401
    except (ImportError, RuntimeError) as error:
        return f"{error}: install libseccomp and pyseccomp"
    return ""


def _places() -> list[str]:
    """Return bubblewrap's options for what can be read, with folders that lead there."""
    options: list[str] = []
    parents: list[str] = []
    for place in readable():
        if os.path.islink(place) and place in _SYSTEM:
            options += ["--symlink", os.readlink(place), place]
            continue
        parents += [str(p) for p in reversed(Path(place).parents) if str(p) != "/"]
        options += ["--ro-bind", place, place]
    lead = [
        option
        for parent in dict.fromkeys(parents)
        if not any(_is_under(parent, place) for place in _SYSTEM)
        for option in ("--perms", "0755", "--dir", parent)
    ]
    return lead + options


def _hidden() -> list[str]:
    folders = [*site.getsitepackages(), str(Path(__file__).parents[1])]
    candidates = [Path(f, name) for f in folders for name in HIDDEN_PACKAGES]
    seen = [place for place in readable() if place not in _SETTINGS]
    return [
        str(candidate)
        for candidate in dict.fromkeys(candidates)
        if candidate.is_dir() and any(_is_under(str(candidate), place) for place in seen)
    ]


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _try_bubblewrap() -> str:
    for program in ("bwrap", "setpriv") if os.geteuid() == 0 else ("bwrap",):
        if shutil.which(program) is None:
            return f"there is no `{program}`: install the package bubblewrap"
    return _explained(_run(command([sys.executable, "-I", "-c", "print('{}')"]))[1])


def _explained(why_not: str) -> str:
    """Add what keeps namespaces from us, if that can be told, and what to do about it."""
    if not why_not:
        return ""
    for switch, off, means in _SWITCHES:
        try:
            is_off = Path(switch).read_text().strip() == off
        except OSError:
            is_off = False
        if is_off:
            return f"{why_not}: {means}"
    if any(os.path.exists(mark) for mark in _MARKS_OF_A_CONTAINER):
        return f"{why_not}: this is a container: the course's compose.yaml has what it needs"
    return why_not


def _try_inside(with_bubblewrap: bool) -> dict[str, str]:
    argv = [sys.executable, "-I", str(Path(kernel.__file__))]
    found, why_not = _run(command(argv) if with_bubblewrap else argv)
    return found or dict.fromkeys(("namespaces", "landlock", "seccomp"), why_not)


def _try_control_groups() -> str:
    """Put a process into a group, as a job will be, and end it with the group."""
    try:
        parent = lent_group()
        end_strays(parent)
        group = JobGroup(parent, 2**30, 10)
    except (NotLent, OSError) as error:
        return str(error)
    sleeper = subprocess.Popen(["sleep", str(_PROBE_SECONDS)], env=environment())
    handle = os.pidfd_open(sleeper.pid)
    try:
        group.add(handle)
        group.remove()
        ended = sleeper.wait(_SECONDS_TO_END)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        os.close(handle)
        sleeper.kill()
        sleeper.wait()
    return "" if ended < 0 else "a process was not ended with its group"


def _run(argv: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return what a command prints as JSON, and else why it prints nothing."""
    try:
        done = subprocess.run(
            argv, env=environment(), capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, str(error)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        return {}, last[0]
    return json.loads(done.stdout), ""
