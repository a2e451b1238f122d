import re

CODE = '''"""A module."""


def kept(x):
    """Say what."""
    return x


def shortened(x):
    r"""Say what,
    in two lines.

    Args:
        x: Not printed.

    """
    return x + 1  # printed


class Whole:
    """Hold x.

    Not printed.
    """

    def get(self):
        """Get x."""
'''


def test_a_function_is_printed_whole_but_for_all_paragraphs_of_its_docstring_after_the_first(
    small_book,
):
    book = small_book("short_docstrings")
    book.write("code.py", CODE)
    names = ("kept", "shortened", "Whole")
    parts = [f"```{{literalinclude}} code.py\n:pyobject: {name}\n```\n" for name in names]
    book.write(
        "listing.md", "# Code\n\n" + "\n".join([*parts, "```{literalinclude} code.py\n```\n"])
    )
    built = book.build()
    assert built.returncode == 0, built.stderr
    *shown, whole = (
        re.sub("<[^>]+>", "", block).replace("&quot;", '"').strip()
        for block in re.findall("<pre>(.*?)</pre>", book.html("listing"), re.DOTALL)
    )
    assert shown == [
        'def kept(x):\n    """Say what."""\n    return x',
        'def shortened(x):\n    r"""Say what,\n    in two lines."""\n    return x + 1  # printed',
        'class Whole:\n    """Hold x."""\n\n    def get(self):\n        """Get x."""',
    ]
    assert whole == CODE.strip(), "who includes a file gets the file"
