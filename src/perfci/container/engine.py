"""The Docker Engine, by Docker's SDK. Each of its errors becomes one line."""

import importlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, TextIO

from perfci.container import say
from perfci.model.base import MachineError, PerfciError, UsageError
from perfci.model.text import escaped

GRACE = 60
"""Seconds between an end asked for and a kill."""
_DRAIN = 5.0
"""Seconds for the last output of an ended container."""
_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
"""Programs on PATH by which an engine without a runtime called `nvidia` gives GPUs."""


class UnknownCapabilityError(MachineError):
    """The engine does not know a capability."""


@dataclass(frozen=True)
class Image:
    """A present image."""

    id: str
    env: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    code: int
    line: str
    """perfci's last line on stderr, without `perfci: `; empty without one, or on a terminal."""
    interrupted: bool = False
    """It was asked to stop; it may have ended before that."""


class Engine:
    """A Docker Engine that answers."""

    def __init__(self, client: Any) -> None:
        self._client = client
        with _told():
            self._info: Mapping[str, Any] = client.info()

    @classmethod
    @contextmanager
    def connect(cls) -> Iterator["Engine"]:
        """Yield the engine that DOCKER_HOST names, or this machine's. Raises UsageError, MachineError."""
        try:
            docker = importlib.import_module("docker")
        except ModuleNotFoundError:
            raise UsageError('Docker\'s SDK for Python is not installed here: pip install "perfci[docker]"') from None
        with _told():
            client = docker.from_env(version="auto")
        try:
            yield cls(client)
        finally:
            client.close()

    @property
    def memory(self) -> int:
        """Bytes of the machine."""
        return int(self._info["MemTotal"])

    def gives_gpus(self) -> bool:
        """Tell whether NVIDIA's container toolkit is there."""
        return "nvidia" in (self._info.get("Runtimes") or {}) or any(map(shutil.which, _HOOKS))

    def image(self, name: str, *, pull: bool) -> Image:
        """Return the image; pull it only where `pull` says so. Raises UsageError, MachineError."""
        not_found = importlib.import_module("docker.errors").ImageNotFound
        with _told():
            if pull:
                self._client.images.pull(name)
            try:
                attrs = self._client.images.get(name).attrs
            except not_found:
                raise UsageError(
                    f"image {escaped(name)}: is not here: make it in a clone of perfci with `make image`, "
                    "name another with --image, or fetch it with --pull"
                ) from None
        config = attrs["Config"]
        env = dict(one.partition("=")[::2] for one in config.get("Env") or [])
        return Image(attrs["Id"], env, config.get("Labels") or {})

    @contextmanager
    def volume(self, labels: Mapping[str, str]) -> Iterator[str]:
        """Yield the name of an empty volume, and remove it afterwards. Raises MachineError."""
        with _told():
            volume = self._client.volumes.create(labels=dict(labels))
        try:
            yield str(volume.name)
        finally:
            _remove(volume, "volume", volume.name, force=True)

    def run(self, arguments: Mapping[str, Any]) -> Ended:
        """Run a container from arguments of `containers.create`, with its output on this process's.

        An interrupt stops it; a second one kills it. Raises MachineError, UnknownCapabilityError.
        """
        with _told():
            container = self._client.containers.create(**arguments)
        try:
            with _told():
                return self._follow(container, tty=bool(arguments.get("tty")))
        finally:
            _remove(container, "container", container.short_id, force=True, v=True)

    def _follow(self, container: Any, *, tty: bool) -> Ended:
        # Attached before it starts: nothing is lost, and nothing of it is kept in the engine's logs.
        stream = self._client.api.attach(container.id, stdout=True, stderr=True, stream=True, demux=True)
        copy = _Copy(stream)
        interrupted = False
        container.start()
        copy.start()
        try:
            if tty:
                columns, lines = shutil.get_terminal_size()
                container.resize(lines, columns)
            copy.join()
        except KeyboardInterrupt:
            interrupted = True
            say(f"stopping: what is measured is kept; a second interrupt, or {GRACE} s, ends it at once")
            try:
                container.stop(timeout=GRACE)
            except KeyboardInterrupt:
                container.kill()
            copy.join(_DRAIN)
        code = int(container.wait(timeout=None)["StatusCode"])
        copy.join(_DRAIN)
        if code in range(4):
            return Ended(code, "" if tty else copy.line, interrupted)
        container.reload()
        if interrupted:
            raise MachineError("interrupted: the container was ended before it could say what it has")
        if container.attrs["State"].get("OOMKilled"):
            raise MachineError("the container ran out of memory: give the machine more, or lower `memory:` and sizes")
        raise MachineError(f"the container ended with {code}, which perfci never does: see what stands above")


