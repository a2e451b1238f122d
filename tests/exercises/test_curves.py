"""Readers train with the program that the check of exercise 7.8 trains with."""

import math
import runpy
from pathlib import Path

import nbformat
import torch
import torch.nn.functional as F

ROOT = Path(__file__).parents[2]
HANDOUT, SOLUTIONS = (ROOT / folder / "07_training" for folder in ("exercises", "solutions"))


def test_the_notebook_and_the_check_train_the_same_runs():
    cells = nbformat.read(HANDOUT / "training.ipynb", as_version=4).cells
    (program,) = [cell.source for cell in cells if "def train_side_by_side" in cell.source]
    shown = {"math": math, "torch": torch, "F": F}
    exec(program, shown)
    checked = runpy.run_path(str(SOLUTIONS / "checks.py"))

    assert shown["MISTAKES"] == checked["MISTAKES"]
    torch.testing.assert_close(shown["language"](), checked["language"](), rtol=0, atol=0)
    theirs, ours = (
        one["train_side_by_side"](one["MISTAKES"], seed=3, num_steps=20) for one in (shown, checked)
    )
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)
    held_out = torch.stack([run["held_out"] for run in ours])
    assert len(held_out.unique(dim=0)) == len(ours), "every mistake draws a curve of its own"
