"""Processes that start each other again: one that was connected to another that ends starts two. Run as a program with
a file of eight bytes, in which they count their forks."""

import mmap
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

HEADS = 20
MOST = 200
"""Forks altogether."""


def main(file: str) -> None:
    """Return once they live, orphans in sessions of their own."""
    with Path(file).open("r+b") as opened:
        forks = mmap.mmap(opened.fileno(), 8)
    ready, done = os.pipe()
    if os.fork() != 0:
        os.close(done)
        os.read(ready, 1)  # returns as nobody holds the other end
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.setsid()
    lines, wanted = list[socket.socket](), HEADS
    while True:
        while wanted:
            wanted -= 1
            (number,) = struct.unpack("q", forks[:8])
            if number >= MOST:
                return
            forks[:8] = struct.pack("q", number + 1)
            ours, theirs = socket.socketpair()
            if os.fork() == 0:
                for one in (*lines, ours):
                    one.close()
                lines, wanted = [theirs], 0
                os.setsid()
            else:
                theirs.close()
                lines.append(ours)
        if done >= 0:
            os.close(done)
            done = -1
        for line in select.select(lines, [], [])[0]:
            line.close()
            lines.remove(line)
            wanted += 2


def count(file: str) -> int:
    """Return how many forks there were."""
    return int(struct.unpack("q", Path(file).read_bytes())[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
