"""The course machinery: release, self-check, grade, report. Knows notebooks, not transformers."""

from classroom.selfcheck import check

__all__ = ["check"]
