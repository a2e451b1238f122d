"""What the sandbox shows and forbids, seen from inside, by root and by an ordinary user."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from classroom.__main__ import main
from classroom.sandbox import layers as sandbox
from classroom.sandbox.inside import linux
from classroom.sandbox.layers import Layer, TooWeak, probe, require, require_out_of_sight

ROOT = Path(__file__).parents[3]
ACTIVE = Layer("bubblewrap", "files out of sight", True)
LACKING = Layer("Landlock", "files out of reach", False, "the kernel has none")
UNNEEDED = Layer("control groups", "memory", False, "it is not mounted", is_required=False)


@pytest.fixture
def inside(sealed):
    """Run Python code in the sandbox and return what it prints."""

    def run(code):
        done = subprocess.run(
            sandbox.command([sys.executable, "-I", "-c", code]),
            env=sandbox.environment(),
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_python_that_only_root_may_enter_is_shown_by_its_parts(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    tmp_path.chmod(0o755)
    assert str(tmp_path) in sandbox.readable()
    tmp_path.chmod(0o700)
    shown = tmp_path / "lib" if os.geteuid() == 0 else tmp_path
    assert {str(shown)} == {p for p in sandbox.readable() if p.startswith(str(tmp_path))}


def test_a_course_that_submissions_could_read_is_refused(monkeypatch, tmp_path, capsys):
    (tmp_path / "course" / "exercises").mkdir(parents=True)
    require_out_of_sight(tmp_path / "course")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(TooWeak, match=f"could read {tmp_path}/course, because"):
        require_out_of_sight(tmp_path / "course")
    assert main(["grade", "01_attention", "--root", str(tmp_path / "course")]) == 2
    assert f"could read {tmp_path}/course" in capsys.readouterr().err


def test_a_link_to_a_course_that_submissions_could_read_is_refused(monkeypatch, tmp_path):
    (tmp_path / "python" / "course").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "python" / "course")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    with pytest.raises(TooWeak, match="move the course"):
        require_out_of_sight(tmp_path / "link")


def test_a_lacking_layer_is_refused_with_its_reason():
    with pytest.raises(TooWeak, match=r"Landlock is not active \(the kernel has none\)"):
        require([ACTIVE, LACKING])


def test_a_lacking_layer_is_accepted_when_told_so():
    require([ACTIVE, LACKING], allow_weaker=True)


def test_a_layer_that_is_not_required_may_lack():
    require([ACTIVE, UNNEEDED])


def add_programs(folder, said):
    """Add a bubblewrap that fails and says why, and the program by which root calls it."""
    as_another = 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"'
    for name, lines in (("bwrap", f"echo '{said}' >&2\nexit 1"), ("setpriv", as_another)):
        (folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (folder / name).chmod(0o755)


def test_a_layer_that_does_not_work_is_probed_as_lacking(monkeypatch, tmp_path):
    there = {layer.name: layer for layer in probe()}
    add_programs(tmp_path, "bwrap: not permitted")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sandbox, "environment", lambda: {"PATH": os.environ["PATH"]})
    layers = {layer.name: layer for layer in probe.__wrapped__()}
    assert not layers["bubblewrap"].active
    assert "not permitted" in layers["bubblewrap"].why_not
    assert layers["seccomp"] == there["seccomp"]


@pytest.fixture
def without_namespaces(monkeypatch, tmp_path):
    """Let bubblewrap fail as it does where the kernel refuses; return where the switches lie."""
    add_programs(tmp_path, "bwrap: no permissions")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setenv("PATH", path["PATH"])
    monkeypatch.setattr(sandbox, "environment", lambda: path)
    switches = [(str(tmp_path / Path(p).name), *rest) for p, *rest in sandbox._SWITCHES]
    monkeypatch.setattr(sandbox, "_SWITCHES", switches)
    monkeypatch.setattr(sandbox, "_MARKS_OF_A_CONTAINER", [str(tmp_path / "dockerenv")])
    return tmp_path


@pytest.mark.parametrize(
    ("switch", "off", "means"),
    [
        ("apparmor_restrict_unprivileged_userns", "1", "AppArmor .*`sysctl kernel.apparmor_"),
        ("unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("max_user_namespaces", "0", "switched off"),
        ("dockerenv", "", "this is a container: .*compose.yaml"),
    ],
)
def test_what_keeps_namespaces_from_us_is_named(without_namespaces, switch, off, means):
    assert probe.__wrapped__()[0].why_not == "bwrap: no permissions"
    (without_namespaces / switch).write_text(f"{off}\n")
    why_not = probe.__wrapped__()[0].why_not
    assert re.match(f"bwrap: no permissions: .*{means}", why_not), why_not
    if off:
        (without_namespaces / switch).write_text("7\n")
        assert probe.__wrapped__()[0].why_not == "bwrap: no permissions"


def test_a_program_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no `bwrap`" in probe.__wrapped__()[0].why_not


def test_only_allowed_places_are_in_sight(inside):
    seen = set(json.loads(inside("import json, os; print(json.dumps(os.listdir('/')))")))
    tops = {Path(place).parts[1] for place in sandbox.readable()}
    assert seen == tops | {"proc", "dev", "tmp"}


def test_one_user_and_one_machine_are_known_by_name(inside):
    code = (
        "import grp, os, pwd, socket\n"
        "print(pwd.getpwuid(os.getuid())[0], grp.getgrgid(os.getgid())[0], len(pwd.getpwall()))\n"
        "print(socket.gethostbyname('localhost'), socket.gethostbyname(socket.gethostname()))"
    )
    assert inside(code) == "student student 1\n127.0.0.1 127.0.0.1"


def test_the_course_and_the_reference_library_are_not_in_sight(inside):
    code = (
        "import glob, importlib.util, os\n"
        f"print(os.listdir({str(ROOT / 'lib')!r}), importlib.util.find_spec('groundup'))"
    )
    assert inside(code) == "['classroom'] None"


# Run inside, prints what of our package can be read, and which of the rooms can be imported.
LOOK = """
import importlib, os, sys
PACKAGE = {!r}
sys.path.append(os.path.dirname(PACKAGE))
for folder, _, files in os.walk(PACKAGE):
    for name in files:
        if not name.endswith(".pyc"):
            open(os.path.join(folder, name)).read()
            print(os.path.relpath(os.path.join(folder, name), PACKAGE))
