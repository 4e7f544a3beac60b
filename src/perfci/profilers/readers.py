"""What profilers wrote, read in processes of their own: bounds of each reader, and what is said where one is passed.

Bounds grow with the file, so that a small one cannot cost what a large one may. Readers run as the user that runs the
code under test, who can write such a file by hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from perfci.model.base import DeviceKind, MachineError
from perfci.model.profile import Fault, KernelCode, KernelUse, Trace
from perfci.model.text import escaped
from perfci.profilers import sass
from perfci.profilers.faults import fault
from perfci.profilers.ncu import file as ncu_file
from perfci.profilers.ncu import module as ncu_module
from perfci.profilers.ncu import report as ncu
from perfci.profilers.nsys import export as nsys_export
from perfci.profilers.nsys import perfetto
from perfci.profilers.nsys import privacy as nsys_privacy
from perfci.profilers.nsys import trace as nsys
from perfci.profilers.torch import json as kineto_json
from perfci.profilers.torch import trace as kineto
from perfci.system.bounded import MIB, Bounds, Unread, call, desk, regular, take
from perfci.system.users import SAME, Account

AGAIN = "profile again"
Seen = tuple[Trace | None, Annotated[list[Fault], Field(max_length=2)]]
"""What a trace holds, and what is missing of it."""
LARGEST_TRACE = 512 * MIB
"""Bytes of Kineto's JSON at most, packed or not."""
LARGEST_TIMELINE = 128 * MIB
"""Bytes of a timeline for a browser: perfetto.MOST_EVENTS take a tenth."""


def _grown(size: int, per_second: float, most: float, **more: int) -> Bounds:
    """Ten seconds, and one more for each `per_second` bytes, up to `most`."""
    return Bounds(seconds=min(most, 10 + size / per_second), **more)


# ---------------------------------------------------------------- nsys


def nsys_traces(
    export: Path, names: Sequence[str] | None, account: Account = SAME, executions: int | None = None
) -> nsys.Reading:
    """As `nsys.read` tells it."""
    try:
        # A file that is refused before it is opened is told by `nsys.read` in its own words.
        size = export.lstat().st_size if export.is_file() else 0
        bounds = _grown(size, MIB, nsys.LIMIT, answer=64 * MIB, written=256 * MIB + 4 * size)
        with desk(account) as folder:
            return call(
                nsys.read, bounds, folder, account, path=export.absolute(), ranges=names, limit=bounds.wall,
                executions=executions,
            )  # fmt: skip
    except Unread as why:
        found = fault("nsys", "unreadable", f"{export.name}: {why}", nsys_export.AGAIN)
        return nsys.Reading({}, dict.fromkeys([""] if names is None else names, found), [found])


def keep_nsys(export: Path, folder: Path, account: Account = SAME) -> list[Fault]:
    """Write the scrubbed export and a timeline of it into `folder`, and tell why not: of files, and no value.

    Raises OSError where `folder` cannot be written to.
    """
    try:
        size = regular(export, nsys_export.LARGEST)
        bounds = _grown(size, 2 * MIB, nsys.LIMIT, written=256 * MIB + 4 * size)
        with desk(account) as place:
            copy, timeline = place / export.name, place / f"{export.stem}.timeline.json.gz"
            if refused := call(_scrub, bounds, place, account, export=export.absolute(), copy=copy):
                return [refused.model_copy(update={"aside": True})]
            account.reclaim(place)
            take(copy, folder / export.name, bounds.written)
            account.give(place)
            refused = call(perfetto.write, bounds, place, account, export=copy, out=timeline)
            account.reclaim(place)
            if refused is None:
                take(timeline, folder / timeline.name, LARGEST_TIMELINE)
    except Unread as why:
        refused = fault("nsys", "unreadable", f"{export.name}: {why}", nsys_export.AGAIN)
    return [refused.model_copy(update={"aside": True})] if refused else []


def _scrub(export: Path, copy: Path) -> Fault | None:
    """Scrub an export in a process of its own; what cannot be is not kept."""
    try:
        nsys_privacy.scrub(export, copy)
    except MachineError as error:
        return fault("nsys", "unreadable", escaped(error), nsys_export.AGAIN)
    return None


def held_secrets(path: Path, secrets: Mapping[str, str]) -> list[str]:
    """As `nsys_privacy.contains` tells it, as this process's own user, whose secrets they are. Raises Unread."""
    size = regular(path, nsys_export.LARGEST)
    with desk() as place:
        return call(
            nsys_privacy.contains, _grown(size, 4 * MIB, 600), place, path=path.absolute(), secrets=dict(secrets)
        )


# ---------------------------------------------------------------- ncu


def ncu_counters(
    path: Path,
    *,
    ranges: Sequence[str] | None,
    whole: bool,
    names: Sequence[str],
    most: int | None,
    installed: Path | None,
    account: Account = SAME,
    root: Path = Path("/"),
    python: str = "",
) -> ncu.Reading:
    """As `ncu.read` tells it."""
    try:
        size = regular(path, ncu_file.LARGEST)
        bounds = _grown(
            size, MIB, 300, memory=384 * MIB + 2 * size, answer=64 * MIB, written=256 * MIB + 8 * size,
            program=ncu_file.MEMORY + 12 * size,
        )  # fmt: skip
        with desk(account) as folder:
            return call(
                ncu.read, bounds, folder, account, path=path.absolute(), ranges=ranges, whole=whole, names=names,
                most=most, ncu=installed, modules=ncu_module.modules(root),
                timeout=min(ncu.TIMEOUT, 0.8 * bounds.wall), python=python,
            )  # fmt: skip
    except Unread as why:
        found = fault("ncu", "unreadable", f"{path.name}: {why}", AGAIN)
        return ncu.Reading(general=[found])


