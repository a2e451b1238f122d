import inspect
import linecache
import signal
import statistics
import sys
import threading
import time

import pytest
import torch

from classroom.calls import local
from classroom.calls.files import MAX_FILE_BYTES, File
from classroom.calls.local import LocalSubject
from classroom.calls.subject import (
    Crashed,
    NotByHand,
    NotDefined,
    NotHandedIn,
    NotWritten,
    StudentError,
    TooSlow,
    WrongKind,
)


def student(source, **options):
    """Return a subject that holds what a cell with this source defines."""
    filename = f"<cell {abs(hash(source))}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch, "time": time, "statistics": statistics}
    exec(compile(source, filename, "exec"), namespace)
    return LocalSubject(namespace, **options)


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


# By hand


def test_a_function_is_called_by_its_name():
    subject = student("def power(base, exponent, *, shift=0): return base**exponent + shift")
    assert subject.call("power", 2, 5) == 32
    assert subject.call("power", 2, exponent=3, shift=0.5) == 8.5
    assert subject.call("power", tensor(2, 3), 2).tolist() == [4, 9]


def test_several_results_keep_their_kinds():
    subject = student("def all_kinds(x): return x, [x.sum().item(), 'text'], {'none': None}")
    x, numbers, rest = subject.call("all_kinds", tensor(2, 5))
    assert x.tolist() == [2, 5] and numbers == [7.0, "text"] and rest == {"none": None}


def test_a_class_or_a_partial_is_a_function_too():
    subject = student("from functools import partial\ndouble = partial(torch.mul, 2)")
    assert subject.call("double", tensor(2, 3)).tolist() == [4, 6]


def test_gradients_by_hand():
    """The outputs are x·y and y², so x gets y·a and y gets x·a + 2y·b."""
    subject = student("def pair(x, y): return x * y, y**2")
    x, y = tensor(2, 3), tensor(5, 7)
    by_x, by_y = subject.gradients("pair", [x, y], [0, 1], [tensor(1, 10), tensor(100, 1000)])
    assert by_x.tolist() == [5, 70]
    assert by_y.tolist() == [2 + 1000, 30 + 14000]


def test_only_the_gradients_asked_for_come_back():
    subject = student("def f(x, n, y): return (x * y).sum() * n")
    (by_y,) = subject.gradients("f", [tensor(2, 3), 11, tensor(5, 7)], [2], [tensor(1)[0]])
    assert by_y.tolist() == [22, 33]


# Laws


def test_changing_an_input_in_place_does_not_reach_the_check():
    subject = student("def f(x, more): x.add_(1); more['y'][0].zero_(); return x")
    x, y = tensor(2, 3), tensor(5, 7)
    assert subject.call("f", x, {"y": [y]}).tolist() == [3, 4]
    assert x.tolist() == [2, 3] and y.tolist() == [5, 7]


def test_a_result_that_changes_later_does_not_change_the_one_returned():
    subject = student("kept = torch.zeros(2)\ndef f():\n    kept.add_(1)\n    return kept")
    first = subject.call("f")
    subject.call("f")
    assert first.tolist() == [1, 1]


def test_the_inputs_come_back_as_the_function_left_them():
    subject = student("def f(x, y): x.mul_(2); return y")
    x, y = tensor(2, 3), tensor(5, 7)
    result, (x_after, y_after) = subject.call_and_return_inputs("f", x, y)
    assert result.tolist() == y_after.tolist() == [5, 7]
    assert x_after.tolist() == [4, 6] and x.tolist() == [2, 3]


def test_parameters_are_named_if_there_are_names():
    code = "class M(torch.nn.Module):\n  def forward(self, x, mask=None): return x\n"
    subject = student(code + "def f(x, ys, *, k=1): return x\nnumber = 3")
    assert subject.parameters("f") == ["x", "ys", "k"]
    assert subject.parameters("M") == ["settings", "weights", "x", "mask"]
    assert subject.parameters("number") == subject.parameters("g") == []


