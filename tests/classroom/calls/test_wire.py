import itertools
import json
import math
import struct

import numpy as np
import pytest
import torch
from torch import nn

from classroom.calls import wire
from classroom.calls.wire import DTYPES, MAX_BYTES, MAX_DEPTH, CannotCross, Handle, pack, unpack


def message(header, blob=b""):
    """Forge a message around any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">Q", len(text)) + text + blob


def nested(levels):
    value = 2
    for _ in range(levels):
        value = [value]
    return value


ONE_ROW = torch.tensor([[1.0, 2.0]])


class AnswersForItself(torch.Tensor):
    """Claims another shape, and says yes to whatever torch asks it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True

    @property
    def shape(self):
        return torch.Size([11, 13])


# By hand


def test_a_message_is_a_length_a_header_and_raw_bytes():
    header = b'{"tensor": "int16", "shape": [3]}'
    expected = struct.pack(">Q", len(header)) + header + b"\x01\x00\x02\x00\xff\xff"
    assert pack(torch.tensor([1, 2, -1], dtype=torch.int16)) == expected


def test_a_container_names_its_kind():
    assert unpack(message({"tuple": [{"list": [1, "two"]}, {"dict": [["three", None]]}]})) == (
        [1, "two"],
        {"three": None},
    )


# Laws


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -7,
        2**63 - 1,
        -(2**63 - 1),
        0.1,
        -0.0,
        math.inf,
        -math.inf,
        5e-324,
        "",
        'Größe 猫 \ud800 \x00 "quoted"',
        [],
        (),
        {},
        [1, (2.5, "three"), {"four": [None, True]}],
        {"": {"a b": ()}},
        Handle(5),
        nested(MAX_DEPTH),
    ],
)
def test_what_goes_in_comes_out(value):
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)


def test_nan_and_the_sign_of_zero_survive():
    assert math.isnan(unpack(pack(math.nan)))
    assert math.copysign(1, unpack(pack(-0.0))) == -1


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (2, 3, 5)])
def test_tensors_of_every_dtype_and_shape_come_back_bit_by_bit(name, shape):
    numbers = torch.arange(math.prod(shape)).reshape(shape) - 3
    tensor = numbers.to(DTYPES[name])
    back = unpack(pack(tensor))
    assert back.dtype is tensor.dtype and back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_nan_and_infinity_in_a_tensor_survive():
    tensor = torch.tensor([math.nan, math.inf, -math.inf, -0.0], dtype=torch.bfloat16)
    assert torch.equal(unpack(pack(tensor)).view(torch.int16), tensor.view(torch.int16))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 2),
        lambda t: t[:, ::2],
        lambda t: t[1],
        lambda t: t[1, 2, 3],
        lambda t: t[:1].expand(7, 3, 5),
        lambda t: t.flip(0),
        lambda t: torch.complex(t, 2 * t).conj().imag,
        torch._neg_view,
    ],
    ids=[
        "transposed",
        "strided",
        "offset",
        "one place",
        "expanded",
        "flipped",
        "imaginary",
        "negated",
    ],
)
def test_views_cross_as_the_numbers_they_show(view):
    shown = view(torch.arange(30.0).reshape(2, 3, 5))
    assert torch.equal(unpack(pack(shown)), shown)


def test_bytes_cross_that_are_no_text():
    value = [b"", b"\x00\xff", (b"ab", {"c": "\N{SNOWMAN}".encode()})]
    assert unpack(pack(value)) == value


def test_nothing_comes_back_with_a_gradient():
    weight = nn.Parameter(torch.ones(2, 3))
    back = unpack(pack([weight, weight * 2]))
    assert type(back[0]) is torch.Tensor
    assert not back[0].requires_grad and not back[1].requires_grad
    assert torch.equal(back[1], torch.full((2, 3), 2.0))


def test_what_crosses_shares_no_memory():
    tensor = torch.zeros(3)
    sent = pack([tensor, tensor])
    first, second = unpack(sent)
    again, _ = unpack(sent)
    tensor += 1
    first += 2
    assert [t.tolist() for t in (tensor, first, second, again)] == [
        [1.0] * 3,
        [2.0] * 3,
        [0.0] * 3,
        [0.0] * 3,
    ]


