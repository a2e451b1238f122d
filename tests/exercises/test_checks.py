"""The checks know the solutions, the blanks, the mistakes and the variants, on unseen seeds.

One seed each here. On how many of twenty a mistake is named, tests/benchmarks/test_diagnosis.py
counts.
"""

import ast
import hashlib
import re
import symtable
from collections import Counter

import nbformat

from classroom.selfcheck import MAX_MESSAGE_LINES, PUBLISHED_SEED, load_checks, run_checks
from classroom.subjects import LocalSubject
from classroom.wire import pack


def test_the_solution_gets_full_marks(exercise, self_check):
    assignment, name = exercise
    report = self_check(assignment, assignment.solution(name))
    assert report.earned == report.points, report.to_text()


def test_the_blank_gets_nothing_and_says_what_to_write(exercise, self_check):
    assignment, name = exercise
    report = self_check(assignment, assignment.blank(name))
    asks = load_checks(assignment.handout)[name][0].asks
    assert report.earned == 0
    assert "is not written yet" in report.messages[0]
    assert asks in report.messages[0]


def test_a_mistake_is_caught_and_named_and_no_other_is(mistake, self_check):
    assignment, answer = mistake
    report = self_check(assignment, answer)
    assert report.earned < report.points, f"{answer.name} passes"
    assert report.mistakes == [answer.name], report.to_text()
    assert answer.title in report.to_text()
    assert len(report.to_text().splitlines()) <= MAX_MESSAGE_LINES


def test_a_variant_gets_full_marks(variant, self_check):
    report = self_check(*variant)
    assert report.earned == report.points, report.to_text()


def test_every_exercise_has_mistakes_and_variants_enough(assignment):
    mistakes = Counter(answer.exercise for answer in assignment.mistakes)
    variants = Counter(answer.exercise for answer in assignment.variants)
    for name in assignment.exercises:
        assert mistakes[name] >= 3, f"{name} has {mistakes[name]} mistakes"
        assert variants[name] >= 3, f"{name} has {variants[name]} variants"
    assert set(mistakes) | set(variants) == set(assignment.exercises)


def test_an_answer_uses_no_name_that_its_notebook_lacks(assignment):
    text = nbformat.read(assignment.handout / assignment.notebook_name, as_version=4)
    given = [cell.source for cell in text.cells if cell.cell_type == "code" and not is_graded(cell)]
    there = set().union(*(names_bound_by(source) for source in given))
    for answer in assignment.mistakes + assignment.variants:
        names = (node for node in ast.walk(ast.parse(answer.cell)) if isinstance(node, ast.Name))
        used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        lacking = (used & names_bound_by(answer.prelude)) - there - names_bound_by(answer.cell)
        assert not lacking, f"{answer.exercise} {answer.name}"


def is_graded(cell):
    marks = cell.metadata.get("nbgrader", {})
    return marks.get("solution") or marks.get("grade")


def names_bound_by(source):
    python = re.sub(r"(?m)^\s*[%!].*$", "", source)
    symbols = symtable.symtable(python, "a cell", "exec").get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


def test_answers_differ_from_the_solution_and_from_each_other(assignment):
    answers = assignment.mistakes + assignment.variants
    answers += [assignment.solution(name) for name in assignment.exercises]
    cells = Counter((a.exercise, a.change_files, ast.dump(ast.parse(a.cell))) for a in answers)
    assert max(cells.values()) == 1


def test_the_inputs_of_a_check_change_with_the_seed_and_not_without_it(exercise):
    assignment, name = exercise
    first, again, other = (inputs_seen(assignment, name, seed) for seed in ("a", "a", "b"))
    assert first == again
    is_own = name.startswith("check_") or load_checks(assignment.handout)[name][0].files
    assert first != other or is_own, "the inputs are the student's own there"


def inputs_seen(assignment, name, seed):
    """Record what the checks of an exercise hand to its solution, which is right."""
    calls = []

    class Recorder(LocalSubject):
        def call(self, name, *args, **kwargs):
            calls.append((name, hashlib.sha256(pack(args)).digest()))
            return super().call(name, *args, **kwargs)

    solution = assignment.solution(name)
    subject = Recorder(solution.namespace, files=assignment.files(solution))
    report = run_checks(assignment.handout, name, subject, seed)
    assert report.earned == report.points, report.to_text()
    return calls


def test_the_readme_shows_what_a_check_really_says(every_assignment, root, self_check):
    assignment = next(a for a in every_assignment if a.name == "01_attention")
    no_scale = next(answer for answer in assignment.mistakes if answer.name == "NoScale")
    said = self_check(assignment, no_scale, PUBLISHED_SEED).to_text().splitlines()
    readme = (root / "README.md").read_text(encoding="utf-8")
    shown = readme[readme.index(said[0]) :].split("```")[0].splitlines()
    assert [line for line in shown if line.strip() != "…"] == [
        line for line in said if line in shown and line
    ]
    assert sum(line != "" for line in shown) > 6
