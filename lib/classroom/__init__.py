"""The course machinery: release, self-check, grade, report. Knows notebooks, not transformers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classroom.student.selfcheck import check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    """Import what checks when it is asked for, because torch, which it needs, takes a second."""
    if name == "check":
        from classroom.student.selfcheck import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