def test_a_module_is_built_anew_for_each_call_but_where_one_is_asked_for_each_of_its_settings():
    subject = student(
        "class M(torch.nn.Module):\n"
        "  seen = 0\n"
        "  def __init__(self, start=0):\n    super().__init__()\n    self.seen = start\n"
        "  def forward(self, x):\n    self.seen = self.seen + x\n    return self.seen\n"
        "class N(M): pass"
    )
    assert subject.call("M", {}, {}, 3) == subject.call("M", {}, {}, 3) == 3
    with subject.together(one_module=True):
        assert [subject.call("M", {}, {}, n) for n in (3, 4)] == [3, 7]
        assert subject.call("M", {"start": 2}, {}, 5) == subject.call("N", {}, {}, 7) == 7
        assert subject.call("M", {}, {}, 4) == 11
    with subject.together():
        assert subject.call("M", {}, {}, 3) == subject.call("M", {}, {}, 3) == 3


def test_gradients_leave_the_check_s_tensors_alone():
    subject = student("def f(x): return x * 2")
    x = tensor(2, 3)
    subject.gradients("f", [x], [0], [tensor(1, 1)])
    assert not x.requires_grad and x.grad is None


def test_a_lent_function_works_on_copies_both_ways():
    seen = []

    def double(x, *, shift):
        seen.append(x)
        x.mul_(2)
        seen.append(x + shift)
        return seen[-1]

    subject = student(
        "def use(attention, x):\n    y = attention(x, shift=1)\n    return x, y.mul_(10)"
    )
    x, y = subject.call("use", subject.lend(double), tensor(2, 3))
    assert x.tolist() == [2, 3] and y.tolist() == [50, 70]
    assert seen[0].tolist() == [4, 6] and seen[1].tolist() == [5, 7]


def test_two_lent_functions_are_told_apart():
    subject = student("def difference(f, g): return f(2) - g(2)")
    first, second = subject.lend(lambda x: x * 5), subject.lend(lambda x: x * 3)
    assert first != second
    assert subject.call("difference", first, second) == 4
    assert subject.call("difference", second, first) == -4


def test_what_is_printed_or_warned_is_no_error():
    subject = student(
        "import warnings, sys\n"
        "def f(x):\n"
        "    print('hello'); print('oh', file=sys.stderr); return x"
    )
    assert subject.call("f", 2) == 2


# What stops a call


def message(error, subject, *args, **kwargs):
    with pytest.raises(error) as raised:
        subject.call(*args, **kwargs)
    assert type(raised.value) is error
    return str(raised.value)


def test_a_missing_function_is_missed_by_its_name():
    said = message(NotDefined, student("x = 2"), "attention")
    assert "`attention` is not defined: its cell has not run to the end" in said
    assert "there is a" not in said


def test_a_nearly_right_name_is_pointed_out():
    subject = student("def scaled_dotproduct_attention(): pass\nscaled_dot_product_attentio = 3")
    said = message(NotDefined, subject, "scaled_dot_product_attention")
    assert "there is a `scaled_dotproduct_attention`: is that its name?" in said


def test_something_that_is_no_function_is_said_to_be_what_it_is():
    said = message(NotDefined, student("attention = torch.ones(2)"), "attention")
    assert said == "`attention` should be a function; it is a Tensor"


@pytest.mark.parametrize(
    "blank", ["raise NotImplementedError()", "raise NotImplementedError"], ids=["called", "bare"]
)
def test_a_blank_is_not_written_yet(blank):
    subject = student(f"def attention(x):\n    # YOUR CODE HERE\n    {blank}")
    assert message(NotWritten, subject, "attention", 2) == "`attention` is not written yet"


def test_what_was_given_above_a_blank_is_no_answer():
    lines = ["class M(torch.nn.Module):", "    def __init__(self, width):"]
    lines += ["        super().__init__()", "        # YOUR CODE HERE"]
    lines += ["        raise NotImplementedError()", "    def forward(self, x): return x"]
    said = message(NotWritten, student("\n".join(lines)), "M", {"width": 3}, {}, tensor(2))
    assert said == "`M` is not written yet"


def test_a_blank_that_another_function_calls_is_named():
    subject = student(
        "def scores(x): raise NotImplementedError()\n"
        "def attention(x): return [scores(x) for _ in range(2)]"
    )
    said = message(NotWritten, subject, "attention", 2)
    assert said == "`attention` calls `scores`, which is not written yet"


