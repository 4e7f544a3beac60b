"""A process that has imported perfci and forks one that runs it, for each call: importing is most of a short run.

Such a run is a process of its own with arguments, folder, environment and output of its own, as any other. What an
import of its own may change (the order of sets, an interpreter's own environment) needs a fresh one: `Repo.start`.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread


class Warm:
    """Our end: start it, hand it runs one after the other, close it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, __file__, str(other.fileno())]
            pipe = subprocess.PIPE  # as a run's, which Python treats as it found them when it started
            self._process = subprocess.Popen(command, env=env, pass_fds=[other.fileno()], stdout=pipe, stderr=pipe)

    def takes(self, env: dict[str, str]) -> bool:
        """Whether a run in this environment may be forked: what was imported has read nothing that differs."""
        settings = [f"PERFCI_{name}" for name in ("WAIT", "SEED", "CACHE", "KEEP")]
        ours = dict.fromkeys(("TMPDIR", "COLUMNS", "PYTEST_CURRENT_TEST", *settings), "")
        return env | ours == self.env | ours

    def run(
        self,
        args: tuple[str, ...],
        cwd: Path,
        env: dict[str, str],
        timeout: float,
        *,
        merged: bool = False,
        isolated: bool = False,
    ) -> tuple[int | None, str, str]:
        """Exit code, output and errors of `perfci ARGS`; no exit code if it took too long and was killed.

        `merged`: the errors stand among the output. `isolated`: as `python -I`.
        """
        ours, theirs = zip(*(os.pipe() for _ in range(1 if merged else 2)), strict=True)
        said: list[str] = ["", ""]

        def read(i: int) -> None:
            with os.fdopen(ours[i]) as pipe:
                said[i] = pipe.read()

        request = json.dumps({"args": args, "cwd": str(cwd), "env": env, "isolated": isolated}).encode()
        socket.send_fds(self._socket, [request], [theirs[0], theirs[-1]])
        for end in theirs:
            os.close(end)
        readers = [Thread(target=read, args=(i,), daemon=True) for i in range(len(ours))]
        for reader in readers:
            reader.start()
        pid = int(self._socket.recv(99))
        self._socket.settimeout(timeout)
        try:
            code: int | None = int(self._socket.recv(99))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._socket.settimeout(None)
            self._socket.recv(99)
            code = None
        self._socket.settimeout(None)
        for reader in readers:  # what the run left behind may hold them open
            reader.join(timeout if code is not None else 5)
        return code if not any(reader.is_alive() for reader in readers) else None, *said

    def close(self) -> None:
        self._socket.close()
        self._process.communicate()


def _serve(asked: socket.socket) -> dict:
    """Fork a process for each request. Returns, in that process, what it shall run."""
    while True:
        message, fds, *_ = socket.recv_fds(asked, 1 << 20, 2)
        if not message:
            sys.exit()
        pid = os.fork()
        if not pid:
            asked.close()
            for i, fd in enumerate(fds, start=1):
                os.dup2(fd, i)
                os.close(fd)
            return json.loads(message)
        for fd in fds:
            os.close(fd)
        asked.send(str(pid).encode())
        asked.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def main() -> None:
    del sys.path[0]  # this folder
    import gc
    import pkgutil
    from contextlib import suppress
    from importlib import import_module

    import perfci.cli

    for module in pkgutil.iter_modules(perfci.cli.__path__, "perfci.cli."):
        with suppress(ImportError):  # of an extra that is not installed
            import_module(module.name)
    from perfci.render import html, parts

    for environment in (html.jinja(), parts.jinja()):
        for template in environment.list_templates(extensions=["j2"]):
            environment.get_template(template)
    gc.freeze()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    if not request["isolated"]:
        sys.path.insert(0, request["cwd"])  # as `python -m`
    sys.argv = ["perfci", *request["args"]]
    runpy.run_module("perfci", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
