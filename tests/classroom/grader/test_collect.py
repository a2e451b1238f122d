import hashlib
import json
import os
import stat
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest

from classroom.__main__ import main
from classroom.calls.files import MAX_FILE_BYTES
from classroom.grader.collect import (
    EARLIER,
    LEDGER,
    MAX_BYTES,
    MAX_FILES,
    MAX_NAME,
    collect,
    receipts,
    to_table,
    uploads,
)
from classroom.grader.submission import Master, Submission, students_in

NAME = "07_averages"
NOTEBOOK = "averages.ipynb"


@pytest.fixture
def submitted(tmp_path):
    return tmp_path / "submitted"


@pytest.fixture
def take(submitted):
    """Collect and return what became of each file, by its path."""

    def run(*sources, **options):
        rows = collect(sources, submitted, NAME, NOTEBOOK, **options)
        return {row.path: (row.student, row.outcome, row.why) for row in rows}

    return run


@pytest.fixture
def archive(tmp_path):
    """Write a ZIP archive of names and contents; a content may come with a ZipInfo's attributes."""

    def write(files, name="uploads.zip", method=zipfile.ZIP_DEFLATED):
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", method) as file:
            for entry, data in files.items():
                info = zipfile.ZipInfo(entry, (2026, 3, 5, 12, 30, 10))
                info.compress_type = method
                if isinstance(data, tuple):
                    data, info.external_attr = data
                file.writestr(info, data)
        return path

    return write


def kept(submitted, student):
    """Contents by name of what will be graded."""
    folder = submitted / student / NAME
    return {path.name: path.read_text() for path in folder.iterdir()}


def earlier(submitted, student):
    """Contents of what was handed in before."""
    folders = sorted((submitted / EARLIER / student / NAME).iterdir())
    return [path.read_text() for folder in folders for path in folder.iterdir()]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


# Whose it is


@pytest.mark.parametrize(
    ("path", "student", "file"),
    [
        ("Ada Lovelace_123_assignsubmission_file_/averages.ipynb", "Ada Lovelace", NOTEBOOK),
        (
            "Ada Lovelace_123_assignsubmission_file/sub/mine (1).ipynb",
            "Ada Lovelace",
            "mine (1).ipynb",
        ),
        ("Ada Lovelace_123_assignsubmission_file_averages.ipynb", "Ada Lovelace", NOTEBOOK),
        ("lovelaceada_4711_815_averages.ipynb", "lovelaceada", NOTEBOOK),
        ("lovelaceada_LATE_4711_815_my_averages-2.ipynb", "lovelaceada", "my_averages-2.ipynb"),
        ("anon_Zx81a_815_averages.ipynb", "anon_Zx81a", NOTEBOOK),
        ("ada/07_averages/averages.ipynb", "ada", NOTEBOOK),
        ("ada\\averages.ipynb", "ada", NOTEBOOK),
        ("ada.ipynb", "ada", NOTEBOOK),
        ("Zoe\u0308/averages.ipynb", "Zo\u00eb", NOTEBOOK),
    ],
)
def test_platforms_say_in_the_path_whose_a_file_is(take, archive, submitted, path, student, file):
    assert [row[:2] for row in take(archive({path: "{}"})).values()] == [(student, "taken")]
    assert kept(submitted, student) == {file: "{}"}
    assert students_in(submitted, NAME) == [student]


def test_a_pattern_of_ones_own_says_it_otherwise(take, archive, submitted):
    source = archive({"2026/ada-averages.ipynb": "a", "notes/bo.ipynb": "b"})
    found = take(source, pattern=r"\d+/(?P<student>\w+)-(?P<file>.*)")
    assert found["2026/ada-averages.ipynb"][:2] == ("ada", "taken")
    assert found["notes/bo.ipynb"][1:] == (
        "refused",
        "its name does not show whose it is: see --pattern",
    )
    assert kept(submitted, "ada") == {NOTEBOOK: "a"}


@pytest.mark.parametrize("pattern", ["(", "(?P<name>.*)"])
def test_a_pattern_that_is_none_is_refused(take, archive, pattern):
    with pytest.raises(ValueError, match="--pattern"):
        take(archive({}), pattern=pattern)


def test_two_people_of_one_name_are_not_mixed_up(take, archive, submitted):
    path = "Ada Lovelace_{}_assignsubmission_file_/averages.ipynb"
    found = take(archive({path.format(1): "a", path.format(2): "b", "bo.ipynb": "c"}))
    whys = {why for _, outcome, why in found.values() if outcome == "refused"}
    assert whys == {"several people have this name (1, 2): see --pattern"}
    assert students_in(submitted, NAME) == ["bo"]


