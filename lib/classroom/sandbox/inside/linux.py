"""The system calls of Linux by which a process restricts itself.

Namespaces, mounts, capabilities, Landlock and seccomp have no functions in Python's library. Which
of them to use, and for what, is decided elsewhere.
"""

import ctypes
import json
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
ALL_NAMESPACES = 0x0002_0000 | 0x7E00_0000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_NOATIME = 2, 4, 8, 1024
_READ_AND_WRITE, _ANONYMOUS_FIXED = 3, 0x32  # the latter private
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")

# Landlock's numbers are the same on every architecture.
_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ABI_1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def _checked(status: int, what: str) -> int:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return status


def _prctl(option: int, *args: int | bytes) -> None:
    values = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in args]
    values += [ctypes.c_ulong(0)] * (4 - len(values))
    _checked(_libc.prctl(option, *values), f"prctl {option}")


def enter_namespaces(flags: int = ALL_NAMESPACES) -> None:
    """Leave the namespaces of this process for new ones, in which it is the same user.

    The process must have one thread. The process namespace starts with the next child.

    Args:
        flags: Which; `CLONE_NEWUSER` must be among them.

    Raises:
        OSError: If the kernel refuses.

    """
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(flags), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def keep_mounts_private() -> None:
    """Keep mounts of this process out of other mount namespaces."""
    _checked(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")


def mount_memory(
    target: str, num_bytes: int, num_files: int, still_seen: Iterable[str] = ()
) -> None:
    """Mount a folder that lives in memory, for this user alone; `/proc` must be there.

    Args:
        target: Where; what was there is hidden.
        num_bytes: What it can hold.
        num_files: How many files it can hold.
        still_seen: Files and folders to keep visible, such as a Python that is installed below
            `target`; those elsewhere, and those that no longer exist, are ignored.

    """
    below = sorted(p for p in still_seen if p.startswith(f"{target}/") and os.path.lexists(p))
    places = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in below}
    options = f"size={num_bytes},nr_inodes={num_files},mode=700".encode()
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOATIME  # when a file was read tells nobody
    _checked(_libc.mount(b"tmpfs", target.encode(), b"tmpfs", flags, options), f"mount {target}")
    for path, place in places.items():
        if not os.path.lexists(path):  # or else it lies in one of those before it
            source = f"/proc/self/fd/{place}"
            _make_mount_point(path, os.path.isdir(source))
            flags = _MS_BIND | _MS_REC
            _checked(_libc.mount(source.encode(), path.encode(), None, flags, None), f"bind {path}")
        os.close(place)


def _make_mount_point(path: str, for_a_folder: bool) -> None:
    """Create a mount point."""
    os.makedirs(path if for_a_folder else os.path.dirname(path), exist_ok=True)
    if not for_a_folder:
        Path(path).touch()


def mount_processes(target: str = "/proc") -> None:
    """Mount the table of the processes of this process namespace."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _checked(_libc.mount(b"proc", target.encode(), b"proc", flags, None), f"mount {target}")


def set_dumpable(is_dumpable: bool) -> None:
    """Set whether processes of the same user may read the memory of this one."""
    _prctl(_PR_SET_DUMPABLE, int(is_dumpable))


def end_with_parent() -> None:
    """Let Linux end this process when the process that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parents have ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def give_up_privileges() -> None:
    """Drop all capabilities, also those of programs that this process executes."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(int(_LAST_CAPABILITY.read_text()) + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) < 0:
            break  # without CAP_SETPCAP the bounding set cannot be changed
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def landlock_abi() -> int:
    """Return the version of Landlock that this Linux has, 0 if it has none."""
    found = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    return max(found, 0)


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Restrict this process and its children to these files.

    Where Linux is new enough, TCP, and signals and abstract sockets to other processes, are denied
    too. Call `give_up_privileges` first.

    Args:
        readable: Files and folders to read and execute from; missing ones are ignored.
        writable: Files and folders that may be changed as well.

    Raises:
        OSError: If the kernel refuses.

    """
    rules, rights = _new_rules()
    try:
        for paths, allowed in ((readable, _READ), (writable, rights & ~_IOCTL_DEV)):
            for path in paths:
                _allow(rules, path, allowed)
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "Landlock")
    finally:
        os.close(rules)


