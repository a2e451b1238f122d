"""The recipe of a container, as far as it can be read: no test here builds an image."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RECIPE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [line for line in RECIPE.splitlines() if line and not line.startswith("#")]
SERVICE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["grader"]


def lines(instruction):
    return [line.split(maxsplit=1)[1] for line in LINES if line.startswith(f"{instruction} ")]


def test_what_is_copied_is_there_and_let_in():
    sources = [source for line in lines("COPY") for source in line.split()[:-1]]
    assert {"requirements.txt", "requirements-learn.txt", "pyproject.toml", "lib"} <= set(sources)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored


def test_nothing_of_a_class_and_no_answer_is_let_in():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert let_in == {source for line in lines("COPY") for source in line.split()[:-1]}


def test_a_build_needs_every_file_that_it_copies():
    """What pyproject.toml names must be copied before it is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = {source for line in lines("COPY") for source in line.split()[:-1]}
    assert {project["readme"], *project["license-files"]} <= copied


def test_the_packages_are_those_of_every_other_environment():
    installed = next(line for line in lines("RUN") if "pinned.txt" in line)
    lists = ("requirements-learn.txt", "requirements.txt")
    assert f"grep -hv '^-' {' '.join(lists)} > /tmp/pinned.txt" in installed
    assert "-r /tmp/pinned.txt" in installed
    listed = [line for name in lists for line in (ROOT / name).read_text().splitlines()]
    assert [line for line in listed if line.startswith("-")] == ["-e .", f"-r {lists[0]}"]


def test_its_python_is_one_that_the_course_runs_on():
    (base,) = lines("FROM")
    major, minor = map(int, re.match(r"python:(\d+)\.(\d+)-slim-bookworm$", base).groups())
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert required == f">={major}.{minor}"
    assert (major, minor) <= sys.version_info


def test_it_has_what_the_sandbox_needs_and_says_how_it_is():
    packages = next(line for line in lines("RUN") if "apt-get install" in line)
    assert {"bubblewrap", "libseccomp2"} <= set(packages.split())
    assert lines("HEALTHCHECK")[0].endswith('CMD ["classroom", "doctor"]')


@pytest.mark.parametrize("user", [*lines("USER"), SERVICE["user"]])
def test_nobody_in_it_is_root(user):
    assert user in ("instructor", "${GRADER:-1000:1000}")
    assert any("useradd --uid 1000" in line for line in lines("RUN"))


def test_it_gives_up_no_more_than_it_must():
    assert "privileged" not in SERVICE
    assert "cap_add" not in SERVICE
    assert SERVICE["cap_drop"] == ["ALL"]
    assert SERVICE["network_mode"] == "none"
    unconfined = {o for o in SERVICE["security_opt"] if o.endswith("=unconfined")}
    assert unconfined == {f"{what}=unconfined" for what in ("seccomp", "apparmor", "systempaths")}
    assert "no-new-privileges:true" in SERVICE["security_opt"]
    assert SERVICE["volumes"] == [".:/course"]
    assert lines("WORKDIR") == ["/course"]