@pytest.mark.parametrize(
    "body",
    [
        ["y = x + 1", "raise NotImplementedError()", "return y"],
        ["raise NotImplementedError()", "return x + 1"],
        ["if x > 1:", "    raise NotImplementedError", "return x"],
        ["# YOUR CODE HERE", "raise NotImplementedError()", "return x"],
    ],
    ids=["below", "above", "in a branch", "below a comment"],
)
def test_a_blank_s_last_line_that_was_left_beside_an_answer_is_pointed_out(body):
    lines = ["def attention(x):", '    """Attend."""', *(f"    {line}" for line in body)]
    at = next(number for number, line in enumerate(lines, 1) if "raise" in line)
    said = message(NotWritten, student("\n".join(lines)), "attention", 2)
    assert said == (
        f"`attention` still raises NotImplementedError in line {at}: delete that line once your "
        "code is there"
    )


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        ("return x @ torch.zeros(5, 2)", "float64"),
        ("return torch.nn.LayerNorm(5)(x)", "float64"),
        ("return torch.nn.Linear(5, 3)(x)", "float64"),
        ("out = torch.zeros(2, 5)\n    out[[0, 1]] = x\n    return out", "float64"),
        ("x.requires_grad_()\n    x[0] = 1\n    return x", "in place"),
        ("return torch.tensor(x.requires_grad_().numpy())", "use torch"),
        ("import numpy as np\n    return torch.relu(np.ones(5))", "use torch"),
        ("return x - x.max(dim=-1)", ".values or .indices"),
        ("return x + (x, x)", "with [0]"),
        ("y = None\n    return y[0]", "without a return"),
        ("return x @ x", "must have as many columns"),
        ("return torch.nn.functional.one_hot(x.argmax(dim=-1)) @ x.long()", "num_classes"),
        ("y = torch.nn.functional.one_hot(x.long())\n    return y + x", "num_classes"),
        ("return torch.nn.functional.one_hot(x.long(), 3) + x", "aligned from the right"),
        ("return x + x.mT", "aligned from the right"),
        ("return x.view(3, 3)", "(3, 3) holds 9 numbers, and the tensor has 10"),
        ("return x.view(-1, 4)", "with -1, (-1, 4) holds a multiple of 4 numbers, and the tensor"),
        ("return x.unflatten(1, (2, 3))", "(2, 3) holds 6 numbers, and the axis has 5"),
        ("return x + x.mT", "There, `x` is (2, 5)"),
        (
            "y = x.new_zeros(2, 3, 5, 5)\n    return y + (\n        x.new_zeros(2, 5, 5) + x)",
            "There, `x` is (2, 5)",
        ),
        (
            "y, z = x.new_zeros(2, 3, 4, 5), x.new_zeros(2, 4, 5)\n    return y + z",
            "`y` is (2, 3, 4, 5), `z` is (2, 4, 5); `z` fits as (2, 1, 4, 5)",
        ),
        (
            "q, k, m = x.new_zeros(2, 3, 4, 6), x.new_zeros(2, 3, 7, 6), x.new_zeros(2, 4, 7)\n"
            "    return torch.nn.functional.scaled_dot_product_attention(\n"
            "        q, k, k, attn_mask=m\n    )",
            "`m` fits as (2, 1, 4, 7)",
        ),
        (
            "y, m = x.new_zeros(2, 5, 4), x.new_zeros(2, 5)\n    return y - m",
            "`y` is (2, 5, 4), `m` is (2, 5); `m` fits as (2, 5, 1)",
        ),
        (
            "logits, targets = x.new_zeros(2, 5, 7), x.long()\n"
            "    return torch.nn.functional.cross_entropy(logits, targets)",
            "the vocabulary on axis 1",
        ),
        ("return torch.take_along_dim(x, x.argmax(dim=-1), dim=-1)", "keepdim=True"),
        ("return x if x > 0 else -x", "torch.where"),
        ("return x.item()", "reduce it first"),
        ("return x.mT.view(10)", "reshape or flatten"),
        (
            "class M(torch.nn.Module):\n"
            "        def __init__(self): self.a = torch.nn.Linear(2, 2)\n"
            "    return M()",
            "first line of `__init__`",
        ),
        ("return f(x)", "calls itself"),
        ("a, b, c = x\n    return a", "along its first axis"),
        ("return x.mean(dim=2)", "count from the right"),
        ("return x[2]", "counted from 1"),
        ("return x[x]", "`//` instead of `/`"),
        ("return x[: 2 / 1]", "`//` instead of `/`"),
        ("raise ValueError('so it is')", None),
    ],
)
def test_an_error_of_torch_s_that_leads_astray_is_translated(answer, hint):
    subject = student(f"def f(x):\n    {answer}")
    said = message(Crashed, subject, "f", torch.ones(2, 5, dtype=torch.float64))
    assert (hint in said) if hint else said.endswith("raise ValueError('so it is')")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_the_first_call_that_prints_or_warns_says_is_kept():
    source = (
        "def f(x):\n"
        "    if x.dim() == 1: return x\n"
        "    print('x is', tuple(x.shape))\n"
        "    return torch.nn.functional.softmax(x)"
    )
    subject = student(source, listens=True)
    for shape in ((3,), (2, 5), (4, 7)):
        subject.call("f", torch.ones(shape))
    first, second = subject.heard.splitlines()
    assert first == "x is (2, 5)"
    assert second.startswith("UserWarning: Implicit dimension choice")
    assert subject.called == {"f"}