def rules_against_writing() -> int:
    """Make rules for `leave_no_trace` while that is still allowed; return their descriptor."""
    return _new_rules(but=_READ)[0]


def _new_rules(but: int = 0) -> tuple[int, int]:
    """Return the descriptor of rules that allow nothing yet, and the rights that they govern."""
    abi = landlock_abi()
    rights = _ABI_1 & ~but
    rights |= _REFER if abi >= 2 else 0
    rights |= _TRUNCATE if abi >= 3 else 0
    rights |= _IOCTL_DEV if abi >= 5 else 0
    network = _BIND_AND_CONNECT_TCP if abi >= 4 else 0
    scope = _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0
    attributes = struct.pack("QQQ", rights, network, scope)
    size = ctypes.c_size_t(8 if abi < 4 else 16 if abi < 6 else 24)
    return _checked(_libc.syscall(_LANDLOCK_CREATE, attributes, size, 0), "Landlock"), rights


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= _FILE_ONLY
        rule = struct.pack("=Qi", allowed, place)
        _checked(_libc.syscall(_LANDLOCK_ADD_RULE, rules, 1, rule, 0), f"Landlock, {path}")
    finally:
        os.close(place)


def filter_system_calls(program: bytes) -> None:
    """Filter all further system calls of this process and its children.

    Args:
        program: Instructions of the kernel's packet filter, 8 bytes each.

    Raises:
        OSError: If the kernel refuses.

    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_)


def leave_no_trace(program: bytes, rules: int, keep: int) -> None:
    """Keep this process from changing anything that a later fork of its parent would find.

    Files that are open already are closed, the standard ones too, and memory that it shares becomes
    its own. Under Landlock's rules of its own it cannot reach open pipes of other processes either.

    Args:
        program: As in `filter_system_calls`; empty for none.
        rules: The descriptor of `rules_against_writing`; -1 for none.
        keep: The descriptor that stays open.

    Raises:
        OSError: If the kernel refuses, if code from outside has closed a descriptor, or if there is
            a second thread, which all of this would not bind.

    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError("a call without trace must have one thread")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    if rules >= 0:
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "Landlock")
    last = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    os.closerange(3, keep)
    os.closerange(keep + 1, last)
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        addresses, rights, *_ = line.split()
        if rights.endswith(b"s"):
            start, end = (int(address, 16) for address in addresses.split(b"-"))
            content = ctypes.string_at(start, end - start) if rights.startswith(b"r") else b""
            where, size = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
            offset = ctypes.c_long(0)
            if _libc.mmap(where, size, _READ_AND_WRITE, _ANONYMOUS_FIXED, -1, offset) == -1:
                raise OSError(ctypes.get_errno(), "shared memory cannot be made private")
            ctypes.memmove(start, content, len(content))
    if program:
        filter_system_calls(program)


def limit(what: int, value: int) -> None:
    """Set a resource limit, at most the hard limit in force."""
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def try_out() -> dict[str, str]:
    """Try each kind of restriction in a fork; return why it fails, empty if it works."""
    allow_everything = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    return {
        "namespaces": _tried(_try_namespaces),
        "landlock": _tried(_try_landlock),
        "seccomp": _tried(lambda: filter_system_calls(allow_everything)),
    }


def _try_namespaces() -> None:
    enter_namespaces()
    child = os.fork()
    if child == 0:
        try:
            keep_mounts_private()
            mount_memory("/tmp", 2**20, 100)
            mount_processes()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number != 0:
        raise OSError(number, f"mount in a namespace of its own: {os.strerror(number)}")


def _try_landlock() -> None:
    if not landlock_abi():
        raise OSError("this kernel has no Landlock, or it is not switched on")
    give_up_privileges()
    restrict_files(["/"], [])


def _tried(attempt: Callable[[], None]) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
            os.write(writing, b"ok")
        except BaseException as error:
            os.write(writing, f"no: {error}".encode()[:500])
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return "" if said == "ok" else said.removeprefix("no: ") or "the process died"


if __name__ == "__main__":
    print(json.dumps(try_out()))
