"""What a cell changes of what later cells need is undone; what libraries add to it stays."""

import pytest

RESTORED = {
    "how a cell is read": "get_ipython().input_transformers_post.append(lambda lines: [])",
    "how a line is read": (
        "get_ipython().input_transformer_manager.line_transforms[:] = [lambda lines: []]"
    ),
    "how text becomes a program": (
        "import ast\n"
        "class Nothing(ast.NodeTransformer):\n    def visit_Expr(self, node): return None\n"
        "get_ipython().ast_transformers = [Nothing()]"
    ),
    "what happens before a cell": (
        "def stop(*info): raise SystemExit\n"
        "get_ipython().events.register('pre_run_cell', stop)\n"
        "get_ipython().events.register('pre_execute', lambda: __import__('os')._exit(0))"
    ),
    "which errors are handled": (
        "get_ipython().set_custom_exc((Exception,), lambda *a, **k: None)\n"
        "get_ipython().custom_exceptions = 5"
    ),
    "the shell's own method": "get_ipython().run_cell = lambda *a, **k: None",
    "the method of its class": (
        "from IPython.core.interactiveshell import InteractiveShell as Shell\n"
        "Shell.run_cell = Shell.run_cell_async = lambda *a, **k: None"
    ),
    "its parts": "get_ipython().compile = get_ipython().input_transformer_manager = None",
    "its variables": "get_ipython().user_ns = {}",
    "what collects outputs": "type(get_ipython()).collected = property(lambda self: 1 / 0)\n"
    "from classroom.sandbox.inside import shell\nshell.Collected.text = lambda *a: None",
    "what answers checks": (
        "from classroom.calls.local import LocalSubject\nLocalSubject.call = lambda *a, **k: 198"
    ),
    "what is sent": (
        "import classroom.calls.channel, classroom.calls.local\n"
        "classroom.calls.channel.pack = classroom.calls.local.unpack = lambda *a: b''"
    ),
    "what is built in": "import builtins\nbuiltins.isinstance = builtins.print = lambda *a: False",
}
KEPT = {
    "an extension that checks types": (
        "%load_ext jaxtyping\n%jaxtyping.typechecker beartype.beartype",
        "assert any('axtyping' in type(t).__name__ for t in get_ipython().ast_transformers)",
    ),
    "an extension that reloads": ("%load_ext autoreload\n%autoreload 2", "1"),
    "pictures in their cell": ("%matplotlib inline\n%config InlineBackend.dpi = 50", "1"),
    "a magic of one's own": (
        "from IPython.core.magic import register_line_magic\n"
        "@register_line_magic\ndef double(line): return 2 * int(line)",
        "assert get_ipython().run_line_magic('double', '7') == 14",
    ),
    "variables": ("number = 5\ndef f(): return number", "assert f() == 5"),
}


@pytest.mark.parametrize("what", RESTORED)
def test_what_later_cells_need_is_put_back(what, launcher):
    with launcher.start_job() as job:
        job.run("before = 3")
        assert job.run(RESTORED[what]).is_restored
        again = job.run(
            "print(before)\ndef triple(x): return before * x\nassert isinstance(5, int)"
        )
        assert (again.error, again.is_restored) == ("", False)
        assert [output["text"] for output in again.outputs] == ["3\n"]
        assert job.run("assert False").error == "AssertionError"
        with job.serving() as subject:
            assert subject.call("triple", 7) == 21


@pytest.mark.parametrize("what", KEPT)
def test_what_libraries_add_stays_without_a_word(what, launcher):
    cell, later = KEPT[what]
    with launcher.start_job() as job:
        assert (job.run(cell).error, job.run(cell).is_restored) == ("", False)
        assert (job.run(later).error, job.run(later).is_restored) == ("", False)
