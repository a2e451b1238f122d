import pytest
import torch

from classroom.calls.local import LocalSubject
from classroom.calls.subject import Crashed, NotWritten, StudentError, WrongKind
from classroom.exercise.cases import Case
from classroom.exercise.expect import CheckFailed, expect_agrees, expect_gradients

SCALE_AND_MAP = """
class Map(torch.nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.map = torch.nn.Linear(d_in, d_out, bias=False)
        self.gain = torch.nn.Parameter(torch.ones(d_out))

    def forward(self, x, shift):
        return self.map(x) * self.gain + shift
"""


def student(source):
    namespace = {"torch": torch}
    exec(source, namespace)
    return LocalSubject(namespace)


def weights(dtype=torch.float64):
    return {
        "map.weight": torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=dtype),
        "gain": torch.tensor([1, 10, 100], dtype=dtype),
    }


SETTINGS = {"d_in": 2, "d_out": 3}
X = torch.tensor([[1.0, -1.0]], dtype=torch.float64)


def message(kind, subject, *args):
    with pytest.raises(StudentError) as raised:
        subject.call("Map", *args)
    assert type(raised.value) is kind
    return str(raised.value)


def test_a_module_is_called_with_its_settings_its_weights_and_its_inputs():
    result = student(SCALE_AND_MAP).call("Map", SETTINGS, weights(), X, 0.5)
    assert result.tolist() == [[-0.5, -9.5, -99.5]]


def test_a_module_takes_the_dtype_of_the_weights():
    subject = student(SCALE_AND_MAP)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        result = subject.call("Map", SETTINGS, weights(dtype), X.to(dtype), 2)
        assert result.dtype == dtype


def test_a_module_without_parameters_needs_no_weights():
    subject = student(
        "class Map(torch.nn.Module):\n    def forward(self, x, shift): return x + shift"
    )
    assert subject.call("Map", {}, {}, X, 2).tolist() == [[3, 1]]


def test_a_module_is_called_in_training_mode_so_that_a_dropout_shows():
    subject = student(
        "class Map(torch.nn.Module):\n    def forward(self, x): return int(self.training)"
    )
    assert subject.call("Map", {}, {}, X) == 1


def test_a_buffer_is_the_module_s_own_affair():
    source = SCALE_AND_MAP.replace(
        "    def forward", "        self.register_buffer('mask', torch.ones(7))\n\n    def forward"
    )
    assert student(source).call("Map", SETTINGS, weights(), X, 0.5).shape == (1, 3)


def test_a_missing_parameter_is_named_and_so_are_those_there_are():
    source = SCALE_AND_MAP.replace("self.gain", "self.gains")
    assert message(WrongKind, student(source), SETTINGS, weights(), X, 1) == (
        "`Map` cannot load the weights of this exercise: it has no parameter `gain`; its "
        "parameters are `gains`, `map.weight`"
    )


def test_a_parameter_that_is_not_agreed_on_is_named():
    source = SCALE_AND_MAP.replace("bias=False", "bias=True")
    said = message(WrongKind, student(source), SETTINGS, weights(), X, 1)
    assert "it has a parameter `map.bias` that should not be there" in said
    assert "the parameters must be `map.weight`, `gain`" in said


def test_a_parameter_of_another_shape_is_told_with_both_shapes():
    source = SCALE_AND_MAP.replace("torch.ones(d_out)", "torch.ones(d_out, 1)")
    said = message(WrongKind, student(source), SETTINGS, weights(), X, 1)
    assert said.endswith("its parameter `gain` has the shape (3, 1), expected (3,)")


@pytest.mark.parametrize("method", ["__init__(self, d_in, d_out)", "forward(self, x, shift)"])
def test_a_blank_method_is_a_blank_module(method):
    start = SCALE_AND_MAP.index(f"    def {method}")
    blank = f"{SCALE_AND_MAP[:start]}    def {method}:\n        raise NotImplementedError()\n"
    if "forward" not in method:
        blank += "    def forward(self, x, shift): return x\n"
    assert message(NotWritten, student(blank), SETTINGS, weights(), X, 1) == (
        "`Map` is not written yet"
    )


def test_settings_that_the_class_does_not_take_are_a_crash_that_says_so():
    said = message(Crashed, student(SCALE_AND_MAP), {"d_model": 2}, weights(), X, 1)
    assert "unexpected keyword argument 'd_model'" in said


def test_a_forgotten_super_init_is_told_with_torch_s_words():
    source = SCALE_AND_MAP.replace("        super().__init__()\n", "")
    assert "before Module.__init__() call" in message(
        Crashed, student(source), SETTINGS, weights(), X, 1
    )


def test_the_weights_handed_over_stay_as_they_were():
    source = SCALE_AND_MAP.replace(
        "        return", "        self.gain.data.zero_()\n        return"
    )
    given = weights()
    student(source).call("Map", SETTINGS, given, X, 1)
    assert given["gain"].tolist() == [1, 10, 100]


# With expectations


def oracle(settings, weights, x, shift):
    return x @ weights["map.weight"].T * weights["gain"] + shift


def inputs(case):
    d_in, d_out = case.size("d_in", 2), case.size("d_out", 3)
    drawn = {"map.weight": case.normal(d_out, d_in), "gain": case.normal(d_out)}
    return {"d_in": d_in, "d_out": d_out}, drawn, case.normal(5, d_in), 0.5


def test_an_expectation_compares_a_module_with_a_function():
    returns = {"output": "length d_out"}
    expect_agrees(student(SCALE_AND_MAP), Case("seed"), "Map", inputs, oracle, returns)
    wrong = student(SCALE_AND_MAP.replace("* self.gain", "+ self.gain"))
    with pytest.raises(CheckFailed) as raised:
        expect_agrees(wrong, Case("seed"), "Map", inputs, oracle, returns)
    said = str(raised.value)
    assert "settings   = {d_in: 1, d_out: 1}" in said
    assert "weights    = {map.weight: [[" in said


def test_a_module_that_crashes_is_told_with_the_shapes_of_its_weights():
    wrong = student(SCALE_AND_MAP.replace("self.map(x)", "self.map(x.T)"))
    with pytest.raises(CheckFailed) as raised:
        expect_agrees(wrong, Case("seed"), "Map", inputs, oracle, {"output": "length d_out"})
    assert "weights {map.weight (3, 2), gain (3,)}, x (5, 2), shift 0.5" in str(raised.value)


def test_gradients_flow_through_a_module_to_its_inputs():
    expect_gradients(student(SCALE_AND_MAP), Case("seed"), "Map", inputs, oracle, ["x"])
    cut = student(SCALE_AND_MAP.replace("self.map(x)", "self.map(x).detach()"))
    with pytest.raises(CheckFailed, match="no gradient flows from the result back to `x`"):
        expect_gradients(cut, Case("seed"), "Map", inputs, oracle, ["x"])