# What it is


def test_what_is_no_notebook_to_be_taken_is_told_and_stops_nothing(take, archive, submitted):
    link = (stat.S_IFLNK | 0o777) << 16
    source = archive(
        {
            "ada/averages.ipynb": "{}",
            "../../evil.ipynb": "{}",
            "..\\evil.ipynb": "{}",
            "/etc/evil.ipynb": "{}",
            ".hidden/averages.ipynb": "{}",
            f"{LEDGER}/averages.ipynb": "{}",
            "a\x1b[2Jb/averages.ipynb": "{}",
            f"{'x' * (MAX_NAME + 1)}/averages.ipynb": "{}",
            "eve/averages.ipynb": ("/etc/passwd", link),
            "pipe/averages.ipynb": ("", stat.S_IFIFO << 16),
            "bo/all.zip": "PK",
            "bo/report.pdf": "%PDF",
            "__MACOSX/ada/._averages.ipynb": "",
            "ada/.DS_Store": "",
            "zoe/averages.ipynb": "{}",
        }
    )
    found = take(source)
    assert {path: (outcome, why) for path, (_, outcome, why) in found.items()} == {
        "ada/averages.ipynb": ("taken", ""),
        "zoe/averages.ipynb": ("taken", ""),
        "../../evil.ipynb": ("refused", "its path leads out of the folder or archive"),
        "../evil.ipynb": ("refused", "its path leads out of the folder or archive"),
        "/etc/evil.ipynb": ("refused", "its path leads out of the folder or archive"),
        ".hidden/averages.ipynb": ("refused", "the student's name cannot be the name of a folder"),
        f"{LEDGER}/averages.ipynb": (
            "refused",
            "the student's name cannot be the name of a folder",
        ),
        "a\x1b[2Jb/averages.ipynb": (
            "refused",
            "the student's name cannot be the name of a folder",
        ),
        f"{'x' * (MAX_NAME + 1)}/averages.ipynb": (
            "refused",
            "the student's name cannot be the name of a folder",
        ),
        "eve/averages.ipynb": ("refused", "it is a link"),
        "pipe/averages.ipynb": ("refused", "it is not a regular file"),
        "bo/all.zip": ("refused", "it is an archive itself: unpack it"),
        "bo/report.pdf": ("left out", "it is not a notebook"),
    }
    assert sorted(os.listdir(submitted)) == ["ada", LEDGER, "zoe"]


def test_a_bomb_costs_its_own_file(take, archive, submitted):
    zeros = "0" * (MAX_FILE_BYTES + 1)
    found = take(archive({"eve/averages.ipynb": zeros, "zoe/averages.ipynb": "{}"}))
    why = "it unpacks to more than 200 times its size: clear its outputs"
    assert found["eve/averages.ipynb"][1:] == ("refused", why)
    assert found["zoe/averages.ipynb"][1] == "taken"


def test_what_one_student_has_too_much_of_costs_no_other_one(take, archive, submitted):
    many = {f"eve/{number}.txt": "" for number in range(MAX_FILES + 7)}
    found = take(archive({**many, "zoe/averages.ipynb": "{}"}))
    assert found["zoe/averages.ipynb"][1] == "taken"
    refused = {path: why for path, (_, outcome, why) in found.items() if outcome == "refused"}
    assert refused == {
        f"eve/{MAX_FILES}.txt": "there are more than 1,000 files: all from this one on are refused"
    }
    large = os.urandom(MAX_FILE_BYTES + 1)
    num_read = MAX_BYTES // len(large) + 1
    bombs = {f"eve/{number}.ipynb": large for number in range(num_read + 2)}
    found = take(archive({**bombs, "ada/averages.ipynb": "{}"}, method=zipfile.ZIP_STORED))
    assert found["ada/averages.ipynb"][1] == "taken"
    reasons = [found[path][2] for path in bombs]
    assert reasons.count("it is larger than 32 MB") == num_read
    assert reasons.count("all files together are larger than 128 MB") == 2


def test_a_name_that_is_no_utf_8_costs_its_own_file(take, archive, submitted):
    source = archive({"eve-é/averages.ipynb": "{}", "zoe-ö/averages.ipynb": "{}"})
    data = source.read_bytes()
    assert data.count("é".encode()) == 2
    source.write_bytes(data.replace("é".encode(), b"\xc3("))
    (bad, outcome, why), good = take(source).values()
    assert (outcome, why) == ("refused", "its name says that it is UTF-8, and it is not")
    assert good == ("zoe-ö", "taken", "")


