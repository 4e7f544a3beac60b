"""Newline-delimited JSON over a socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any, Optional

LARGEST_MESSAGE = 64 * 2**20
"""Bytes."""
LONGEST_PATH = 103
"""Bytes that both Linux (107) and macOS (103) take."""


class Garbage(Exception):
    """The other side sent something other than one JSON object per line."""


class Channel:
    """One end of a conversation, for the process that made it: a fork leaves at once."""

    def __init__(self, sock: socket.socket, takes_files: bool = False) -> None:
        self._sock = sock
        self._buffer = b""
        self._pid = os.getpid()
        self._takes_files = takes_files
        self._files: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor, for select()."""
        return self._sock.fileno()

    def send(self, message: dict[str, Any], file: Optional[int] = None) -> None:
        """Send a message, with an open file for the other side. Raises OSError."""
        if os.getpid() != self._pid:
            os._exit(0)  # a child that user code forked came back into our loop: it must not answer
        data = json.dumps(message).encode() + b"\n"
        if file is not None:
            data = data[socket.send_fds(self._sock, [data], [file]) :]
        self._sock.sendall(data)

    def file(self) -> int:
        """Return the file of the message just received; such messages are dealt with in turn."""
        return self._files.pop(0)

    def receive(self, timeout: Optional[float] = None) -> Optional[dict[str, Any]]:
        """Return the next message, or None at the end of the stream.

        Raises TimeoutError after `timeout` seconds without a whole message, and Garbage.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._buffer:
            if deadline is not None:
                left = deadline - time.monotonic()
                if not select.select([self._sock], [], [], max(0.0, left))[0]:
                    raise TimeoutError
            try:
                chunk = self._receive()
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            self._buffer += chunk
            if len(self._buffer) > LARGEST_MESSAGE:
                raise Garbage("a message without end")
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            message = json.loads(line)
        except ValueError:
            raise Garbage(repr(line[:80])) from None
        if not isinstance(message, dict):
            raise Garbage(repr(line[:80]))
        return message

    def _receive(self) -> bytes:
        if not self._takes_files:
            return self._sock.recv(1 << 16)  # drops files that come along
        chunk, files, _, _ = socket.recv_fds(self._sock, 1 << 16, 4)
        for file in files:
            os.set_inheritable(file, False)
        self._files += files
        return chunk

    def limit(self, seconds: float) -> None:
        """Limit the time of each send."""
        self._sock.settimeout(seconds)

    def pending(self) -> bool:
        """Tell whether a whole message is already here."""
        return b"\n" in self._buffer

    def close(self) -> None:
        """Close."""
        self._sock.close()


@contextlib.contextmanager
def reachable(address: str) -> Iterator[str]:
    """Yield a short name for a socket: paths end at 107 bytes (unix(7))."""
    if len(os.fsencode(address)) <= LONGEST_PATH:
        yield address
        return
    folder, name = os.path.split(address)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield "/proc/self/fd/{}/{}".format(descriptor, name)
    finally:
        os.close(descriptor)


def connect(address: str, takes_files: bool = False) -> Channel:
    """Connect to the run's socket. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with reachable(address) as name:
        sock.connect(name)
    return Channel(sock, takes_files)