for name in ("calls.remote", "limits", "sandbox.inside.linux"):
    importlib.import_module("classroom." + name)
for name in ("author", "course", "exercise", "exercise.run", "grader", "nbgrader", "student",
             "sandbox.launcher", "sandbox.layers", "__main__"):
    try:
        importlib.import_module("classroom." + name)
    except ModuleNotFoundError as error:
        assert error.name.startswith("classroom.")
    else:
        print("imported", name)
"""


def mounted(package):
    """Return what of our package is to be seen inside."""
    found = [*package.glob("calls/*.py"), *package.glob("sandbox/inside/*.py")]
    found += package.glob("sandbox/inside/etc/*")
    found += [package / name for name in ("__init__.py", "limits.py", "sandbox/__init__.py")]
    return {str(path.relative_to(package)) for path in found}


def test_of_our_package_only_what_answers_a_check_can_be_read_or_imported(inside):
    package = ROOT / "lib/classroom"
    assert set(inside(LOOK.format(str(package))).splitlines()) == mounted(package)


def test_of_a_package_that_is_installed_with_python_no_more_is_seen(monkeypatch, tmp_path, inside):
    package = tmp_path / "site-packages/classroom"
    shutil.copytree(ROOT / "lib/classroom", package)
    monkeypatch.setattr(sandbox.site, "getsitepackages", lambda: [str(package.parent)])
    monkeypatch.setattr(sandbox, "_PACKAGE", package)
    seen = sandbox.readable()
    monkeypatch.setattr(sandbox, "readable", lambda: [str(package.parent), *seen])
    assert set(inside(LOOK.format(str(package))).splitlines()) == mounted(package)


def test_a_reference_library_that_is_installed_with_python_is_hidden(monkeypatch, tmp_path):
    packages = tmp_path / "site-packages"
    (packages / "groundup").mkdir(parents=True)
    monkeypatch.setattr(sandbox.site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.setattr(sandbox, "readable", lambda: [str(tmp_path)])
    argv = sandbox.command(["true"])
    hidden = argv.index(str(packages / "groundup"))
    assert argv[hidden - 1] == "--tmpfs"


def test_nothing_can_be_written_but_in_tmp(inside):
    code = (
        "import os\n"
        "for top in ['/', *('/' + n for n in os.listdir('/'))]:\n"
        "    try:\n"
        "        open(top + '/x', 'w').close()\n"
        "        print(top)\n"
        "    except OSError: pass"
    )
    assert inside(code) == "/tmp"


def test_it_is_nobody_and_has_no_capabilities(inside):
    status = inside("print(open('/proc/self/status').read())")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert lines["Uid"].split()[0] != "0"
    assert int(lines["CapEff"], 16) == int(lines["CapPrm"], 16) == 0
    assert lines["NoNewPrivs"] == "1"


def test_there_is_no_network_and_no_other_process(inside):
    code = (
        "import os, socket\n"
        "print([n for _, n in socket.if_nameindex()], len([p for p in os.listdir('/proc') "
        "if p.isdigit()]))"
    )
    assert inside(code) == "['lo'] 2"


def test_nothing_of_our_environment_is_in_sight(inside, monkeypatch):
    monkeypatch.setenv("CLASSROOM_SEED", "secret")
    assert "CLASSROOM_SEED" not in inside("import os; print(dict(os.environ))")


def test_every_way_in_works_where_it_is_tried_out(inside):
    assert json.loads(inside(Path(linux.__file__).read_text())) == {
        "namespaces": "",
        "landlock": "",
        "seccomp": "",
    }


def test_the_doctor_shows_every_layer(capsys):
    status = main(["doctor"])
    said = capsys.readouterr().out
    for layer in probe():
        assert layer.name in said
        assert layer.keeps in said
    assert status == (0 if all(layer.active for layer in probe() if layer.is_required) else 1)


def test_the_doctor_says_what_lacks_and_how_it_ends(capsys, monkeypatch):
    monkeypatch.setattr(sandbox, "probe", lambda: (ACTIVE, LACKING, UNNEEDED))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "✗ Landlock" in said
    assert "not active: the kernel has none" in said
    assert "– control groups" in said
    assert "not active, and not required: it is not mounted" in said
    assert "refuses to run here without Landlock (" in said
    monkeypatch.setattr(sandbox, "probe", lambda: (ACTIVE, UNNEEDED))
    assert main(["doctor"]) == 0
