"""Messages on a socket, one after another: the length first, then the bytes of `wire`.

The other end may be hostile: the length that it announces is checked before memory is reserved, and
a deadline holds whatever it sends.
"""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from classroom.calls.wire import MAX_BYTES, CannotCross, Handle, pack, unpack

MAX_HEADER_BYTES = 4 * 2**20
_LENGTH = struct.Struct(">Q")
_CHUNK = 2**18


class ProtocolError(Exception):
    """The other end sent something that is not a message, so nothing more is read from it."""


class HungUp(Exception):
    """The other end has closed the connection, or died."""


class Late(Exception):
    """The other end did not answer in time."""


class Channel:
    """One end of a conversation.

    Args:
        connection: A connected stream socket; the channel closes it.
        max_bytes: Longest message that is read.

    Attributes:
        connection: The socket.
        last_length: Bytes of the last message that was read.

    """

    def __init__(self, connection: socket.socket, max_bytes: int = MAX_BYTES):
        self.connection = connection
        self.last_length = 0
        self._max_bytes = max_bytes

    def send(self, value: Any, deadline: float | None = None) -> None:
        """Send one value.

        Args:
            value: What `wire.pack` takes.
            deadline: The moment, on the clock `time.monotonic`, at which to give up.

        Raises:
            CannotCross: If the value is of a kind that does not pass.
            Late: If the other end does not read it in time.
            HungUp: If the other end has closed the connection.

        """
        message = pack(value)
        if _LENGTH.unpack_from(message)[0] > MAX_HEADER_BYTES:
            raise CannotCross("a value with too many parts: use a torch.Tensor")
        try:
            self._set_timeout(deadline)
            self.connection.sendall(_LENGTH.pack(len(message)) + message)
        except TimeoutError:
            raise Late from None
        except OSError:
            raise HungUp from None

    def receive(
        self,
        deadline: float | None = None,
        resolve: Callable[[Handle], Any] = lambda handle: handle,
    ) -> Any:
        """Wait for one value.

        Args:
            deadline: The moment, on the clock `time.monotonic`, at which to give up.
            resolve: Returns the object that a handle stands for in this process.

        Raises:
            ProtocolError: If the bytes are too many, or no message.
            Late: If they do not arrive in time.
            HungUp: If the other end has closed the connection.

        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if not _LENGTH.size <= length <= self._max_bytes:
            raise ProtocolError(f"it announced a message of {length:,} bytes")
        start = self._read(_LENGTH.size, deadline)
        (header,) = _LENGTH.unpack(start)
        if header > MAX_HEADER_BYTES:
            raise ProtocolError(f"it announced a header of {header:,} bytes")
        message = start + self._read(length - _LENGTH.size, deadline)
        self.last_length = length
        try:
            return unpack(bytes(message), resolve)
        except CannotCross as error:
            raise ProtocolError(str(error)) from None

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _read(self, length: int, deadline: float | None) -> bytearray:
        # Memory grows with what has arrived, not with what was announced.
        found = bytearray()
        while len(found) < length:
            try:
                self._set_timeout(deadline)
                chunk = self.connection.recv(min(length - len(found), _CHUNK))
            except TimeoutError:
                raise Late from None
            except OSError:
                raise HungUp from None
            if not chunk:
                raise HungUp
            found += chunk
        return found

    def _set_timeout(self, deadline: float | None) -> None:
        if deadline is None:
            self.connection.settimeout(None)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