def test_what_a_crash_printed_before_it_is_kept_and_no_more_than_a_page():
    subject = student("def f(x):\n    while True: print(x)", listens=True, seconds=0.2)
    message(TooSlow, subject, "f", "again and again")
    assert 1900 < len(subject.heard) <= 2000


def test_what_torch_has_not_implemented_is_no_blank():
    """The softmax of whole numbers raises NotImplementedError in torch."""
    subject = student("def attention(x):\n    return x.softmax(dim=-1)")
    said = message(Crashed, subject, "attention", torch.ones(2, 3, dtype=torch.int64))
    assert "raised NotImplementedError" in said and "not implemented for 'Long'" in said
    assert "in line 2: return x.softmax(dim=-1)" in said


def test_a_crash_is_told_with_its_line():
    subject = student("def f(x):\n    half = x / 2\n    return half @ torch.ones(7)")
    said = message(Crashed, subject, "f", torch.ones(2))
    assert said.startswith("`f` raised RuntimeError: inconsistent tensor size")
    assert said.endswith(" in line 3: return half @ torch.ones(7)")


def test_a_crash_in_a_library_is_told_with_the_student_s_line():
    for call in ("statistics.mean([])", "torch.nn.functional.softmax('x', dim=-1)"):
        said = message(Crashed, student(f"def f():\n    return {call}"), "f")
        assert said.endswith(f" in line 2: return {call}")


def test_a_crash_in_a_lent_function_is_told_with_the_student_s_line():
    def reference(x):
        return x @ torch.ones(13, dtype=torch.float64)

    subject = student("def test(attention):\n    attention(torch.ones(2).double())")
    said = message(Crashed, subject, "test", subject.lend(reference))
    assert said.endswith(" in line 2: attention(torch.ones(2).double())")
    subject = student("def test(attention):\n    attention(object())")
    said = message(Crashed, subject, "test", subject.lend(reference))
    assert "object cannot be passed" in said and "in line 2: attention(object())" in said


def test_a_crash_carries_what_the_exception_said():
    subject = student("def f():\n    raise AssertionError('\\n'.join(['row 0', 'row 1', '']))")
    with pytest.raises(Crashed) as raised:
        subject.call("f")
    assert (raised.value.kind, raised.value.text) == ("AssertionError", "row 0\nrow 1\n")
    assert str(raised.value).startswith("`f` raised AssertionError: row 0 in line 2: raise")


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_an_exception_that_ends_programs_only_ends_the_call(kind):
    subject = student(f"def f(): raise {kind}(2)\ndef g(): return 3")
    assert f"`f` raised {kind}: 2" in message(Crashed, subject, "f")
    assert subject.call("g") == 3


def test_skipping_the_test_does_not_work():
    subject = student("import pytest\ndef f(): pytest.skip('no need')")
    assert "`f` raised Skipped: no need" in message(Crashed, subject, "f")


def test_endless_recursion_is_a_crash():
    assert "`f` raised RecursionError" in message(Crashed, student("def f(): return f()"), "f")


def test_an_exception_without_readable_words_is_a_crash():
    subject = student(
        "class Odd(Exception):\n    def __str__(self): raise ValueError('no')\ndef f(): raise Odd()"
    )
    assert "`f` raised Odd in line 3" in message(Crashed, subject, "f")


