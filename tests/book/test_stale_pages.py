import re
from functools import partial
from pathlib import Path

import pytest
import stale_pages
from stale_pages import Memory, files_at, files_behind, fingerprint, imported_names, named_paths


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """A package in which `models` needs `heads`, `heads` needs `scores`, and `dates` is alone."""
    package = tmp_path / "lib" / "course"
    (package / "inner").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "models.py": "from course.heads import Head",
        "heads.py": "import torch\nfrom . import scores",
        "scores.py": "",
        "dates.py": "",
        "inner/__init__.py": "",
        "inner/deep.py": "from ..scores import score\nfrom .twin import x",
        "inner/twin.py": "",
    }.items():
        (package / name).write_text(text)
    return package.parent


def of(source, roots, folders=()):
    """Give the fingerprint of a page with this code."""
    return fingerprint(imported_names(source), named_paths(source), roots, folders)


def executed_in(book, *pages):
    """Build a book, and say which of these pages were executed for it, or begun by Sphinx."""
    built = book.build()
    assert built.returncode == 0, built.stdout + built.stderr
    ways = r"executed {0} in|\b{0}\b.*: Executing notebook using"
    return {page for page in pages if re.search(ways.format(page), built.stdout)}


def names(files, lib):
    return {file.relative_to(lib / "course").as_posix() for file in files}


def test_every_form_of_import_is_seen():
    source = "import a.b\nimport c as d\nfrom e import f\nfrom .g import h\nfrom .. import i"
    assert imported_names(source, "top.mid") == {
        *("a.b", "c", "e", "e.f"),
        *("top.mid.g", "top.mid.g.h", "top", "top.i"),
    }


def test_imports_inside_functions_are_seen():
    assert imported_names("def f():\n    import late") == {"late"}


def test_imports_are_followed_from_module_to_module(lib):
    found = files_behind({"course.models"}, [lib])
    assert names(found, lib) == {"__init__.py", "models.py", "heads.py", "scores.py"}


def test_relative_imports_are_followed_from_an_inner_package(lib):
    found = files_behind({"course.inner.deep"}, [lib])
    deep = {"inner/__init__.py", "inner/deep.py", "inner/twin.py"}
    assert names(found, lib) == {"__init__.py", "scores.py", *deep}


def test_modules_of_others_are_not_followed(lib):
    assert files_behind({"torch", "os.path"}, [lib]) == set()


def test_circular_imports_end(lib):
    (lib / "course" / "scores.py").write_text("import course.models")
    assert names(files_behind({"course.scores"}, [lib]), lib) >= {"models.py", "scores.py"}


@pytest.mark.parametrize("changed", ["models.py", "heads.py", "scores.py", "__init__.py"])
def test_a_change_in_anything_a_page_imports_changes_its_fingerprint(lib, changed):
    before = of("from course import models", [lib])
    (lib / "course" / changed).write_text("answer = 42")
    assert of("from course import models", [lib]) != before


def test_a_change_elsewhere_leaves_the_fingerprint_alone(lib):
    before = of("from course import models", [lib])
    (lib / "course" / "dates.py").write_text("answer = 42")
    assert of("from course import models", [lib]) == before


def test_data_beside_the_code_belong_to_the_fingerprint(lib):
    before = of("import course", [lib])
    (lib / "course" / "weights.safetensors").write_bytes(b"trained")
    assert of("import course", [lib]) != before


