"""Brings an assignment to Google Colab, where a notebook comes alone and a machine is forgotten."""

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from urllib.request import urlopen

DRIVE = Path("/content/drive")


def begin(assignment: str, archive: str) -> None:
    """Put the course's exercises into the student's Drive, and work in the assignment's folder.

    A notebook that is there stays as it is; checks and what they need are those of the archive.

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
        for made in Path(scratch).glob("*/exercises/*/*"):
            target = course / "exercises" / made.parent.name / made.name
            if made.suffix != ".ipynb" or not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(made, target)
    if not (course / "exercises" / assignment).is_dir():
        raise FileNotFoundError(f"the course at {archive} has no exercises/{assignment}")
    os.chdir(course / "exercises" / assignment)
    print(
        "The course is installed. Keep your work: File, Save a copy in Drive. What you have "
        f'written so far becomes a library by  !classroom mine --root "{course}"',
        file=sys.stderr,
    )