class _Copy(Thread):
    def __init__(self, stream: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._tail = b""

    def run(self) -> None:
        with suppress(BrokenPipeError):  # nobody reads on: `… | head`
            for out, err in self._stream:
                _write(sys.stdout, out)
                _write(sys.stderr, err)
                self._tail = (self._tail + (err or b""))[-4096:]

    @property
    def line(self) -> str:
        lines = self._tail.decode(errors="replace").splitlines()
        said = [line.removeprefix("perfci: ") for line in lines if line.startswith("perfci: ")]
        return escaped(said[-1]) if said else ""


def _write(to: TextIO, data: bytes | None) -> None:
    if data:
        to.flush()
        to.buffer.write(data)
        to.buffer.flush()


def _remove(thing: Any, kind: str, name: str, **how: bool) -> None:
    try:
        with _told():
            thing.remove(**how)
    except PerfciError as error:  # what was measured counts all the same
        say(f"the {kind} {name} is left behind: docker {kind} rm --force {name} ({error})")


@contextmanager
def _told() -> Iterator[None]:
    errors = importlib.import_module("docker.errors")
    requests = importlib.import_module("requests.exceptions")
    try:
        yield
    except errors.APIError as error:
        raise refusal(error.explanation or str(error)) from None
    except (errors.DockerException, requests.RequestException, OSError) as error:
        raise unreachable(error) from None


def unreachable(error: BaseException) -> MachineError:
    """Return why the engine does not answer."""
    below: list[BaseException] = [error]
    for one in below:
        told = [one.__cause__, one.__context__, *one.args]
        below += [inner for inner in told if isinstance(inner, BaseException) and inner not in below]
    kinds = {type(one) for one in below}
    if PermissionError in kinds:
        return MachineError(
            "Docker: its socket is not for this user: sudo usermod -aG docker $USER and log in anew, which makes it "
            "root's equal, or use a rootless engine"
        )
    if kinds & {FileNotFoundError, ConnectionRefusedError}:
        return MachineError(
            "Docker: no engine answers: start one (sudo systemctl start docker), or name one in DOCKER_HOST"
        )
    return MachineError(f"Docker: the engine does not answer as it should: {escaped(error)}")


def refusal(text: bytes | str) -> PerfciError:
    """Return a refusal as an error with a remedy."""
    words = escaped(text.decode(errors="replace") if isinstance(text, bytes) else text)
    known = words.lower()
    if "unknown capability" in known:
        return UnknownCapabilityError(f"Docker: {words}")
    if "could not select device driver" in known or "nvidia-container-cli" in known or "unknown runtime" in known:
        return MachineError(f"Docker: it cannot give a GPU: {GPU_REMEDY} ({words})")
    if "no space left on device" in known:
        return MachineError(f"Docker: its disk is full: docker system df shows by what ({words})")
    if "bind source path does not exist" in known:
        return MachineError(f"Docker: the engine runs on another machine, or does not see these files ({words})")
    return MachineError(f"Docker: {words}")


GPU_REMEDY = (
    "install NVIDIA's container toolkit, nvidia-ctk runtime configure --runtime=docker, and restart Docker, "
    "or measure on the CPU with --gpus none"
)
