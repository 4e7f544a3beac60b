"""cuobjdump as a back end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perfci.model.profile import KernelCode, KernelUse
from perfci.profilers import faults
from perfci.profilers.base import Built, Code, Profiler, ProfilerRequest, Read
from perfci.profilers.sass import code as sass
from perfci.system.bounded import MIB, Bounds, Unread, call, desk, run
from perfci.system.users import SAME, Account

SEARCH_TIME = 20.0
MOST_LEFT = 3
Matched = tuple[list[list[KernelCode | None]] | None, list[str]]

fault = partial(faults.fault, sass.TOOL, "code")


@dataclass(frozen=True)
class Sass(Profiler[Code]):
    """cuobjdump, which each side may have."""

    request: ProfilerRequest
    name = sass.TOOL
    part = "code"
    scopes = frozenset({"side"})

    @classmethod
    def find(cls, request: ProfilerRequest) -> "Sass":
        """Return the reader: a side without cuobjdump says so later."""
        return cls(request)

    def inspect(
        self, built: Built, kernels: Mapping[str, Sequence[KernelUse]], note: Callable[[str], None]
    ) -> Read[Code]:
        """Find the code of each different kernel once."""
        capability, account = self.request.capability, self.request.account
        if capability is None:
            return Read()
        note(f"machine code: {built.name}")
        try:
            tool = sass.find(_wheels(built, account))
            found, left = code(built.folders, tool, capability, list(kernels.values()), account)
        except Unread as why:
            return Read(general=[fault("unreadable", f"files of {built.name}: {why}")])
        if found is None:
            return Read(general=[fault("absent", sass.ABSENT, f"{built.python} {sass.REMEDY}")])
        read: Read[Code] = Read()
        for name, codes in zip(kernels, found, strict=False):  # none where the side has built nothing
            read.seen[name] = list({(one.name, one.registers): one for one in codes if one is not None}.values())
            if left and None in codes:  # one of them may hold what is missing
                more = f" and {len(left) - MOST_LEFT} more" if len(left) > MOST_LEFT else ""
                read.faults[name] = [fault("incomplete", "; ".join(left[:MOST_LEFT]) + more)]
        return read


def _wheels(built: Built, account: Account) -> list[Path]:
    # cuobjdump may be elsewhere; that the interpreter does not run is told by whoever needs it
    command = [*account.prefix(), built.python, "-c", sass.SEARCH]
    return sass.wheels(run(command, SEARCH_TIME, env=built.env, cwd=built.cwd).out)


def code(
    folders: Sequence[Path],
    tool: Path | None,
    capability: tuple[int, int],
    kernels: Sequence[Sequence[KernelUse]],
    account: Account = SAME,
) -> Matched:
    """Call `match_files` in another process. Raises Unread."""
    bounds = Bounds(
        seconds=sass.SEARCH_TIME + sass.INSPECTION_TIME, memory=512 * MIB, program=sass.MEMORY,
        written=sass.LARGEST_TEXT,
    )  # fmt: skip
    with desk(account) as place:
        return call(
            match_files, bounds, place, account, folders=[folder.absolute() for folder in folders],
            tool=None if tool is None else tool.absolute(), capability=capability,
            kernels=[list(one) for one in kernels],
        )  # fmt: skip


def match_files(
    folders: list[Path], tool: Path | None, capability: tuple[int, int], kernels: list[list[KernelUse]]
) -> Matched:
    """Return the code of `kernels` in files below `folders`, as `sass.code.match` does, and unread files and why. No
    list where there is no file, None where there is no tool for them."""
    files, left = sass.code_files(folders)
    if not files:
        return [[None] * len(one) for one in kernels] if left else [], left
    if tool is None:
        return None, left
    asked = [kernel for one in kernels for kernel in one]
    found = sass.inspect([file for file in files if sass.may_name(file, asked)], sass.runner(tool), capability)
    return [sass.match(one, found) for one in kernels], [*left, *found.left][: sass.MOST_FILES]
