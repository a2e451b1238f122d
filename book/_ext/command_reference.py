"""A section for each command of a command line, made of its parser.

    ```{eval-rst}
    .. commands:: groundup.__main__:_parser
    ```

Help, groups, choices and defaults stand in one place, where the program reads them too.
"""

import argparse
import importlib
import re
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from library_reference import literals
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def subcommands(parser: argparse.ArgumentParser) -> dict[str, tuple[argparse.ArgumentParser, str]]:
    """Give the commands of a program by name, each with its line in the program's help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (each, said.get(name, "")) for name, each in action.choices.items()}
    return {}


def synopsis(command: argparse.ArgumentParser) -> str:
    """Give the line that shows how to call a command, as wide on every machine."""
    command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=76)
    return command.format_usage().removeprefix("usage: ").rstrip()


def options(command: argparse.ArgumentParser) -> Iterator[str]:
    """Write each argument, those of a group below its title."""
    formatter = argparse.HelpFormatter(command.prog)
    for group in command._action_groups:
        actions = [a for a in group._group_actions if a.dest != "help"]
        is_own = group.title not in ("positional arguments", "options")
        if actions and is_own:
            yield from (f".. rubric:: {group.title}", "", as_text(group.description or ""), "")
        for action in actions:
            if action.option_strings:
                named = formatter._get_default_metavar_for_optional(action)
                value = "" if action.nargs == 0 else formatter._format_args(action, named)
                shown = ", ".join(f"{each} {value}".rstrip() for each in action.option_strings)
            else:
                shown = str(action.metavar or action.dest)
            said = formatter._expand_help(action) if action.help else ""
            yield from (f".. option:: {shown}", "", f"    {as_text(said)}", "")


def as_text(said: str) -> str:
    """Write a sentence of a program's help, with its options as code, in which `--` is no dash."""
    return re.sub(r"(?<![\w`])--\w[\w-]*", r"``\g<0>``", literals(said))


class Commands(SphinxDirective):
    """Describe the commands of a program, in a section for each."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module_name, _, function = self.arguments[0].partition(":")
        module = importlib.import_module(module_name)
        self.env.note_dependency(str(module.__file__))
        return [
            self._section(command, said)
            for command, said in subcommands(getattr(module, function)()).values()
        ]

    def _section(self, command: argparse.ArgumentParser, said: str) -> nodes.section:
        name = command.prog
        section = nodes.section(ids=[nodes.make_id(name)])
        section += nodes.title("", "", nodes.literal(name, name))
        self.env.get_domain("std").note_hyperlink_target(
            name, self.env.docname, section["ids"][0], name
        )
        description = command.description or f"{said[:1].upper()}{said[1:]}."
        lines = [as_text(description), "", ".. code-block:: text", ""]
        lines += [f"    {line}" for line in synopsis(command).splitlines()]
        lines += ["", f".. program:: {name}", "", *options(command)]
        self.state.nested_parse(StringList(lines, self.arguments[0]), 0, section)
        return section


def setup(app: Sphinx) -> dict:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
