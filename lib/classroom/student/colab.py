"""Brings an assignment to Google Colab, where a notebook comes alone and a machine is forgotten."""

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from urllib.request import urlopen

from classroom.student import work

DRIVE = Path("/content/drive")


def begin(assignment: str, archive: str) -> None:
    """Put the course's exercises into the student's Drive, and work in the assignment's folder.

    What a student has written there stays; all else becomes what the archive has.

    Args:
        assignment: Its folder's name, such as `01_attention`.
        archive: Address of the course as a `.tar.gz`, with one folder around everything.

    Raises:
        FileNotFoundError: If the archive has no such assignment.
        OSError: If the archive cannot be fetched, or Drive is not allowed.

    """
    from google.colab import drive  # type: ignore[import-not-found]

    drive.mount(str(DRIVE))
    course = DRIVE / "MyDrive" / "attention-from-the-ground-up"
    with tempfile.TemporaryDirectory() as scratch:
        with urlopen(archive) as answer, tarfile.open(fileobj=answer, mode="r|gz") as files:
            files.extractall(scratch, filter="data")
        for released in Path(scratch).glob("*/exercises"):
            shutil.copytree(released, course / "exercises", dirs_exist_ok=True)
    if not (course / "exercises" / assignment).is_dir():
        raise FileNotFoundError(f"the course at {archive} has no exercises/{assignment}")
    work.prepare(course)
    os.chdir(course / work.WORK / assignment)
    print(
        "The course is installed. To keep your work, choose File, Save a copy in Drive. To make a "
        f'library of what you have written so far, run:  !classroom mine --root "{course}"',
        file=sys.stderr,
    )