def test_handles_become_what_they_stand_for():
    here = {5: "five", 7: "seven"}
    back = unpack(pack({"a": Handle(7)}), lambda handle: here[handle.id])
    assert back == {"a": "seven"}


def test_a_subclass_does_not_answer_for_its_numbers():
    liar = torch.arange(3.0).as_subclass(AnswersForItself)
    assert liar.shape == (11, 13) and liar.sum() is True
    back = unpack(pack(liar))
    assert type(back) is torch.Tensor
    assert back.tolist() == [0.0, 1.0, 2.0]


def test_a_number_of_a_subclass_crosses_as_its_number():
    class EqualToAll(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    for number in (EqualToAll(0.25), np.float64(0.25)):
        back = unpack(pack(number))
        assert type(back) is float and back == 0.25


def test_a_list_of_a_subclass_is_read_as_a_list():
    class Endless(list):
        def __iter__(self):
            return itertools.count()

    assert unpack(pack(Endless([2, 3]))) == [2, 3]
    assert unpack(pack(torch.ones(2, 3).max(dim=1))) == (
        pytest.approx([1.0, 1.0]),
        pytest.approx([0, 0]),
    )
    assert unpack(pack(torch.ones(2, 3).shape)) == (2, 3)


def test_a_forged_bool_is_read_as_a_bool():
    forged = unpack(message({"tensor": "bool", "shape": [3]}, b"\x00\x01\x07"))
    assert forged.dtype is torch.bool and forged.view(torch.uint8).tolist() == [0, 1, 1]


# Refusals of values


class Wrapper(torch.Tensor):
    """Has a shape and a dtype, and no numbers of its own, as torch's FakeTensor."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 3))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return torch.ones(2, 3)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: object(), "object cannot be passed: use a torch.Tensor or a number"),
        (lambda: np.ones(3), "numpy.ndarray cannot be passed"),
        (lambda: len, "builtin_function_or_method cannot be passed"),
        (lambda: {1, 2}, "set cannot be passed"),
        (lambda: bytearray(b"bytes"), "bytearray cannot be passed"),
        (lambda: 1 + 2j, "complex cannot be passed"),
        (lambda: [2, (3, nn.Linear(2, 3))], "Linear cannot be passed"),
        (lambda: {2: 3}, "the keys of a dictionary must be strings"),
        (lambda: {"a": {None: 3}}, "the keys of a dictionary must be strings"),
        (lambda: 2**63, "an integer must fit into 64 bits"),
        (lambda: 10**5000, "an integer must fit into 64 bits"),
        (lambda: torch.ones(2, dtype=torch.complex64), "a tensor of dtype complex64"),
        (lambda: torch.ones(2, 3).to_sparse(), "layout torch.sparse_coo cannot be read"),
        (lambda: torch.ones(2**23, device="meta").double().repeat(2), "a value may hold at most"),
        (Wrapper, "Wrapper cannot be read: use a plain torch.Tensor"),
    ],
)
def test_what_is_no_tensor_number_or_string_does_not_cross(value, reason):
    with pytest.raises(CannotCross) as refused:
        pack(value())
    assert reason in str(refused.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8),
        lambda: torch.ones(2, 3).to_sparse_csr(),
        lambda: torch.ones(2, 3).to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.masked.masked_tensor(torch.ones(2), torch.ones(2, dtype=torch.bool)),
    ],
    ids=["quantized", "csr", "mkldnn", "nested", "masked"],
)
def test_tensors_without_plain_numbers_do_not_cross(make):
    with pytest.raises(CannotCross, match="cannot be read"):
        pack(make())


def test_nesting_has_an_end():
    endless = []
    endless.append(endless)
    for value in (nested(MAX_DEPTH + 1), endless):
        with pytest.raises(CannotCross, match="nested at most 16 levels deep"):
            pack(value)


def test_size_has_an_end_before_it_is_filled(monkeypatch):
    monkeypatch.setattr(wire, "MAX_BYTES", 2**20)
    doubled = []
    for _ in range(12):
        doubled = [doubled] * 10
    for huge in (
        torch.zeros(1).expand(10**12),
        [torch.zeros(1).expand(70_000)] * 5,
        "x" * (2**20 + 1),
        ["x" * 2**14] * 65,
        {"x" * 2**20: 1},
        doubled,
        "猫" * (2**20 // 5),  # six characters each when it is written
    ):
        with pytest.raises(CannotCross, match="at most 1,048,576 bytes; this one holds more"):
            pack(huge)


def test_what_just_fits_crosses():
    assert unpack(pack(torch.zeros(MAX_BYTES - 1000, dtype=torch.uint8))).shape == (
        MAX_BYTES - 1000,
    )


# Refusals of messages


GOOD = pack([torch.ones(2, 3), "text"])


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"\x00" * 7,
        GOOD[:-1],
        GOOD[:20],
        GOOD + b"\x00",
        struct.pack(">Q", 2**63) + GOOD[8:],
        struct.pack(">Q", 1) + GOOD[8:],
        message(b"not json"),
        message(b"\xff\xfe\xff"),
        message(b"[" * 100_000),
        message(b"9" * 5000),
        message([1, 2]),
        message({}),
        message({"set": [1]}),
        message({"bytes": "0g"}),
        message({"bytes": [1]}),
        message({"list": 3}),
        message({"list": [[1]]}),
        message({"dict": [1]}),
        message({"dict": [["a", 1, 2]]}),
        message({"dict": [[3, 1]]}),
        message({"dict": {"a": 1}}),
        message(2**63),
        message({"tensor": "float32", "shape": [2]}, b"\x00" * 7),
        message({"tensor": "float32", "shape": [2]}, b"\x00" * 9),
        message({"tensor": "float32", "shape": [2**31]}),
        message({"tensor": "float32", "shape": [2**70, 0]}),
        message({"tensor": "float32", "shape": [-1]}, b"\x00" * 4),
        message({"tensor": "float32", "shape": [1.0]}, b"\x00" * 4),
        message({"tensor": "float32", "shape": [True]}, b"\x00" * 4),
        message({"tensor": "float32", "shape": 1}, b"\x00" * 4),
        message({"tensor": "float32", "shape": {}}, b"\x00" * 4),
        message({"tensor": "float32"}, b"\x00" * 4),
        message({"tensor": "complex64", "shape": [1]}, b"\x00" * 8),
        message({"tensor": "object", "shape": [1]}, b"\x00" * 8),
        message({"tensor": ["float32"], "shape": [1]}, b"\x00" * 4),
        message({"handle": "one"}),
        message({"handle": math.inf}),
        "a string",
        None,
    ],
)
def test_bytes_that_are_no_message_are_refused(forged):
    with pytest.raises(CannotCross, match="these bytes are not a message"):
        unpack(forged)


def test_a_message_is_not_read_beyond_the_limits():
    deep = {"list": [1]}
    for _ in range(MAX_DEPTH):
        deep = {"list": [deep]}
    with pytest.raises(CannotCross, match="nested too deeply"):
        unpack(message(deep))
    with pytest.raises(CannotCross, match="longer than the limit"):
        unpack(bytes(MAX_BYTES + 1))


def test_a_tensor_without_numbers_crosses_with_its_shape_dtype_and_device():
    found = unpack(pack([torch.ones(2, 3, dtype=torch.bfloat16, device="meta"), ONE_ROW]))
    assert (found[0].shape, found[0].dtype) == ((2, 3), torch.bfloat16)
    assert found[0].device.type == "meta" and found[1].equal(ONE_ROW)


def test_a_tensor_without_numbers_is_held_to_the_same_size():
    forged = message({"tensor": "float64", "shape": [2**30], "meta": True})
    with pytest.raises(CannotCross, match="fewer bytes than the shapes need"):
        unpack(forged)


def test_eight_declared_gigabytes_are_never_allocated():
    forged = message({"tensor": "float64", "shape": [2**30]}, b"\x00" * 64)
    with pytest.raises(CannotCross, match="fewer bytes than the shapes need"):
        unpack(forged)


def test_a_handle_that_nobody_gave_is_refused():
    with pytest.raises(CannotCross, match="not a message"):
        unpack(pack(Handle(9)), {}.__getitem__)


def test_a_tensor_of_very_many_dimensions_does_not_cross_either_way():
    with pytest.raises(CannotCross, match="at most 16 dimensions; this one has 65"):
        pack(torch.ones([1] * 65))
    header = json.dumps({"tensor": "uint8", "shape": [1] * 65}).encode()
    with pytest.raises(CannotCross, match="a tensor of 65 dimensions"):
        unpack(struct.pack(">Q", len(header)) + header + b"1")