def test_a_wrong_call_says_what_python_says():
    said = message(Crashed, student("def f(x): return x"), "f", 2, 3)
    assert said == "`f` raised TypeError: f() takes 1 positional argument but 2 were given"


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("object()", "object cannot be passed: use a torch.Tensor or a number"),
        ("x.numpy()", "numpy.ndarray cannot be passed"),
        ("x.to_sparse()", "layout torch.sparse_coo cannot be read"),
        ("10**5000", "an integer must fit into 64 bits"),
        ("x.expand(10**10, 2)", "at most 67,108,864 bytes"),
        ("f", "function cannot be passed"),
        ("Handle(0)", "a handle that no check has lent"),
    ],
)
def test_a_result_that_cannot_cross_is_named(result, reason):
    subject = student(f"from classroom.calls.wire import Handle\ndef f(x): return {result}")
    said = message(WrongKind, subject, "f", tensor(2, 3))
    assert said.startswith("`f` returned something unreadable: ") and reason in said


def test_a_forged_handle_finds_nothing():
    subject = student("def f(): return Handle(0)\nfrom classroom.calls.wire import Handle")
    subject.lend(len)
    assert "a handle that no check has lent" in message(WrongKind, subject, "f")


def test_an_input_that_was_made_unreadable_is_the_student_s_doing():
    subject = student("def f(x):\n    x.data = x.data.to(torch.complex64)\n    return 2")
    with pytest.raises(WrongKind, match="complex64"):
        subject.call_and_return_inputs("f", tensor(2, 3).float())


# What is to be done by hand


@pytest.mark.parametrize(
    "body",
    [
        "y.backward(); return w.grad",
        "return torch.autograd.grad(y, w)[0]",
        "return torch.func.grad(lambda w: w * w)(x)",
        "return torch.func.jacrev(lambda w: w * w)(x)",
        "return torch.func.jvp(lambda w: w * w, (x,), (x / x,))[1]",
        "return torch.autograd.functional.jacobian(lambda w: w * w, x)",
        "return torch.optim.SGD([w], lr=1.0).step() or 2 * x",
        "from torch.optim.sgd import sgd; sgd([w], [x], [None], lr=1, momentum=0, weight_decay=0, "
        "dampening=0, nesterov=False, maximize=False); return 2 * x",
        "try: y.backward()\n    except Exception: pass\n    return 2 * x",
        "y.backward(); return 1 / 0",
        "run = threading.Thread(target=y.backward); run.start(); run.join(); return w.grad",
        "run = torch._C._ImperativeEngine().run_backward\n"
        "    return run((y,), (x / x,), False, False, (w,), accumulate_grad=False)[0]",
        "sys.setprofile(None); y.backward(); return w.grad",
        "return torch.ops.aten.tanh_backward(x, x.tanh())",
        "return torch._softmax_backward_data(x, x.softmax(-1), -1, x.dtype)",
        "return next(map(torch.ops.aten.tanh_backward.default._op, [x], [x.tanh()]))",
        "run = torch._C._ImperativeEngine().run_backward\n"
        "    return next(map(run, [(y,)], [(x / x,)], [False], [False], [(w,)], [True]))",
        "source = 'def g(w):\\n  return torch.autograd.grad([(w * w).sum()], [w])\\n'\n"
        "    return torch.jit.CompilationUnit(source).g(w)[0]",
        "torch._fused_sgd_([w.detach()], [x], [], weight_decay=0, momentum=0, lr=1.0, dampening=0, "
        "nesterov=False, maximize=False, is_first_step=True); return 2 * x",
    ],
)
def test_what_is_to_be_done_by_hand_is_not_done_by_torch(body):
    source = f"def f(x):\n    w = x.clone().requires_grad_()\n    y = w * w\n    {body}"
    subject = student(f"import sys, threading\n{source}")
    with pytest.raises(
        NotByHand, match=r"`f` calls (torch|sys)\.\S+: this exercise is to be done by hand"
    ):
        subject.call_by_hand("f", tensor(3)[0])


def test_what_is_done_by_hand_may_use_all_the_rest_and_be_looked_on():
    calls = []
    subject = student(
        "def f(x):\n"
        "    with torch.no_grad(): return torch.vmap(lambda row: row.softmax(-1).sum())(x)"
    )
    sys.setprofile(lambda frame, event, arg: calls.append(event))
    try:
        assert subject.call_by_hand("f", tensor([1, 2], [3, 4])).tolist() == [1, 1]
        before = len(calls)
        subject.call("f", tensor([1, 2]))
    finally:
        sys.setprofile(None)
    assert len(calls) > before
    with pytest.raises(Crashed, match="ZeroDivisionError"):
        student("def f(): 1 / 0").call_by_hand("f")


