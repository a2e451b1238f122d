"""What nbgrader's exchange does otherwise for this course; `nbgrader_config.py` names the classes.

Into the exchange's inbound folder every user of the machine may put anything, and nbgrader's
`collect` reads it with the instructor's permissions. So nothing that a student writes decides whose
a submission is, when it arrived, or which files are read.
"""

import glob
import os
import pwd
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbgrader.exchange.default import (
    ExchangeCollect,
    ExchangeReleaseAssignment,
    ExchangeReleaseFeedback,
)

from classroom.calls.files import read_file
from classroom.grader.collect import LEDGER, MAX_BYTES
from classroom.grader.json_lines import append
from classroom.grader.submission import Unreadable, names_in

_TIME = "timestamp.txt"


class ReleaseAssignment(ExchangeReleaseAssignment):
    """Releases a whole handout: `CourseDirectory.ignore` is about `solutions/`."""

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy the folder with its checks, if nobody has filled in its notebook."""
        from classroom.author.student_copy import left_out, require_blank  # imports torch

        try:
            require_blank(Path(src))
        except ValueError as error:
            self.fail(str(error))
        shutil.copytree(src, dest, ignore=left_out())


class Collect(ExchangeCollect):
    """Takes what students put into the exchange, with its time of arrival, and follows no link."""

    def _path_to_record(self, path: str) -> dict[str, Any]:
        """Return whose a submission is and when it came, by the system, not by its name."""
        status = os.lstat(path)
        if self.check_owner:
            owner = _user(status.st_uid)
        else:  # where all students are one user of the system, in containers for example
            owner = super()._path_to_record(path)["username"]
        arrived = datetime.fromtimestamp(status.st_ctime, UTC)
        name = os.path.basename(path)
        # nbgrader's times are in UTC and do not say so
        return {"username": owner, "filename": name, "timestamp": arrived.replace(tzinfo=None)}

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy the files that lie in a submission, and note when each of them arrived."""
        source, target = Path(src), Path(dest)
        try:
            names = names_in(source)
        except Unreadable as error:
            self.log.error("Not collected: %s: %s", ascii(src), error)
            return
        target.mkdir(parents=True)
        lines, bytes_left = [], MAX_BYTES
        for name in names:
            file = read_file(source, name)
            bytes_left -= len(file.data)
            if file.problem or bytes_left < 0:
                why = file.problem or "all files together are too large"
                self.log.warning("Left out of %s: %s: %s", ascii(src), ascii(name), why)
                continue
            (target / name).write_bytes(file.data)
            if file.received:
                lines.append(
                    {
                        "assignment": target.name,
                        "student": target.parent.name,
                        "file": name,
                        "sha256": file.digest,
                        "received": file.received.isoformat(),
                        "source": f"exchange: {source.name}",
                    }
                )
        append(target.parents[1] / LEDGER, lines)
        arrived = self._path_to_record(src)["timestamp"]
        (target / _TIME).write_text(f"{arrived} UTC")


class ReleaseFeedback(ExchangeReleaseFeedback):
    """Returns each page through the exchange, and says whose came by another way."""

    def copy_files(self) -> None:
        """Copy the pages, but for those without an owner in the exchange: nbgrader stops there."""
        for folder in sorted(glob.glob(self.src_path)):
            needed = ("timestamp.txt", "submission_secret.txt")
            if missing := [name for name in needed if not Path(folder, name).is_file()]:
                self.log.warning("Not released: %s has no %s", folder, " and no ".join(missing))
                continue
            self.src_path = glob.escape(folder)
            super().copy_files()


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
