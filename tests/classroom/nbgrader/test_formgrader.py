"""Formgrader, in a real browser, shows sealed scores, and what is given by hand there stays."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from playwright.sync_api import expect

from classroom.__main__ import main
from classroom.author.notebooks import build_notebook, cell_of, write_notebook

NAME = "07_averages"
ANSWERS = {
    "ada": "def centre(x):\n    return x - x.mean(dim=0)",
    "bo": "def centre(x):\n    return x - x.mean(dim=1, keepdim=True)",
    "eve": "import sys\ndef centre(x):\n    sys.displayhook(198)",
}
SOLUTION = re.compile(r"### BEGIN SOLUTION.*### END SOLUTION", re.DOTALL)


@pytest.fixture
def graded(course, here):
    """A class of three, graded by `classroom grade`."""
    source, folder = course / "solutions" / NAME, course / "exercises" / NAME
    folder.mkdir(parents=True)
    notebook = build_notebook(source)
    write_notebook(notebook, source / "averages.ipynb")
    for cell in notebook.cells:
        cell.source = SOLUTION.sub("raise NotImplementedError", cell.source)
    nbformat.write(notebook, folder / "averages.ipynb")
    for name in ("checks.py", "mistakes.py"):
        shutil.copy(source / name, folder)
    cell_of(notebook, "twice").source = "def twice(number):\n    return number + number"
    for student, centre in ANSWERS.items():
        cell_of(notebook, "centre").source = centre
        target = course / "submitted" / student / NAME
        target.mkdir(parents=True)
        nbformat.write(notebook, target / "averages.ipynb")
    assert main(["grade", NAME, "--root", str(course)]) == 0
    return course


@pytest.fixture
def formgrader(graded, tmp_path):
    """A Jupyter server with nbgrader's extension; gives formgrader's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folders = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            *(f"--port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={graded}"),
            *("--IdentityProvider.token=", "--ServerApp.password="),
            "--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': True}",
        ],
        cwd=graded,
        env={
            **os.environ,
            **{f"JUPYTER_{name}": str(tmp_path / name) for name in folders},
            "CLASSROOM_SEALED": "1",
        },
        stdout=(log := (tmp_path / "server.log").open("w")),
        stderr=log,
    )
    address = f"http://127.0.0.1:{port}/formgrader"
    try:
        deadline = time.monotonic() + 300
        while server.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{address}/api/status").close()
                break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail((tmp_path / "server.log").read_text()[-3000:])
        yield address
    finally:
        server.kill()
        server.wait()
        log.close()


@pytest.fixture
def page(browser):
    with browser.new_page() as page:
        page.set_default_timeout(120_000)
        yield page


def shown(page, address):
    """State and points of each student in formgrader's list of what was handed in."""
    page.goto(f"{address}/manage_submissions/{NAME}")
    page.wait_for_selector("tbody tr:has-text('eve')")
    rows = page.locator("tbody tr").all()
    fields = ("student-id", "status", "score")
    return [tuple(row.locator(f"td.{name}").inner_text() for name in fields) for row in rows]


def listed(**points):
    """What `shown` gives where nothing waits for anybody but bo's second look."""
    return [
        (student, "needs manual grading" if earned == "1.5 / 5" else "graded", earned)
        for student, earned in points.items()
    ]


@pytest.mark.slow
def test_sealed_scores_are_shown_and_what_is_given_by_hand_survives(graded, formgrader, page):
    assert shown(page, formgrader) == listed(ada="5 / 5", bo="2 / 5", eve="2 / 5")
    # Open bo's notebook as an instructor does: from the gradebook.
    page.goto(f"{formgrader}/gradebook/{NAME}/averages")
    page.locator("tbody tr:has-text('bo') span.name-hidden").click()
    page.locator("a.name-shown:has-text('bo')").click()
    page.locator("#centre-check[placeholder]").wait_for()
    text = page.inner_text("body")
    assert "Graded in a sandbox (bubblewrap" in text
    assert "The mean is taken over each row" in text
    score, comment = page.locator("#centre-check"), page.locator("#centre-comment")
    expect(score).to_have_attribute("placeholder", "0")
    address = page.url
    score.fill("1.5")
    comment.fill("Right idea, wrong axis.")
    with page.expect_response(lambda response: response.request.method == "PUT"):
        comment.blur()
    page.reload()
    expect(score).to_have_value("1.5")
    assert shown(page, formgrader)[1] == ("bo", "graded", "3.5 / 5")
    # Another second answer comes in, and formgrader's own button grades it.
    path = graded / "submitted" / "bo" / NAME / "averages.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell_of(notebook, "twice").source = "def twice(number):\n    return number"
    nbformat.write(notebook, path)
    page.locator("tr:has-text('bo') td.autograde a").click()
    page.locator(".modal.in .modal-body").wait_for()
    log = page.inner_text(".modal.in")
    assert "Sealed: students' code runs in a sandbox" in log and "'bo': 0 of 5 points" in log
    assert shown(page, formgrader) == listed(ada="5 / 5", bo="1.5 / 5", eve="2 / 5")
    page.goto(address)
    expect(score).to_have_value("1.5")
    expect(comment).to_have_value("Right idea, wrong axis.")
