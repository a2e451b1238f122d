"""Namespaces and mounts, each tried in a child process; the rest is tried where it is used."""

import os
import traceback

import pytest

from classroom.sandbox.inside import linux


@pytest.fixture
def in_a_namespace(sealed):
    """Run a function in a process that has mounts of its own; return what it returns as text."""

    def run(function):
        reading, writing = os.pipe()
        outer = os.fork()
        if outer == 0:
            try:
                linux.enter_namespaces()
                inner = os.fork()  # the first process of the new process namespace
                if inner == 0:
                    linux.keep_mounts_private()
                    os.write(writing, str(function()).encode())
                else:
                    os.waitpid(inner, 0)
            except BaseException:
                os.write(writing, traceback.format_exc().encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading) as answer:
            said = answer.read()
        os.waitpid(outer, 0)
        return said

    return run


@pytest.fixture
def place(tmp_path):
    """A folder with a secret, and with a Python that was installed in it."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "venv" / "lib").mkdir(parents=True)
    (tmp_path / "venv" / "lib" / "torch.py").write_text("torch")
    (tmp_path / "settings.cfg").write_text("settings")
    return tmp_path


def test_a_folder_in_memory_hides_what_was_there(in_a_namespace, place):
    def look():
        linux.mount_memory(str(place), 2**20, 100)
        (place / "own.txt").write_text("own")
        return sorted(os.listdir(place))

    assert in_a_namespace(look) == "['own.txt']"
    assert sorted(os.listdir(place)) == ["secret.txt", "settings.cfg", "venv"]


def test_what_is_needed_below_it_is_still_seen(in_a_namespace, place):
    """A Python below /tmp is as good as any other."""

    def look():
        seen = [place / "venv", place / "venv" / "lib", place / "settings.cfg", "/usr"]
        seen.append(place / "gone.log")  # when the list was made, it was there
        linux.mount_memory(str(place), 2**20, 100, map(str, seen))
        files = [place / "venv" / "lib" / "torch.py", place / "settings.cfg"]
        return [file.read_text() for file in files], sorted(os.listdir(place))

    assert in_a_namespace(look) == "(['torch', 'settings'], ['settings.cfg', 'venv'])"


def test_it_holds_no_more_than_it_may(in_a_namespace, place):
    def fill():
        linux.mount_memory(str(place), 2**16, 100)
        try:
            (place / "large").write_bytes(bytes(2**17))
        except OSError as error:
            return error.strerror

    assert in_a_namespace(fill) == "No space left on device"
