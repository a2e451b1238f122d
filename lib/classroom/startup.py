"""What makes a process of ours start fast. It comes before anything that reads notebooks."""

import sys


def skip_the_grammar_of_addresses() -> None:
    """Keep jsonschema, which checks notebooks, from compiling a grammar of web addresses.

    That takes seconds, and notebooks have no addresses to check.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