def test_data_of_a_package_inside_belong_to_that_package_alone(lib):
    (lib / "course" / "inner" / "trained").mkdir()
    weights = lib / "course" / "inner" / "trained" / "weights.safetensors"
    weights.write_bytes(b"trained")
    outer, inner = (of(f"import course{name}", [lib]) for name in ("", ".inner"))
    weights.write_bytes(b"trained longer")
    assert of("import course", [lib]) == outer
    assert of("import course.inner", [lib]) != inner


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of pages beside a folder of records."""
    (tmp_path / "book").mkdir()
    (tmp_path / "tests" / "records").mkdir(parents=True)
    for name in ("speed.json", "cost.json", "measure.py"):
        (tmp_path / "tests" / "records" / name).write_text("7")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open('../tests/records/speed.json')", {"speed.json"}),
        ("ROOT / 'tests/records/speed.json'", {"speed.json"}),
        ("(ROOT / 'tests' / 'records' / 'speed.json').read_text()", {"speed.json"}),
        ("ROOT / 'tests' / 'records' / f'{name}.json'", {"speed.json", "cost.json"}),
        ("Path('..') / 'tests' / 'records' / 'speed.json'", {"speed.json"}),
        ("Path('../tests', 'records')", set()),
        ("for file in Path('../tests/records').glob('*.json'): pass", {"speed.json", "cost.json"}),
        (
            "a, b = 'tests/records/cost.json', '../tests/records/speed.json'",
            {"speed.json", "cost.json"},
        ),
        ("'tests/records/nothing.json', '', '.', '..', './', '/', 'speed.json', 'a\\0/b'", set()),
        ("'../../../../../../../../../etc/hostname', '/etc/hostname'", set()),
        ("total / 7, 'tests' / count, x / y / z", set()),
    ],
)
def test_files_that_a_page_names_are_found(project, source, found):
    folders = [project / "book", project]
    assert {file.name for file in files_at(named_paths(source), folders)} == found


def test_a_change_in_a_file_that_a_page_names_changes_its_fingerprint(project):
    source, folders = "open('../tests/records/speed.json')", [project / "book", project]
    before = of(source, [], folders)
    (project / "tests" / "records" / "cost.json").write_text("11")
    assert of(source, [], folders) == before
    (project / "tests" / "records" / "speed.json").write_text("11")
    assert of(source, [], folders) != before


def test_a_fingerprint_is_the_same_wherever_the_project_lies(tmp_path):
    given = []
    for lib, book in (("a/lib", "b/book"), ("d/lib", "c/book")):
        (tmp_path / lib).mkdir(parents=True)
        (tmp_path / book).mkdir(parents=True)
        (tmp_path / lib / "scores.py").write_text("answer = 42")
        (tmp_path / book / "speed.json").write_text("7")
        folder = tmp_path / book
        given.append(of("import scores; open('./speed.json')", [tmp_path / lib], [folder]))
    assert given[0] == given[1]


def test_what_was_found_in_a_text_is_remembered_and_what_is_gone_forgotten(tmp_path):
    file, asked = tmp_path / "texts.json", []

    def look_at(text):
        asked.append(text)
        return 7

    def recalled(*texts):
        memory = Memory(file)
        found = [memory.recall("length", text, partial(look_at, text)) for text in texts]
        memory.keep()
        return found

    assert recalled("a", "b", "a") == [7, 7, 7]
    assert recalled("b", "c") == [7, 7]
    assert recalled("a") == [7]
    assert asked == ["a", "b", "c", "a"]
    assert Memory(file).recall("width", "a", lambda: 11) == 11
    file.write_text(file.read_text()[:-3])  # as a build leaves it that was killed
    assert recalled("a") == recalled("a") == [7]
    assert asked == ["a", "b", "c", "a", "a"]


def test_a_new_version_of_torch_changes_every_fingerprint(lib, monkeypatch):
    before = of("x = 1", [lib])
    monkeypatch.setattr(stale_pages, "version", lambda name: "999")
    assert of("x = 1", [lib]) != before


@pytest.mark.slow
def test_exactly_the_pages_that_depend_on_a_change_are_executed_again(small_book):
    book = small_book("stale_pages", "parallel_pages")
    book.write("first_numbers.py", "value = 2")
    book.write("other_numbers.py", "value = 3")
    book.write_page("first", "import first_numbers\nprint('first', first_numbers.value * 11)")
    book.write_page("other", "import other_numbers\nprint('other', other_numbers.value * 11)")

    executed = partial(executed_in, book, "first", "other")

    assert executed() == {"first", "other"}
    assert "first 22" in book.html("first")
    assert executed() == set()

    book.write("first_numbers.py", "value = 5")
    assert executed() == {"first"}
    assert "first 55" in book.html("first")

    book.write("first_numbers.py", "value = 2")  # what it was, and what an old result still shows
    assert executed() == {"first"}
    assert "first 22" in book.html("first")

    (record,) = book.folder.rglob(stale_pages.RECORD)
    record.unlink()
    assert executed() == {"first", "other"}


@pytest.mark.slow
def test_a_page_that_reads_a_record_is_executed_again_when_the_record_changes(small_book):
    book = small_book("stale_pages", "parallel_pages")
    (book.folder / "records").mkdir()
    record = book.folder / "records" / "speed.json"
    record.write_text("2")
    book.write_page("reads", "print('reads', 11 * int(open('../records/speed.json').read()))")
    book.write_page("other", "print('other', 3 * 11)")

    executed = partial(executed_in, book, "reads", "other")

    assert executed() == {"reads", "other"}
    record.write_text("5")
    assert executed() == {"reads"}
    assert "reads 55" in book.html("reads")


@pytest.mark.slow
def test_a_page_that_sees_only_the_length_of_a_file_is_executed_again_when_that_changes(small_book):
    seen = {"sees": {".txt": "builtins.len"}}
    book = small_book("stale_pages", "parallel_pages", seen_through=seen)
    words = book.folder / "words.txt"
    words.write_text("two words")
    book.write_page("sees", "print('sees', len(open('../words.txt').read()))")
    book.write_page("reads", "print('reads', open('../words.txt').read())")

    executed = partial(executed_in, book, "sees", "reads")

    assert executed() == {"sees", "reads"}
    words.write_text("six words")
    assert executed() == {"reads"}
    words.write_text("three words")
    assert executed() == {"sees", "reads"}
    assert "sees 11" in book.html("sees")


@pytest.mark.slow
def test_a_page_whose_kernel_died_is_executed_once_more(small_book):
    book = small_book("stale_pages", "parallel_pages")
    book.write_page(
        "unlucky",
        "import os, pathlib\n"
        "if not pathlib.Path('../been_here').exists():\n"
        "    pathlib.Path('../been_here').touch()\n"
        "    os._exit(3)\n"
        "print(7 * 11)",
    )
    assert executed_in(book, "unlucky") == {"unlucky"}
    assert "77" in book.html("unlucky")


@pytest.mark.slow
def test_a_page_that_fails_breaks_the_build_and_is_named(small_book):
    book = small_book("stale_pages", "parallel_pages")
    book.write_page("good", "print(7 * 11)")
    book.write_page("bad", "raise ArithmeticError('seven is not eleven')")
    built = book.build()
    assert built.returncode != 0
    assert "bad.md: WARNING" in built.stderr
    assert "seven is not eleven" in built.stderr
    assert "77" in book.html("good")


@pytest.mark.slow
def test_a_page_that_failed_is_tried_again_though_it_did_not_change(small_book):
    book = small_book("stale_pages", "parallel_pages")
    book.write("numbers_to_come.py", "value = 2 / 0")
    book.write_page("page", "import numbers_to_come\nprint(numbers_to_come.value * 11)")
    for _ in range(2):
        built = book.build()
        assert built.returncode != 0
        assert "division by zero" in built.stderr
    book.write("numbers_to_come.py", "value = 5")
    built = book.build()
    assert built.returncode == 0, built.stdout + built.stderr
    assert "55" in book.html("page")
