"""Undoes what a cell has changed in how later cells are read, run and checked.

A cell shares its process with IPython and with our own part of the sandbox. A change to either
would break the cells after it, and those may well be right. This protects against accidents only:
grades are decided in another process.
"""

import builtins
import sys
from types import ModuleType
from typing import Any

from IPython.core import events, inputtransformer2, interactiveshell
from IPython.core.interactiveshell import InteractiveShell

_OUR_PACKAGE = "classroom"
_PARTS = """
    input_transformer_manager events custom_exceptions compile displayhook display_pub
    display_formatter user_ns
""".split()
_LISTS_OF_THE_SHELL = ("input_transformers_post", "ast_transformers")
_LISTS_OF_ITS_READER = ("cleanup_transforms", "line_transforms", "token_transformers")


class InitialState:
    """The state of a shell, and of all that runs its cells, before the first cell.

    Args:
        shell: Runs the cells.

    """

    def __init__(self, shell: InteractiveShell):
        self._shell = shell
        self._parts = {name: getattr(shell, name) for name in _PARTS}
        self._lists = [(owner, name, list(now)) for owner, name, now in self._all_lists()]
        self._names = [(owner, _fixed(owner)) for owner in _owners(type(shell))]

    def restore(self) -> bool:
        """Undo all changes, and return whether there were any.

        Additions by a library stay, such as the type checks of an extension; those that the
        notebook itself defines go.
        """
        shell = self._shell
        is_changed = False
        for owner, names in self._names:
            now = vars(owner)
            for name, value in names.items():
                if now.get(name) is not value:
                    setattr(owner, name, value)
                    is_changed = True
        for name in [n for n in vars(shell) if callable(getattr(type(shell), n, None))]:
            del vars(shell)[name]
            is_changed = True
        for name, part in self._parts.items():
            if getattr(shell, name, None) is not part:
                setattr(shell, name, part)
                is_changed = True
        for owner, name, before in self._lists:
            now = owner[name] if isinstance(owner, dict) else getattr(owner, name)
            kept = [*before, *(x for x in now if not _is_in(x, before) and not _is_own(x))]
            if not _is_same(kept, now):
                if isinstance(owner, dict):
                    owner[name] = kept
                else:
                    setattr(owner, name, kept)
                is_changed = True
        return is_changed

    def _all_lists(self) -> list[tuple[Any, str, list[Any]]]:
        reader, callbacks = self._shell.input_transformer_manager, self._shell.events.callbacks
        return [
            *((self._shell, name, getattr(self._shell, name)) for name in _LISTS_OF_THE_SHELL),
            *((reader, name, getattr(reader, name)) for name in _LISTS_OF_ITS_READER),
            *((callbacks, name, callbacks[name]) for name in callbacks),
        ]


def _owners(shell: type) -> list[Any]:
    """Return the modules and classes whose functions run between cells."""
    ours = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == _OUR_PACKAGE and isinstance(module, ModuleType)
    ]
    modules = [builtins, *ours, events, inputtransformer2, interactiveshell]
    classes = [
        thing
        for module in modules[1:]
        for thing in vars(module).values()
        if isinstance(thing, type) and thing.__module__ == module.__name__
    ]
    return [*modules, *dict.fromkeys([*classes, *shell.__mro__[:-1]])]


def _fixed(owner: Any) -> dict[str, Any]:
    """Return what may not change, by name: everything of ours, only functions of others."""
    is_ours = getattr(owner, "__module__", owner.__name__).partition(".")[0] == _OUR_PACKAGE
    kinds = (property, staticmethod, classmethod, ModuleType)
    return {
        name: value
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, kinds) or (is_ours and not name.startswith("__"))
    }


def _is_own(thing: Any) -> bool:
    """Return whether the notebook has defined it."""
    return "__main__" in (getattr(thing, "__module__", None), type(thing).__module__)


def _is_in(thing: Any, things: list[Any]) -> bool:
    return any(thing is each for each in things)


def _is_same(things: list[Any], others: list[Any]) -> bool:
    return len(things) == len(others) and all(map(lambda a, b: a is b, things, others))
