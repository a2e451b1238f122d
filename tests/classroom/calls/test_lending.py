import pytest
import torch

from classroom.calls.lending import Refused
from classroom.calls.local import LocalSubject
from classroom.calls.subject import Crashed

MATRIX = torch.tensor([[1, 2, 0], [0, 1, 3], [4, 0, 1]], dtype=torch.float64)
X = torch.tensor([[0.2, -0.5, 0.3], [0.1, 0.4, -0.2]], dtype=torch.float64)


def model(x, shift=0.0):
    return torch.tanh(x @ MATRIX + shift).cumsum(0)


def run(body, function=model, *args):
    """Let student code use a lent function `f`, and return what it returns."""
    namespace = {"torch": torch}
    lines = "\n    ".join(body.split("; "))
    exec(f"def use(f, *args):\n    {lines}", namespace)
    subject = LocalSubject(namespace)
    return subject.call("use", subject.lend(function), *args)


JACOBIAN = torch.autograd.functional.jacobian(model, X)


@pytest.mark.parametrize(
    "expression",
    [
        "torch.autograd.functional.jacobian(f, args[0])",
        "torch.func.jacrev(f)(args[0])",
        "torch.func.vmap(torch.func.jacrev(f))(args[0][None])[0]",
    ],
)
def test_a_lent_function_can_be_differentiated(expression):
    torch.testing.assert_close(run(f"return {expression}", model, X), JACOBIAN)


def test_backward_adds_to_the_gradients_of_the_student_s_tensors():
    seen = run("x = args[0].requires_grad_(); f(x)[1, 2].backward(); return x.grad", model, X)
    torch.testing.assert_close(seen, JACOBIAN[1, 2])


def test_gradients_flow_on_into_what_the_student_computed_before():
    seen = run("x = args[0].requires_grad_(); f(3 * x)[0, 1].backward(); return x.grad", model, X)
    expected = 3 * torch.autograd.functional.jacobian(model, 3 * X)[0, 1]
    torch.testing.assert_close(seen, expected)


def test_only_what_was_asked_for_is_differentiated():
    def product(x, n, y):
        return x * y * n

    body = "y = args[1].requires_grad_(); f(args[0], 5, y).sum().backward(); return y.grad"
    torch.testing.assert_close(run(body, product, X, X + 1), 5 * X)


def test_several_results_keep_their_form_and_carry_gradients():
    def both(x):
        return [2 * x, (x * x).sum()]

    body = "x = args[0].requires_grad_(); a, b = f(x); (a.sum() + b).backward(); return x.grad"
    torch.testing.assert_close(run(body, both, X), 2 + 2 * X)
    assert run("return type(f(args[0].requires_grad_())).__name__", both, X) == "list"


def test_a_result_that_does_not_depend_on_the_input_has_gradient_zero():
    body = "x = args[0].requires_grad_(); f(x).sum().backward(); return x.grad"
    assert run(body, lambda x: torch.ones(7), X).tolist() == torch.zeros_like(X).tolist()


@pytest.mark.parametrize("result", [3, "text", torch.tensor([2, 5]), (torch.ones(2), 7)])
def test_results_without_gradients_come_as_they_are(result):
    seen = run("return f(args[0].requires_grad_())", lambda x: result, X)
    assert str(seen) == str(result)


def test_our_function_never_sees_the_student_s_tensors():
    seen = []

    def keep(x):
        seen.append(x.detach())
        x.data.zero_()
        return x * 2

    body = "x = args[0].requires_grad_(); f(x).sum().backward(); return x"
    torch.testing.assert_close(run(body, keep, X), X)
    assert len(seen) == 2  # once for the values, once for the gradients


def test_the_steps_of_our_function_are_not_in_the_student_s_graph():
    body = "y = f(args[0].requires_grad_()); return [str(n[0]) for n in y.grad_fn.next_functions]"
    assert not any("Tanh" in name or "Mm" in name for name in run(body, model, X))


def test_a_second_derivative_is_refused_in_a_sentence():
    body = (
        "x = args[0].requires_grad_(); "
        "g, = torch.autograd.grad(f(x).sum(), x, create_graph=True); g.sum().backward()"
    )
    with pytest.raises(Crashed, match="passes in can be differentiated only once"):
        run(body, model, X)


def test_a_crash_in_the_backward_pass_is_told_as_a_crash():
    def odd(x):
        if x.requires_grad:
            raise ValueError("odd")
        return x * 2

    with pytest.raises(Crashed, match="`use` raised RuntimeError: this function cannot compute"):
        run("x = args[0].requires_grad_(); f(x).sum().backward()", odd, X)


def test_how_a_lent_function_failed_is_not_told():
    body = "try: return f(*args, zzz=1)\n    except Exception as e: return type(e).__name__, str(e)"
    found = {run(body, function, X) for function in (model, len, lambda x, zzz: 1 / 0)}
    assert found == {("RuntimeError", "this function cannot compute with float64 (2, 3), zzz=1")}


def test_a_refusal_on_purpose_passes_as_the_exception_that_it_names():
    def refuse(x):
        raise Refused("a row must have three numbers", AssertionError)

    body = "try: f(1)\n    except Exception as e: return type(e).__name__, str(e), e.__context__"
    assert run(body, refuse) == ("AssertionError", "a row must have three numbers", None)
