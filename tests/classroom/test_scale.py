"""Shards of a class: together they give what one machine gives, or say what they lack."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from classroom import cluster
from classroom.grade import VERDICTS, HandedIn, Run, Settings, grade_folder
from classroom.intake import Parcel, pack
from classroom.report import read_lines, to_csv
from classroom.sandbox import Limits
from classroom.scale import Incomplete, Shard, grade_shard, merge

CLASS = ("ada", "bo", "=1+1", "Zoë, née O'Brien", "cy")
N = 3
# A folder's name as some old systems wrote it, which is no UTF-8.
STRANGE = b"\xe9mile".decode("utf-8", "surrogateescape")


@pytest.fixture
def students(hand_in, submitted):
    """Five students: two with mistakes, and one whose file is damaged."""
    hand_in("ada")
    hand_in("bo", twice=None)
    hand_in("=1+1", centre=None)
    hand_in("Zoë, née O'Brien")
    (hand_in("cy") / "averages.ipynb").write_text("{")
    return CLASS


@pytest.fixture
def grade_all(handout, submitted):
    """Grade all shards, or some."""

    def grade(kept, numbers=range(1, N + 1), of=N, **options):
        for number in numbers:
            grade_shard(Shard(number, of), handout, submitted, kept, **options)

    return grade


def csv(summary):
    return to_csv(summary.verdicts)


@pytest.mark.parametrize("student", [*CLASS, STRANGE])
def test_a_student_is_in_one_shard_whoever_else_hands_in(student, tmp_path):
    each = HandedIn(student, tmp_path)
    assert sum(Shard(i, 7).holds(each) for i in range(1, 8)) == 1
    assert Shard(1, 1).holds(each)


def test_shards_are_about_equally_large():
    sizes = [0] * 5
    for number in range(1000):
        sizes[Shard.of_student(f"student {number}", 5).number - 1] += 1
    assert sum(sizes) == 1000 and 150 < min(sizes) and max(sizes) < 250


def test_a_shard_is_written_as_i_of_n():
    assert Shard.parse("3/8") == Shard(3, 8) and str(Shard(3, 8)) == "3/8"
    for text in ("3", "3/", "-1/2", "1/2/3", "a/b", " 1/2"):
        with pytest.raises(ValueError, match="written i/n, such as 3/8"):
            Shard.parse(text)
    for text in ("0/8", "9/8", "0/0"):
        with pytest.raises(ValueError, match=f"has an i from 1 to n, got {text}"):
            Shard.parse(text)


def test_merged_shards_are_what_one_machine_gives(
    here, students, grade_all, handout, submitted, tmp_path
):
    alone = grade_folder(handout, submitted, tmp_path / "alone")
    del here[:]
    kept, told = tmp_path / "shared", []
    grade_all(kept)
    assert sorted(here) == sorted(CLASS), "a student was graded twice"
    assert not (kept / VERDICTS).exists()
    files = {path.parent.name: len(read_lines(path)) for path in kept.glob("*/verdicts.jsonl")}
    sizes = [sum(Shard(i, N).holds(HandedIn(s, tmp_path)) for s in CLASS) for i in (1, 2, 3)]
    assert files == {f"shard-{i}-of-3": n for i, n in enumerate(sizes, 1) if n}

    def gradebook(verdict, notebook):
        told.append((verdict.student, verdict.earned, len(notebook.cells) > 5))

    merged = merge(handout, submitted, kept, gradebook=gradebook)
    assert csv(merged) == csv(alone) and merged.num_new == len(CLASS)
    assert sorted(told) == sorted((v.student, v.earned, True) for v in alone.verdicts)
    assert list(merged.verdicts) == read_lines(kept / VERDICTS)
    report = json.loads(merged.report.read_text())
    assert sorted(report["students"]) == sorted(CLASS)
    commitments = {verdict.seed_commitment for verdict in merged.verdicts}
    assert commitments == {report["seed_commitment"]} and Run.unfinished(kept) is None
    assert csv(merge(handout, submitted, kept, gradebook=gradebook)) == csv(alone)
    assert len(told) == len(CLASS), "somebody was written twice"


def test_who_is_missing_is_named_and_nothing_is_written(
    here, students, hand_in, grade_all, handout, submitted, kept
):
    of_bo = Shard.of_student("bo", N)
    others = [i for i in range(1, N + 1) if i != of_bo.number]
    grade_all(kept, others)
    with pytest.raises(Incomplete, match=f"^shard {of_bo} is missing$"):
        merge(handout, submitted, kept)
    grade_all(kept, [of_bo.number])
    hand_in("bo")
    hand_in("dan")
    with pytest.raises(Incomplete) as found:
        merge(handout, submitted, kept)
    assert found.value.sentences == (
        f"bo has handed in again: run shard {of_bo} again",
        f"dan is not graded yet: run shard {Shard.of_student('dan', N)} again",
    )
    assert not (kept / VERDICTS).exists()
    del here[:]
    grade_all(kept)
    assert sorted(here) == ["bo", "dan"]
    assert [v.earned for v in merge(handout, submitted, kept).verdicts if v.student == "bo"] == [5]


def test_a_shard_that_was_stopped_goes_on(here, students, handout, submitted, kept):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    shard = Shard(1, 1)
    with pytest.raises(KeyboardInterrupt):
        grade_shard(shard, handout, submitted, kept, progress=stop)
    assert grade_shard(shard, handout, submitted, kept).num_new == 3
    assert sorted(here) == sorted(CLASS)


def test_machines_that_share_nothing_share_the_seed(
    here, students, handout, submitted, tmp_path, grade_all
):
    """Times of receipt are those of the machine that merges, as on one machine."""
    first, second = tmp_path / "first", tmp_path / "second"
    Run.start(first)
    second.mkdir()
    shutil.copy(Run.path(first), second)
    grade_all(first, [1])
    grade_all(second, [2, 3])
    lines = (second / "shard-2-of-3" / VERDICTS, second / "shard-3-of-3" / VERDICTS)
    for path in filter(lambda path: path.exists(), lines):
        copied = [replace(v, received="2030-01-01T00:00:00+00:00") for v in read_lines(path)]
        path.write_text("".join(json.dumps(v.to_json()) + "\n" for v in copied))
    alone = grade_folder(handout, submitted, tmp_path / "alone")
    assert csv(merge(handout, submitted, first, [first, second])) == csv(alone)


def test_shards_that_do_not_belong_together_are_refused(
    here, students, handout, submitted, tmp_path, grade_all
):
    first, second = tmp_path / "first", tmp_path / "second"
    grade_all(first, [1])
    grade_all(second, [2, 3])
    with pytest.raises(ValueError, match="not belong together: they have different seeds"):
        merge(handout, submitted, first, [first, second])
    with pytest.raises(ValueError, match="is there twice"):
        shutil.copytree(first, tmp_path / "copy")
        merge(handout, submitted, first, [first, tmp_path / "copy"])
    third = tmp_path / "third"
    third.mkdir()
    shutil.copy(Run.path(first), third)
    grade_all(third, [2], limits=Limits(processes=7))
    with pytest.raises(ValueError, match="they have different limits"):
        merge(handout, submitted, first, [first, third])
    grade_all(third, [2], of=5)
    with pytest.raises(ValueError, match="they have different numbers of shards"):
        merge(handout, submitted, first, [first, third / "shard-2-of-5"])
    (third / "shard-2-of-3" / "shard.json").write_text("{}")
    with pytest.raises(ValueError, match="says nothing about a shard"):
        merge(handout, submitted, first, [first, third])
    with pytest.raises(ValueError, match="there is no shard in"):
        merge(handout, submitted, tmp_path / "nowhere")
    grade_all(second, [1])
    with pytest.raises(ValueError, match="the seed of these shards is not in"):
        merge(handout, submitted, tmp_path / "nowhere", [second])


def test_a_run_that_was_begun_in_shards_is_ended_by_a_merge(
    here, students, handout, submitted, kept, grade_all
):
    grade_all(kept, [1])
    with pytest.raises(ValueError, match="this run was begun in shards"):
        grade_folder(handout, submitted, kept)


def test_what_travels_arrives_as_it_was(hand_in, handout, tmp_path):
    folder = hand_in("ada")
    (folder / STRANGE).touch()
    (folder / "second.ipynb").symlink_to("averages.ipynb")
    parcel = pack(folder, handout.master)
    sent = json.loads(json.dumps(parcel.to_json()))
    assert Parcel.from_json(sent) == parcel
    assert Parcel.from_json(sent).digest == parcel.digest
    assert parcel.notebooks["second.ipynb"].problem.startswith("second.ipynb is a link")


def test_a_worker_of_another_version_refuses(handout):
    settings = Settings(assignment=handout, limits=Limits(), allow_weaker=False, seed="secret")
    order = cluster._Order.of(settings)
    told = replace(order, digest="another")
    parcel = json.dumps(Parcel(datetime(2026, 1, 2, tzinfo=UTC)).to_json()).encode()
    answer = json.loads(cluster.grade_on_worker(told.to_bytes(), "ada", parcel))
    assert "another version of Python, torch or this package" in answer["refused"]
    assert cluster._Order.from_bytes(order.to_bytes()) == order