# ---------------------------------------------------------------- torch.profiler


def kineto_traces(
    paths: Mapping[str, Path], name: str, device: DeviceKind, account: Account = SAME, keep: Path | None = None
) -> dict[str, Seen]:
    """By name of a case, what its file holds of the executions in ranges `name`, and what is missing.

    `keep`: the folder that timelines for a browser go to. Raises OSError where it cannot be written to.
    """
    sizes: dict[str, int] = {}
    found: dict[str, Seen] = {}
    for case, path in paths.items():
        try:
            sizes[case] = regular(path, LARGEST_TRACE)
        except Unread as why:
            found[case] = _no_trace(path, why)
    asked = {case: paths[case] for case in sizes}
    try:
        return found | _kineto(asked, sum(sizes.values()), name, device, account, keep)
    except Unread as why:
        if len(asked) == 1:
            return found | {case: _no_trace(path, why) for case, path in asked.items()}
    for case, path in asked.items():  # each for itself: one of them broke the reader of all
        try:
            found |= _kineto({case: path}, sizes[case], name, device, account, keep)
        except Unread as why:
            found[case] = _no_trace(path, why)
    return found


def _no_trace(path: Path, why: Unread) -> Seen:
    return None, [fault("torch.profiler", "unreadable", f"{path.name}: {why}", kineto_json.REMEDY)]


def _kineto(
    paths: Mapping[str, Path], size: int, name: str, device: DeviceKind, account: Account, keep: Path | None
) -> dict[str, Seen]:
    """Files of `size` bytes altogether, in one process. Raises Unread."""
    if not paths:
        return {}
    bounds = _grown(size, MIB / 8, 300, written=256 * MIB + size)  # packed it is a tenth
    with desk(account) as folder:
        found = call(
            read_kineto, bounds, folder, account, paths={case: path.absolute() for case, path in paths.items()},
            name=name, device=device, folder=None if keep is None else folder,
        )  # fmt: skip
        account.reclaim(folder)
        if found.keys() != paths.keys():
            raise Unread("its reader answered for other cases")
        for path in paths.values() if keep is not None else ():
            assert keep is not None
            if (made := _timeline(folder, path)).exists():
                take(made, _timeline(keep, path), LARGEST_TIMELINE)
    return found


def _timeline(folder: Path, path: Path) -> Path:
    return folder / f"{path.name.removesuffix('.gz').removesuffix('.json')}.timeline.json.gz"


def read_kineto(paths: dict[str, Path], name: str, device: DeviceKind, folder: Path | None) -> dict[str, Seen]:
    """`kineto.read` of each, and `kineto.publish` where there is a `folder` for it."""
    told: dict[str, Seen] = {}
    for case, path in paths.items():
        found = kineto.read(path, name, device)
        refused = None if folder is None else kineto.publish(path, _timeline(folder, path))
        refused = refused.model_copy(update={"aside": True}) if refused else None  # a picture, and no value
        trace = found if isinstance(found, Trace) else None
        told[case] = trace, [one for one in (found, refused) if isinstance(one, Fault)]
    return told


# ---------------------------------------------------------------- machine code


@dataclass(frozen=True)
class Code:
    """What the files of a side hold."""

    codes: list[list[KernelCode | None]]
    """Of each list of kernels, in their order: see `sass.match`."""
    left: list[str]
    """Files that were not read, and why: one line each."""


def code_files(folders: Sequence[Path], account: Account = SAME) -> tuple[list[Path], list[str]]:
    """As `sass.code_files` tells it. Raises Unread."""
    bounds = Bounds(seconds=sass.SEARCH_TIME)
    with desk(account) as place:
        return call(sass.code_files, bounds, place, account, folders=[folder.absolute() for folder in folders])


def code(
    files: Sequence[Path],
    tool: Path,
    capability: tuple[int, int],
    kernels: Sequence[Sequence[KernelUse]],
    account: Account = SAME,
) -> Code:
    """The machine code of `kernels` in `files`, through `tool`. Raises Unread."""
    bounds = Bounds(seconds=sass.INSPECTION_TIME, memory=512 * MIB, program=sass.MEMORY)
    with desk(account) as place:
        return call(
            look_up, bounds, place, account, files=list(files), tool=tool.absolute(), capability=capability,
            kernels=[list(one) for one in kernels],
        )  # fmt: skip


def look_up(files: list[Path], tool: Path, capability: tuple[int, int], kernels: list[list[KernelUse]]) -> Code:
    """`sass.inspect` and `sass.match`."""
    found = sass.inspect(files, sass.runner(tool), capability)
    return Code([sass.match(one, found) for one in kernels], found.left[: sass.MOST_FILES])