@pytest.mark.parametrize("name", ["=1+2", "+x", "-x", "@x", "＝1"])
def test_a_name_that_a_spreadsheet_computes_is_refused(take, archive, name):
    (_, outcome, why) = take(archive({f"{name}/averages.ipynb": "{}"}))[f"{name}/averages.ipynb"]
    assert outcome == "refused"
    assert why == f"the student's name begins with {name[0]}, as formulas in a spreadsheet do"


def test_no_student_is_passed_over_for_a_name_with_dots(take, archive, submitted):
    found = take(archive({"..a.ipynb": "{}", "._ada.ipynb": "left by macOS"}))
    assert found == {
        "..a.ipynb": ("..a", "refused", "the student's name cannot be the name of a folder")
    }
    (submitted / "..a" / NAME).mkdir(parents=True)
    assert students_in(submitted, NAME) == ["..a"]


def test_what_is_damaged_encrypted_or_packed_unusually_costs_its_own_file(take, archive):
    source = archive({"ada/averages.ipynb": "{}" * 99, "eve/averages.ipynb": "hello" * 99})
    data = bytearray(source.read_bytes())
    data[data.index(b"ada/averages.ipynb") + 18] ^= 0xFF  # the first byte of what is compressed
    source.write_bytes(data)
    found = take(source)
    assert found["ada/averages.ipynb"][2].startswith("it is damaged (")
    assert found["eve/averages.ipynb"][1] == "taken"
    found = take(archive({"bo/averages.ipynb": "{}"}, method=zipfile.ZIP_BZIP2))
    assert found["bo/averages.ipynb"][2] == (
        "it is compressed in an unusual way: pack it again as an ordinary ZIP archive"
    )
    source = archive({"cy/averages.ipynb": "{}"})
    data = bytearray(source.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    source.write_bytes(data)
    assert take(source)["cy/averages.ipynb"][2] == "it is encrypted"


def test_a_source_that_is_no_archive_does_not_stop_the_others(take, archive, tmp_path):
    (tmp_path / "bad.zip").write_text("no archive")
    (tmp_path / "cy.ipynb").write_text("{}")
    found = take(tmp_path / "bad.zip", archive({"ada.ipynb": "{}"}), tmp_path / "cy.ipynb")
    assert found["bad.zip"][2].startswith("this is not a folder, a notebook or a ZIP archive")
    assert found["ada.ipynb"][1] == found["cy.ipynb"][1] == "taken"
    with pytest.raises(FileNotFoundError):
        take(tmp_path / "none.zip")


def test_links_and_pipes_in_a_folder_are_not_followed(take, tmp_path, submitted):
    source = tmp_path / "unpacked"
    (source / "ada").mkdir(parents=True)
    (source / "ada" / "averages.ipynb").write_text("{}")
    (tmp_path / "secret.ipynb").write_text("secret")
    (source / "bo.ipynb").symlink_to(tmp_path / "secret.ipynb")
    (source / "cy").symlink_to(source / "ada")
    os.mkfifo(source / "eve.ipynb")
    found = take(source)
    assert {path: row[1:] for path, row in found.items()} == {
        "ada/averages.ipynb": ("taken", ""),
        "bo.ipynb": ("refused", "it is a link"),
        "cy": ("refused", "it is a link"),
        "eve.ipynb": ("refused", "it is not a regular file"),
    }
    (submitted / "zoe").symlink_to(tmp_path)
    (source / "zoe.ipynb").write_text("{}")
    assert take(source)["zoe.ipynb"][1:] == ("refused", "the student's folder is a link")


def test_two_notebooks_of_one_name_are_both_kept(take, archive, submitted):
    take(archive({f"ada/{i}/averages.ipynb": str(i) for i in range(11)}))
    assert len(kept(submitted, "ada")) == 10
    assert kept(submitted, "ada")["averages-2.ipynb"] == "1"


# When it came


def test_an_earlier_hand_in_is_kept_aside_and_the_same_one_is_no_new_one(take, archive, submitted):
    take(archive({"ada.ipynb": "first"}))
    lines = (submitted / LEDGER).read_text()
    assert take(archive({"ada.ipynb": "first"}))["ada.ipynb"][1] == "there already"
    assert (submitted / LEDGER).read_text() == lines
    take(archive({"ada.ipynb": "second"}))
    take(archive({"ada.ipynb": "third"}))
    assert kept(submitted, "ada") == {NOTEBOOK: "third"}
    assert earlier(submitted, "ada") == ["first", "second"]
    assert len((submitted / LEDGER).read_text().splitlines()) == 3
    assert students_in(submitted, NAME) == ["ada"]


def test_the_ledger_says_when_each_file_came(take, archive, submitted):
    before = datetime.now(UTC) - timedelta(seconds=1)
    take(archive({"ada.ipynb": "first"}))
    (line,) = map(json.loads, (submitted / LEDGER).read_text().splitlines())
    assert (line["student"], line["assignment"], line["sha256"]) == ("ada", NAME, digest("first"))
    assert line["source"] == "uploads.zip: ada.ipynb"
    time = receipts(submitted, NAME)["ada"][digest("first")]
    assert before <= time <= datetime.now(UTC)
    assert receipts(submitted, "08_other") == {}


def test_times_of_the_archive_count_if_they_are_asked_for(take, archive, submitted):
    source = archive({"ada.ipynb": "new"})
    take(source, times_from_archive=True)
    time = receipts(submitted, NAME)["ada"][digest("new")]
    assert time == datetime(2026, 3, 5, 12, 30, 10).astimezone(UTC)
    (folder := source.parent / "older").mkdir()
    (folder / "ada.ipynb").write_text("old")
    os.utime(folder / "ada.ipynb", (10**9, 10**9))
    (_, outcome, why) = take(folder, times_from_archive=True)["ada.ipynb"]
    assert outcome == "refused" and why.startswith("a later submission is there, from 2026-03-05 ")
    assert kept(submitted, "ada") == {NOTEBOOK: "new"}
    os.utime(folder / "ada.ipynb", (10**11, 10**11))  # no time is later than now
    take(folder, times_from_archive=True)
    assert receipts(submitted, NAME)["ada"][digest("old")] <= datetime.now(UTC)


def test_lateness_counts_from_the_ledger(take, archive, submitted):
    take(archive({"ada.ipynb": "on time"}), times_from_archive=True)
    folder = submitted / "ada" / NAME
    known = receipts(submitted, NAME)["ada"]
    master = Master(NOTEBOOK, nbformat.v4.new_notebook())
    time = datetime(2026, 3, 5, 12, 30, 10).astimezone(UTC)
    assert Submission.read(folder, master, known).notebooks[NOTEBOOK].received == time
    # What was put there by hand counts from when it arrived.
    (folder / NOTEBOOK).write_text("late")
    received = Submission.read(folder, master, known).notebooks[NOTEBOOK].received
    assert datetime.now(UTC) - received < timedelta(minutes=1)


def test_a_stopped_run_is_gone_on_with(take, archive, submitted, monkeypatch):
    take(archive({"ada.ipynb": "first"}))

    def stop(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", stop)
        take(archive({"ada.ipynb": "second"}))
    assert kept(submitted, "ada") == {NOTEBOOK: "first"}
    time = receipts(submitted, NAME)["ada"][digest("second")]
    (submitted / ".incoming-by-a-killed-run").mkdir()
    with (submitted / LEDGER).open("a") as file:
        file.write('{"half a')
    assert take(archive({"ada.ipynb": "second"}))["ada.ipynb"][1] == "taken"
    assert receipts(submitted, NAME)["ada"] == {
        digest("first"): receipts(submitted, NAME)["ada"][digest("first")],
        digest("second"): time,
    }
    assert sorted(os.listdir(submitted)) == [EARLIER, "ada", LEDGER]


def test_a_damaged_ledger_is_told_with_its_line(take, archive, submitted):
    take(archive({"ada.ipynb": "first"}))
    with (submitted / LEDGER).open("a") as file:
        file.write('{"student": "eve"}\n')
    with pytest.raises(ValueError, match=f"{LEDGER}, line 2: this is not a line of the ledger"):
        receipts(submitted, NAME)


# The command


def test_the_command_says_what_was_taken_and_what_not(course, archive, capsys):
    assert main(["release", NAME, "--root", str(course)]) == 0
    capsys.readouterr()
    source = archive({"ada.ipynb": "{}", "=cmd\x1b/averages.ipynb": "{}"})
    command = ["collect", str(source), "--assignment", NAME, "--root", str(course)]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        *("=cmd\\x1b", "=cmd\\x1b/averages.ipynb", "refused:", "the", "student's"),
        *("name", "cannot", "be", "the", "name", "of", "a", "folder"),
    ]
    assert lines[2].split() == ["ada", "ada.ipynb", "taken"]
    assert lines[-1] == "1 taken, 1 refused"
    assert Path(course, "submitted", "ada", NAME, NOTEBOOK).read_text() == "{}"
    assert main([*command[:3], "08_none", *command[4:]]) == 2
    assert "no assignment is called 08_none" in capsys.readouterr().err
    assert to_table([]).split() == ["student", "file", "outcome"]


# Files beside the notebook


def test_a_wanted_file_comes_with_its_notebook_and_another_does_not(take, archive, submitted):
    files = {
        f"ada_11_13_{NOTEBOOK}": "cells",
        "ada_11_17_model-1.safetensors": "weights",
        "ada_11_19_plot.png": "plot",
    }
    rows = take(archive(files), wanted=("model.safetensors",))
    assert [outcome for _, outcome, _ in rows.values()] == ["left out", "taken", "taken"]
    assert kept(submitted, "ada") == {NOTEBOOK: "cells", "model.safetensors": "weights"}
    assert set(receipts(submitted, NAME)["ada"]) == {digest("cells"), digest("weights")}


def test_a_changed_wanted_file_is_a_new_hand_in_and_the_same_is_not(take, archive, submitted):
    def hand_in(weights):
        files = {f"ada/{NOTEBOOK}": "cells", "ada/model.safetensors": weights}
        rows = take(archive(files), wanted=("model.safetensors",))
        return {outcome for _, outcome, _ in rows.values()}

    assert hand_in("old") == {"taken"}
    assert hand_in("old") == {"there already"}
    assert hand_in("new") == {"taken"}
    assert kept(submitted, "ada")["model.safetensors"] == "new"
    assert sorted(earlier(submitted, "ada")) == ["cells", "old"]


def test_of_two_wanted_files_of_one_name_neither_is_taken_for_the_other(take, archive, submitted):
    files = {f"ada/{NOTEBOOK}": "cells", "ada/a/model.safetensors": "one"}
    rows = take(archive(files | {"ada/b/model.safetensors": "two"}), wanted=("model.safetensors",))
    assert rows["ada/b/model.safetensors"][1:] == ("refused", "there is another model.safetensors")
    assert kept(submitted, "ada")["model.safetensors"] == "one"


def test_a_file_called_as_on_another_platform_is_still_that_of_who_uploaded_it(
    take, archive, submitted
):
    """On Canvas a student chooses the end of a path, which can look like all of one of Moodle's."""
    names = ("bob_777_11_a.ipynb", "eve_123_13_x_777_assignsubmission_file_y.ipynb")
    assert {row[:2] for row in take(archive(dict.fromkeys(names, "{}"))).values()} == {
        ("bob", "taken"),
        ("eve", "taken"),
    }
    found = uploads(submitted, NAME)
    assert {student: upload.id for student, upload in found.items()} == {"bob": "777", "eve": "123"}


def test_a_folder_called_as_another_one_but_for_what_is_not_seen_is_refused(take, archive):
    found = take(archive({"bob\u00a0/a.ipynb": "1", "bob/a.ipynb": "2"}))
    assert [outcome for _, outcome, _ in found.values()] == ["refused", "taken"]
    found = take(archive({"zo\u00eb/a.ipynb": "1", "zoe\u0308/a.ipynb": "2", "cy/a.ipynb": "3"}))
    assert [outcome for _, outcome, _ in found.values()] == ["refused", "refused", "taken"]
    assert r"several people have this name ('zo\xeb', 'zoe\u0308')" in next(iter(found.values()))[2]


def test_a_wanted_file_that_comes_late_makes_its_notebook_late(take, archive, submitted):
    wanted = ("model.safetensors",)
    files = {f"ada/{NOTEBOOK}": "cells", "ada/model.safetensors": "planned"}
    take(archive(files), times_from_archive=True, wanted=wanted)
    master = Master(NOTEBOOK, nbformat.v4.new_notebook(), wanted)

    def received():
        folder = submitted / "ada" / NAME
        found = Submission.read(folder, master, receipts(submitted, NAME)["ada"])
        return {file.received for file in (*found.notebooks.values(), *found.others.values())}

    on_time = datetime(2026, 3, 5, 12, 30, 10).astimezone(UTC)
    assert received() == {on_time}
    take(archive(files | {"ada/model.safetensors": "trained later"}), wanted=wanted)
    assert min(received()) == on_time < max(received())
