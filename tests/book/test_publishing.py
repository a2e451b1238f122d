"""Workflows that can run, a version that is the same everywhere, and links that preview well."""

import datetime
import re
import struct
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import preview
import pytest
import yaml
from books import BOOK, ROOT, pages
from bs4 import BeautifulSoup
from matplotlib import image
from version_shown import version_of

WORKFLOWS = ROOT / ".github" / "workflows"
SETTINGS = yaml.safe_load((BOOK / "_config.yml").read_text(encoding="utf-8"))
SITE = SETTINGS["html"]["baseurl"]
ON_EVERY_RUNNER = {"sudo", "python"}


@cache
def parsed(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


def workflow(name):
    return yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))


def steps(name):
    return [step for job in workflow(name)["jobs"].values() for step in job.get("steps", [])]


def commands(name):
    return [line for step in steps(name) for line in step.get("run", "").splitlines()]


def targets():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


# Workflows


@pytest.mark.parametrize("name", sorted(file.name for file in WORKFLOWS.iterdir()))
def test_a_workflow_runs_what_there_is(name):
    for command in commands(name):
        program, *words = command.split()
        if program == "make":
            assert set(words) <= targets(), command
        elif "/" in program:
            assert (ROOT / program).stat().st_mode & 0o100, command
        else:
            assert program in ON_EVERY_RUNNER, command
        for file in re.findall(r"-r (\S+)", command):
            assert (ROOT / file).is_file(), command
    for job in workflow(name)["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()
        else:
            assert 5 <= job.get("timeout-minutes", 10) <= 120


@pytest.mark.parametrize("name", sorted(file.name for file in WORKFLOWS.iterdir()))
def test_a_workflow_uses_official_actions_of_a_named_version_and_little_power(name):
    for step in steps(name):
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v0"))
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"] == {"persist-credentials": False}
    assert workflow(name)["permissions"] == {"contents": "read"}
    for job, about in workflow(name)["jobs"].items():
        deploys = {"pages": "write", "id-token": "write"} if job == "deploy" else None
        assert about.get("permissions") == deploys


def test_ci_is_the_script_that_developers_run():
    assert ".ci/run" in commands("ci.yml")
    assert {"pull_request", "workflow_call"} <= set(workflow("ci.yml")[True])  # YAML's `on`


def test_what_is_published_passed_ci_and_was_built_from_main_with_warnings_as_errors():
    jobs = workflow("book.yml")["jobs"]
    assert jobs["check"]["uses"].endswith("/ci.yml")
    assert set(jobs["deploy"]["needs"]) == {"check", "build"}
    assert jobs["deploy"]["if"] == "github.ref == 'refs/heads/main'"
    assert jobs["deploy"]["concurrency"]["cancel-in-progress"] is False
    assert "make book" in commands("book.yml")
    built = re.search(r"^book:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert built.split()[:3] == ["jupyter-book", "build", "book"]
    assert {"-W", "-n"} <= set(built.split())
    (upload,) = [step for step in steps("book.yml") if "upload-pages" in step.get("uses", "")]
    assert upload["with"]["path"] == "book/_build/html"


def test_the_book_is_built_by_the_oldest_python_and_ci_also_runs_a_newer_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (setup,) = [step for step in steps("book.yml") if "setup-python" in step.get("uses", "")]
    oldest = setup["with"]["python-version"]
    assert f">={oldest}" == project["requires-python"]
    first, *newer = workflow("ci.yml")["jobs"]["check"]["strategy"]["matrix"]["python-version"]
    assert first == oldest
    assert newer


# Versions


def changelog():
    """Give the sections of the changelog: heading, and the lines below it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return list(zip(found[::2], found[1::2], strict=True))


def test_every_change_in_the_changelog_says_what_it_is_about():
    for heading, text in changelog():
        entries = re.findall(r"^- .*", text, re.MULTILINE)
        assert entries, f"{heading} lists nothing"
        for entry in entries:
            assert re.match(r"- (book|exercise|lib): \S", entry), entry
            assert not entry.endswith("."), entry


def test_the_versions_of_the_changelog_count_down_with_their_dates():
    headings = [heading for heading, _ in changelog()]
    if headings[0] == "[Unreleased]":
        headings.pop(0)
    matches = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", h) for h in headings]
    versions = [tuple(map(int, match[1].split("."))) for match in matches]
    dates = [datetime.date.fromisoformat(match[2]) for match in matches]
    assert versions == sorted(set(versions), reverse=True)
    assert dates == sorted(dates, reverse=True)
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for match in matches:
        tag = f"{SETTINGS['repository']['url']}/releases/tag/v{match[1]}"
        assert f"[{match[1]}]: {tag}" in text


def test_package_citation_and_changelog_agree_on_version_and_date():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = next(heading for heading, _ in changelog() if heading != "[Unreleased]")
    assert newest == f"[{version_of()}] - {citation['date-released']}"
    assert citation["version"] == version_of()
    assert citation["url"] == SITE
    assert citation["repository-code"] == SETTINGS["repository"]["url"]


@pytest.mark.parametrize("page", pages())
def test_a_page_says_at_its_foot_which_version_it_belongs_to(site, page):
    foot = parsed(site / f"{page}.html").select_one("footer .extra_footer")
    assert f"Version {version_of()}," in foot.get_text()
    assert foot.a["href"] == f"{SETTINGS['repository']['url']}/blob/main/CHANGELOG.md"


# Previews


@pytest.mark.parametrize("page", pages())
def test_a_shared_page_is_shown_with_title_words_picture_and_one_address(site, page):
    soup = parsed(site / f"{page}.html")
    shared = {tag["property"]: tag["content"] for tag in soup.select("meta[property]")}
    named = {tag["name"]: tag["content"] for tag in soup.select("meta[name]")}
    address = f"{SITE}{page}.html"
    assert [link["href"] for link in soup.select("link[rel=canonical]")] == [address]
    assert shared["og:url"] == address
    assert shared["og:title"].strip()
    assert shared["og:image"] == f"{SITE}_static/{preview.PICTURE.name}"
    assert (site / urlsplit(shared["og:image"]).path.removeprefix(urlsplit(SITE).path)).is_file()
    width, height = (round(inches * preview.DOTS_PER_INCH) for inches in preview.INCHES)
    assert (shared["og:image:width"], shared["og:image:height"]) == (str(width), str(height))
    assert len(shared["og:image:alt"]) > 40
    assert named["twitter:card"] == "summary_large_image"
    assert shared["og:description"] == named["description"]
    assert 50 <= len(named["description"]) <= 250, "programs cut longer ones off"


def test_no_two_pages_describe_themselves_alike(site):
    told = [
        parsed(site / f"{page}.html").find("meta", attrs={"name": "description"})
        for page in pages()
    ]
    described = [tag["content"] for tag in told]
    assert len(set(described)) == len(described)


def test_the_preview_is_drawn_from_what_the_first_page_computes(tmp_path):
    preview.main(tmp_path / "preview.png")
    drawn, kept = image.imread(tmp_path / "preview.png"), image.imread(preview.PICTURE)
    assert drawn.shape == kept.shape
    # Fonts may be smoothed differently elsewhere.
    assert np.abs(drawn - kept).mean() < 0.002, "run `make preview`"


def test_the_preview_has_the_size_that_is_told_and_is_small():
    data = preview.PICTURE.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1200, 630)
    assert len(data) < 150_000


# What is written for contributors


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "RELEASING.md"])
def test_every_make_target_that_is_named_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"\bmake (\w+)", text)
    assert named
    assert set(named) <= targets()


def test_every_make_target_with_a_description_is_in_the_help_and_phony():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.search(r"^\.PHONY: (.*)", makefile, re.MULTILINE)[1].split())
    assert phony == targets()
