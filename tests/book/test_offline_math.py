import importlib.util
from types import SimpleNamespace

import pytest
from offline_math import BUNDLE, FONTS, carried_files, copy_mathjax
from sphinx.errors import ExtensionError


def html_build(folder):
    return SimpleNamespace(outdir=folder, builder=SimpleNamespace(format="html"))


def test_the_bundle_the_fonts_and_the_licence_are_copied_and_little_else(tmp_path):
    copy_mathjax(html_build(tmp_path), None)
    copied = tmp_path / "_static" / "mathjax"
    files = [file for file in copied.rglob("*") if file.is_file()]
    fonts = [file for file in files if file.is_relative_to(copied / FONTS)]
    assert {file.name for file in files if file not in fonts} == {BUNDLE, "LICENSE"}
    assert len(fonts) == len(list((carried_files() / FONTS).iterdir())) > 20
    assert sum(file.stat().st_size for file in files) < 2_000_000
    assert "Apache License" in (copied / "LICENSE").read_text()


def test_it_is_the_version_the_page_settings_are_written_for():
    assert "3.2.2" in (carried_files() / BUNDLE).read_text(encoding="utf-8")


def test_nothing_is_copied_after_a_build_that_failed(tmp_path):
    copy_mathjax(html_build(tmp_path), ValueError("a page is broken"))
    assert not list(tmp_path.iterdir())


def test_a_missing_carrier_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtensionError, match="python -m pip install -r requirements.txt"):
        carried_files()