# What stops a gradient


def gradient(source, shape=(2, 3)):
    x = torch.ones(5, dtype=torch.float64)
    return student(source).gradients("f", [x], [0], [torch.ones(shape, dtype=torch.float64)])


@pytest.mark.parametrize(
    "body",
    [
        "return (x.detach() * 2).expand(2, 5)[:, :3]",
        "return torch.ones(2, 3, dtype=torch.float64)",
        "with torch.no_grad(): return x[:3].expand(2, 3)",
        "return torch.ones(2, 3, dtype=torch.int64)",
    ],
)
def test_a_result_without_a_way_back_is_cut_off(body):
    with pytest.raises(WrongKind, match="the result of `f` is cut off from its inputs"):
        gradient(f"def f(x):\n    {body}")


def test_a_gradient_may_be_asked_of_what_a_lent_function_returned():
    """Of the square of a result it is twice the result; of two results, one after the other."""
    subject = student("def f(g, xs): return sum((g(x) ** 2).sum() for x in xs) * 1.0")
    triple = subject.lend(lambda x: 3 * x)
    for xs, expected in (([tensor(1, 2)], [6, 12]), ([tensor(1, 2), tensor(5)], [6, 12, 30])):
        (gradient,) = subject.gradients("f", [triple, xs], [0], [tensor(1)[0]])
        assert gradient.tolist() == expected
    subject = student("def f(g, x): return g(x).detach().sum() + (x * x).sum() / 2")
    found = subject.gradients(
        "f", [subject.lend(lambda x: 3 * x), tensor(1)], [0, 1], [tensor(1)[0]]
    )
    assert found[0] is None and found[1].tolist() == [1]


def test_an_input_that_is_not_used_has_no_gradient():
    subject = student("def f(x, y): return x * y.detach()")
    by_x, by_y = subject.gradients("f", [tensor(2), tensor(3)], [0, 1], [tensor(1)])
    assert by_x.tolist() == [3] and by_y is None


def test_a_result_of_another_shape_is_refused():
    with pytest.raises(WrongKind) as raised:
        gradient("def f(x): return x * 2")
    assert str(raised.value) == "`f` returned a tensor of shape (5,), expected (2, 3)"


@pytest.mark.parametrize("result", ["(x, x)", "x.sum().item()", "None", "[]"])
def test_another_number_of_results_is_refused(result):
    with pytest.raises(WrongKind, match="`f` should return 1 tensor$"):
        gradient(f"def f(x): return {result}")


def test_a_backward_pass_that_breaks_is_a_crash():
    with pytest.raises(Crashed, match="modified by an inplace operation"):
        gradient(
            "def f(x):\n    y = (x[:3] * 2).exp()\n    z = y.expand(2, 3) * 1\n"
            "    y.add_(1)\n    return z"
        )
    with pytest.raises(Crashed, match="`f` raised ZeroDivisionError.* in line 3: 1 / 0"):
        gradient(
            "def f(x):\n    def hook(gradient):\n        1 / 0\n    y = x * 2\n"
            "    y.register_hook(hook)\n    return y[:3].expand(2, 3)"
        )


def test_a_backward_pass_that_does_not_end_is_stopped():
    subject = student(
        "def f(x):\n    def hook(gradient):\n        while True: pass\n    y = x * 2\n"
        "    y.register_hook(hook)\n    return y",
        seconds=0.2,
    )
    with pytest.raises(TooSlow):
        subject.gradients("f", [tensor(2)], [0], [tensor(1)])


# Time


ENDLESS = {
    "plain": "while True: pass",
    "sleeps": "time.sleep(100)",
    "swallows": "while True:\n        try:\n            n = 1\n        except BaseException: pass",
    "sleeps and swallows": "while True:\n"
    "        try: time.sleep(1)\n        except BaseException: pass",
    "swallows twice": "while True:\n        try:\n            try: time.sleep(1)\n"
    "            except BaseException: pass\n        except BaseException: pass",
    "sleeps, then computes": "try: time.sleep(100)\n"
    "    except BaseException: sum(range(20_000_000))",
    "works in torch": "while True: torch.ones(30, 30) @ torch.ones(30, 30)",
    "in a generator": "sum(1 for _ in iter(int, 1))",
}


