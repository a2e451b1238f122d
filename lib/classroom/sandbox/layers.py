"""What code from outside may see, and whether this machine can enforce it.

Two layers enclose a submission. Bubblewrap gives the zygote a file system of allowed paths, without
a network and without other processes. In it, each submission gets namespaces of its own, private
folders in memory, Landlock, a filter of system calls and resource limits.
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

from classroom.sandbox.control_groups import JobGroup, NotLent, end_strays, lent_group
from classroom.sandbox.inside import linux
from classroom.sandbox.inside.terms import HIDDEN_PACKAGES

NOBODY = 65534
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/localtime")
_PACKAGE = Path(__file__).parents[1]
# What runs inside, and what it imports: the contracts in pyproject.toml keep the rest out of both.
_MOUNTED = ("__init__.py", "limits.py", "calls", "sandbox/__init__.py", "sandbox/inside")
# Instead of this machine's users and names: one user, and localhost.
_ETC = ("/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd")
_EPERM, _ENOSYS = 1, 38
_PROBE_SECONDS = 20
_SECONDS_TO_END = 2
# Unix, and two that lead nowhere without a network. Others reach Linux itself, or a host.
_SOCKET_FAMILIES = {1, 2, 10}
_MAX_FAMILY = 64
# SO_SNDBUF and SO_RCVBUF, and the two by which root goes beyond the limit.
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8, 32, 33)

# MAP_SHARED | MAP_ANONYMOUS: what is written there and given back by MADV_DONTNEED counts for no
# process, and stays. Nor does what MADV_PAGEOUT moves to a disk.
_SHARED_MEMORY, _MADV_PAGEOUT = 0x21, 21

# Settings that deny ordinary users namespaces where they have this value, and the remedy.
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

# Of no use to a program that computes, or known to have let programs out of sandboxes.
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
    memfd_create memfd_secret vmsplice shmget shmat msgget semget mq_open
    vhangup lookup_dcookie nfsservctl
    seccomp landlock_create_ruleset landlock_add_rule
    mknod mknodat
""".split()

# What changes a file or another process, or makes a new one, whose number the next one would tell.
_LEAVING_TRACES = """
    creat mkdir mkdirat rmdir unlink unlinkat link linkat symlink symlinkat
    rename renameat renameat2 truncate ftruncate fallocate flock
    chmod fchmod fchmodat chown fchown lchown fchownat
    utime utimes utimensat futimesat
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
    fork vfork clone
    kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal
    setpriority ioprio_set sched_setaffinity sched_setscheduler sched_setparam sched_setattr
    socket socketpair
""".split()
# fchmodat2, setxattrat, removexattrat and file_setattr: the same everywhere, and newer than many a
# libseccomp.
_LEAVING_TRACES_BY_NUMBER = (452, 463, 466, 469)


