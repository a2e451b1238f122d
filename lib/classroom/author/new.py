"""Writes a small assignment for an author to change: `classroom new 11_topic`."""

from pathlib import Path

from classroom.author.guard import FILES
from classroom.course import assignments, text_file

_TEMPLATE = Path(__file__).with_name("template")
_TOPIC, _NUMBER = "averages", "10"


def new_assignment(root: Path, name: str) -> list[Path]:
    """Write an assignment of one exercise that can be released as it is.

    Its text explains the four files that an assignment consists of.

    Args:
        root: The course's folder.
        name: Of the assignment, such as `11_topic`; numbers its exercise 11.1.

    Returns:
        The files written.

    Raises:
        ValueError: If the name does not have that form, or if there is such a folder, or an
            assignment with its number.

    """
    folder = root / "solutions" / name
    text = text_file(folder)
    if not text.stem.isidentifier() or text.name in FILES:
        taken = ", ".join(Path(file).stem for file in FILES)
        raise ValueError(
            f"the topic must be a valid name in Python other than {taken}, got {text.stem!r}"
        )
    number = int(name.partition("_")[0])
    for other in (*assignments(root / "solutions"), *folder.parent.glob(name)):
        if other == folder or int(other.name.partition("_")[0]) == number:
            raise ValueError(f"{other} is there already")
    folder.mkdir(parents=True)
    changes = {
        f"# # {_TOPIC.capitalize()}\n": f"# # {text.stem.replace('_', ' ').capitalize()}\n",
        f'number="{_NUMBER}.': f'number="{number}.',
    }
    written = []
    for path in (text, *(folder / file for file in FILES)):
        source = _TEMPLATE / (path.name if path.name in FILES else f"{_TOPIC}.py")
        content = source.read_text(encoding="utf-8")
        for old, new in changes.items():
            content = content.replace(old, new)
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written
