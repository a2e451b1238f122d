import socket
import struct
import threading
import time

import pytest
import torch

from classroom.calls.channel import MAX_HEADER_BYTES, Channel, HungUp, Late, ProtocolError
from classroom.calls.wire import CannotCross, pack


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, max_bytes=2**16), theirs


def soon(seconds=0.2):
    return time.monotonic() + seconds


def framed(message):
    return struct.pack(">Q", len(message)) + message


def test_values_arrive_in_order(ends):
    ours, theirs = ends
    other = Channel(theirs)
    other.send([2, "three", torch.arange(5)])
    other.send({"seven": None})
    first, second = ours.receive(soon()), ours.receive(soon())
    assert first[:2] == [2, "three"]
    assert first[2].equal(torch.arange(5))
    assert second == {"seven": None}


def test_a_message_may_come_in_pieces(ends):
    ours, theirs = ends
    message = framed(pack("eleven"))

    def drip():
        for byte in message:
            theirs.send(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    assert ours.receive(soon(5)) == "eleven"
    thread.join()


def test_the_length_of_the_last_message_is_kept(ends):
    ours, theirs = ends
    theirs.sendall(framed(pack("eleven")))
    ours.receive(soon())
    assert ours.last_length == len(pack("eleven"))


@pytest.mark.parametrize("length", [0, 7, 2**16 + 1, 8 * 2**30, 2**64 - 1])
def test_a_length_that_cannot_be_is_refused_before_anything_is_read(ends, length):
    ours, theirs = ends
    theirs.sendall(struct.pack(">Q", length))
    with pytest.raises(ProtocolError, match="announced a message"):
        ours.receive(soon())


def test_a_header_that_is_too_long_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">QQ", MAX_HEADER_BYTES * 2, MAX_HEADER_BYTES + 1))
        with pytest.raises(ProtocolError, match="announced a header"):
            Channel(ours).receive(soon())


@pytest.mark.parametrize("message", [b"x" * 99, struct.pack(">Q", 2) + b"[]", pack(2) + b"3"])
def test_what_is_no_message_is_refused(ends, message):
    ours, theirs = ends
    theirs.sendall(framed(message))
    with pytest.raises(ProtocolError):
        ours.receive(soon())


def test_a_deadline_holds_for_the_whole_message(ends):
    ours, theirs = ends
    stop = threading.Event()

    def drip():
        theirs.sendall(struct.pack(">Q", 2**16))
        while not stop.wait(0.05):
            theirs.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    started = time.monotonic()
    with pytest.raises(Late):
        ours.receive(soon(0.3))
    assert time.monotonic() - started < 1
    stop.set()
    thread.join()


def test_a_deadline_holds_when_nobody_reads(ends):
    ours, _ = ends
    with pytest.raises(Late):
        ours.send(torch.zeros(2**20), soon(0.3))


def test_a_deadline_that_has_passed_is_late(ends):
    ours, _ = ends
    with pytest.raises(Late):
        ours.receive(soon(-1))


def test_an_end_that_hangs_up_is_noticed_on_both_ways(ends):
    ours, theirs = ends
    theirs.close()
    with pytest.raises(HungUp):
        ours.receive(soon())
    with pytest.raises(HungUp):
        ours.send("x", soon())


def test_half_a_message_is_no_message(ends):
    ours, theirs = ends
    theirs.sendall(framed(pack("eleven"))[:-1])
    theirs.close()
    with pytest.raises(HungUp):
        ours.receive(soon())


def test_a_value_of_too_many_parts_is_not_sent(ends):
    ours, _ = ends
    with pytest.raises(CannotCross, match="too many parts"):
        ours.send([1.5] * (MAX_HEADER_BYTES // 4))


def test_handles_are_resolved_on_arrival(ends):
    from classroom.calls.wire import Handle

    ours, theirs = ends
    Channel(theirs).send(Handle(3))
    assert ours.receive(soon(), lambda handle: handle.id) == 3