@dataclass(frozen=True)
class Layer:
    """One kind of restriction on a submission.

    Attributes:
        name: Such as `Landlock`.
        keeps: What it keeps out of reach, in words.
        active: Whether this machine offers it.
        why_not: Why it does not, in a sentence.
        is_required: Whether sealed grading refuses to start without it.

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
    """Try every layer, where and how it will be used."""
    outside = _try_bubblewrap()
    inside = _try_inside(with_bubblewrap=not outside)
    filter_ = inside["seccomp"] or _why_no_filter()
    found = [
        ("bubblewrap", "files, network and processes of this machine out of sight", outside),
        ("namespaces", "submissions out of each other's sight", _explained(inside["namespaces"])),
        ("Landlock", "hidden files out of reach, even if one becomes visible", inside["landlock"]),
        ("seccomp", "system calls that no exercise needs out of reach", filter_),
    ]
    counted = "memory, processes and CPU time of a job within limits that the kernel enforces"
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
            "this machine cannot isolate a submission: "
            + "; ".join(f"{layer.name} is not active ({layer.why_not})" for layer in lacking)
        )


def require_out_of_sight(*paths: Path) -> None:
    """Refuse folders that a submission could read, such as those of a course in `/usr/src`.

    Raises:
        TooWeak: If one lies in what is mounted for submissions.

    """
    places = {place: os.path.realpath(place) for place in readable()}
    for path in map(os.path.realpath, paths):
        for place, real in places.items():
            if _is_under(path, real):
                raise TooWeak(
                    f"submissions could read {path}, because they must be able to read {place}: "
                    "move the course, or its Python, to another folder"
                )


def readable() -> list[str]:
    """Return what a submission may read: the system, Python, and what answers a check with it."""
    folders = [sys.base_prefix, sys.prefix, *(str(_PACKAGE / part) for part in _MOUNTED)]
    places = [*_SYSTEM, *_SETTINGS, *itertools.chain.from_iterable(map(for_everybody, folders))]
    return [*filter(os.path.lexists, dict.fromkeys(places)), *_ETC]


def for_everybody(path: str) -> list[str]:
    """Return a file or folder, or what is in it if root keeps it from the user that reads it."""
    if os.geteuid() == 0 and os.path.isdir(path) and os.stat(path).st_mode & 0o5 != 0o5:
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return [path]


def command(argv: Sequence[str]) -> list[str]:
    """Return a command that runs another one in a file system of allowed places.

    Root starts it by way of a first bubblewrap, which mounts the paths where an ordinary user can
    reach them, and then becomes that user.
    """
    sandbox = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    # Whoever grades and wherever, so that these are the user and the machine of its /etc.
    sandbox += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "localhost"]
    # First, because Python may have been installed below it.
    sandbox += ["--perms", "1777", "--tmpfs", "/tmp", *_places()]
    sandbox += ["--proc", "/proc", "--dev", "/dev"]
    # Mounted on top of what they hide, and read-only, since a zygote serves many submissions.
    for place in _hidden():
        seen = [path for path in readable() if _is_under(path, place)]
        binds = [option for path in seen for option in ("--ro-bind", path, path)]
        sandbox += ["--tmpfs", place, *binds, "--remount-ro", place]
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
    """Return the environment variables of a submission: none of ours."""
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
        # Even for `torch.set_num_threads(2)`: a fork would wait for ever for threads it lacks.
        "OMP_THREAD_LIMIT": "1",
        "MKL_NUM_THREADS": "1",
    }


def system_call_filter() -> bytes:
    """Return the filter of system calls as a program for Linux; empty if there is none."""
    if _why_no_filter():
        return b""
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in _DENIED:
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), name)
    new_namespaces = linux.ALL_NAMESPACES
    for flag in (1 << bit for bit in range(32) if new_namespaces >> bit & 1):
        has_flag = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag)
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), "clone", has_flag)
    for family in set(range(_MAX_FAMILY)) - _SOCKET_FAMILIES:
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
    beyond = pyseccomp.Arg(0, pyseccomp.GE, _MAX_FAMILY)
    _add_rule(rules, pyseccomp.ERRNO(_EPERM), "socket", beyond)
    # A new session would be scheduled like another user's. It seems to work, so that what asks for
    # one goes on.
    _add_rule(rules, pyseccomp.ERRNO(0), "setsid")
    # Each may fill buffers that count for no process: not with more than by default.
    for option in _BUFFER_SIZES:
        of_a_socket = pyseccomp.Arg(1, pyseccomp.EQ, _SOL_SOCKET)
        its_size = pyseccomp.Arg(2, pyseccomp.EQ, option)
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), "setsockopt", of_a_socket, its_size)
    shared = pyseccomp.Arg(3, pyseccomp.MASKED_EQ, _SHARED_MEMORY, _SHARED_MEMORY)
    _add_rule(rules, pyseccomp.ERRNO(_EPERM), "mmap", shared)
    to_disk = pyseccomp.Arg(2, pyseccomp.EQ, _MADV_PAGEOUT)
    _add_rule(rules, pyseccomp.ERRNO(_EPERM), "madvise", to_disk)
    # Its flags lie in memory, where a filter cannot look: libraries then fall back on clone.
    _add_rule(rules, pyseccomp.ERRNO(_ENOSYS), "clone3")
    return _exported(rules)


def traceless_filter() -> bytes:
    """Return a further filter, for a call after which all must be as before; empty if none."""
    if _why_no_filter():
        return b""
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in (*_LEAVING_TRACES, *_LEAVING_TRACES_BY_NUMBER):
        _add_rule(rules, pyseccomp.ERRNO(_EPERM), name)
    for name, flags in (("open", 1), ("openat", 2)):
        for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
            has_flag = pyseccomp.Arg(flags, pyseccomp.MASKED_EQ, flag, flag)
            _add_rule(rules, pyseccomp.ERRNO(_EPERM), name, has_flag)
    of_another = pyseccomp.Arg(0, pyseccomp.NE, 0)
    _add_rule(rules, pyseccomp.ERRNO(_EPERM), "prlimit64", of_another)
    _add_rule(rules, pyseccomp.ERRNO(_ENOSYS), "openat2")
    return _exported(rules)


def _exported(rules) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _add_rule(rules, action: int, name: str | int, *conditions) -> None:
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
    """Return bubblewrap's options for what can be read, with the folders above it."""
    options: list[str] = []
    parents: list[str] = []
    for place in readable():
        if os.path.islink(place) and place in _SYSTEM:
            options += ["--symlink", os.readlink(place), place]
            continue
        parents += [str(p) for p in reversed(Path(place).parents) if str(p) != "/"]
        ours = str(_PACKAGE / "sandbox/inside" / place[1:]) if place in _ETC else place
        options += ["--ro-bind", ours, place]
    lead = [
        option
        for parent in dict.fromkeys(parents)
        if not any(_is_under(parent, place) for place in _SYSTEM)
        for option in ("--perms", "0755", "--dir", parent)
    ]
    return lead + options


def _hidden() -> list[str]:
    """Return what of the course would be seen, because it is installed with Python."""
    folders = [*site.getsitepackages(), str(_PACKAGE.parent)]
    candidates = [Path(f, name) for f in folders for name in (*HIDDEN_PACKAGES, _PACKAGE.name)]
    seen = [place for place in readable() if place not in _SETTINGS]
    return [
        str(candidate)
        for candidate in dict.fromkeys(candidates)
        if candidate.is_dir() and any(_is_under(str(candidate), place) for place in seen)
    ]


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _try_bubblewrap() -> str:
    needed = {"bwrap": "bubblewrap", "setpriv": "util-linux"}  # the second one by root alone
    for program in needed if os.geteuid() == 0 else ("bwrap",):
        if shutil.which(program) is None:
            return f"there is no `{program}`: install the package {needed[program]}"
    return _explained(_run(command([sys.executable, "-I", "-c", "print('{}')"]))[1])


def _explained(why_not: str) -> str:
    """Add the setting that denies us namespaces, if there is one, and how to change it."""
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
    argv = [sys.executable, "-I", str(Path(linux.__file__))]
    found, why_not = _run(command(argv) if with_bubblewrap else argv)
    return found or dict.fromkeys(("namespaces", "landlock", "seccomp"), why_not)


def _try_control_groups() -> str:
    """Move a process into a group, as a job will be, and end it with the group."""
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