@pytest.mark.slow
@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_stopped(body):
    subject = student(f"def f():\n    {body}", seconds=0.1)
    started = time.monotonic()
    with pytest.raises(TooSlow) as raised:
        subject.call("f")
    assert time.monotonic() - started < 3
    said = "compute for 0.1 seconds. Is there a loop that does not end?"
    if "sleep" in body:
        said = "take 0.6 seconds, however little it computes. Does it wait for something?"
    assert str(raised.value) == f"`f` was stopped: an exercise may {said}"


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN, lambda signum, frame: None])
def handler(request):
    """What an alarm does while no code is under test."""
    before = signal.signal(signal.SIGALRM, request.param)
    yield request.param
    signal.signal(signal.SIGALRM, before)


def test_no_alarm_is_left_behind(handler):
    for body in ("return 2", "raise ValueError"):
        with pytest.raises(StudentError) if "return" not in body else memoryview(b""):
            student(f"def f():\n    {body}", seconds=0.05).call("f")
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        assert signal.getsignal(signal.SIGALRM) is handler


@pytest.mark.slow
def test_an_alarm_that_comes_late_does_nothing(handler):
    """With the default handler it would end this process."""
    for body in ENDLESS.values():
        with pytest.raises(TooSlow):
            student(f"def f():\n    {body}", seconds=0.05).call("f")
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        signal.raise_signal(signal.SIGALRM)


def test_an_alarm_does_not_interrupt_the_handling_of_another(monkeypatch):
    """An audit hook may run then, such as that of filelock, and is not the code under test."""
    is_ours, depths = local._is_ours, []

    def interrupted(filename):
        depths.append(sum(frame.function == "interrupted" for frame in inspect.stack(0)))
        if len(depths) == 1:
            signal.raise_signal(signal.SIGALRM)
        return is_ours(filename)

    monkeypatch.setattr(local, "_is_ours", interrupted)
    message(TooSlow, student("def f():\n    while True: pass", seconds=0.05), "f")
    assert set(depths) == {1}


BUSY = (
    "def busy():\n    end = time.process_time() + 0.06\n    while time.process_time() < end: pass\n"
)


def test_time_is_shared_between_calls():
    subject = student(f"{BUSY}def quick(): return 2", seconds=0.1)
    assert subject.call("quick") == 2
    subject.call("busy")
    assert subject.call("quick") == 2
    message(TooSlow, subject, "busy")
    message(TooSlow, subject, "quick")


def test_time_in_which_others_compute_is_free():
    subject = student("def nap(): time.sleep(0.2)\ndef quick(): return 2", seconds=0.1)
    subject.call("nap")
    assert subject.call("quick") == 2


def test_time_spent_outside_of_calls_is_free():
    subject = student("def quick(): return 2", seconds=0.05)
    time.sleep(0.1)
    assert subject.call("quick") == 2


def test_another_thread_counts_the_time_too():
    subject = student(BUSY, seconds=0.05)
    errors = []

    def work():
        subject.call("busy")
        with pytest.raises(TooSlow) as raised:
            subject.call("busy")
        errors.append(raised.value)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1


# Refusals


def test_a_check_cannot_hand_over_what_could_not_cross():
    with pytest.raises(ValueError, match="object cannot be passed"):
        student("def f(x): return x").call("f", object())


def test_a_handle_of_another_subject_is_refused():
    handle = student("").lend(len)
    with pytest.raises(ValueError, match="a handle that no check has lent"):
        student("def f(x): return x").call("f", handle)


# Files beside the notebook


def test_a_file_is_read_where_the_process_works_or_from_what_was_handed_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_bytes(b"\x00 here")
    assert student("").file("weights") == b"\x00 here"
    assert student("", files={"weights": File(b"handed in")}).file("weights") == b"handed in"


def test_a_file_that_cannot_be_read_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotHandedIn, match="^`weights` is not beside the notebook: save it there"):
        student("").file("weights")
    with pytest.raises(NotHandedIn, match="not beside the notebook"):
        student("", files={}).file("weights")
    (tmp_path / "weights").symlink_to("elsewhere")
    with pytest.raises(NotHandedIn, match="^weights is a link: submit the file itself$"):
        student("").file("weights")
    (tmp_path / "weights").unlink()
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(NotHandedIn, match="^weights is larger than 32 MB$"):
        student("").file("weights")
