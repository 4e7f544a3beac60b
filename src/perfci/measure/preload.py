"""Asks the parent of all workers to import once what both sides import, and says what came of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from perfci.measure.environments import differing_variables
from perfci.measure.prepare import SideWork
from perfci.model.base import Amount, Document, Side
from perfci.system.files import write_atomic
from perfci.system.process import Parent

LOG = "preload.log"
NO_FORKS = "the workers are not forks of one process here"


class _Imported(Document):
    """The parent's answer."""

    modules: int
    seconds: Amount
    paid: Amount
    """Seconds of the imports themselves, that each process would pay which inherits none."""
    refused: dict[str, str]
    """Module → why each worker imports it itself."""
    stopped: str
    """The place in a suite, as `file:line`, after which nothing was imported beforehand."""


def neutral(side: SideWork, nowhere: Path) -> dict[str, str]:
    """Return the side's environment with `nowhere` in the place of its folder."""
    return {name: value.replace(str(side.folder), str(nowhere)) for name, value in side.env.items()}


def _why(sides: Mapping[Side, SideWork]) -> str:
    differ = differing_variables(sides)
    return f": base and head differ in the environment: {', '.join(differ)}" if differ else ""


def preload(
    sides: Mapping[Side, SideWork], parent: Parent, nowhere: Path, forbidden: Sequence[str], logs: Path
) -> None:
    """Import in the parent what the suites of all sides import; `preload.log` says what was left to the workers, and
    why. Where nothing can be, the workers import everything."""
    write_atomic(logs / LOG, "\n".join(_preload(sides, parent, nowhere, forbidden)) + "\n")


def _preload(sides: Mapping[Side, SideWork], parent: Parent, nowhere: Path, forbidden: Sequence[str]) -> Sequence[str]:
    if not parent.forks:
        return [f"nothing is imported beforehand: {NO_FORKS}{_why(sides)}"]
    if any(side.failure for side in sides.values()):
        return ["nothing is imported beforehand: a side does not build"]
    asked = [{"tree": str(one.tree), "path": one.path(), "suite": one.suite} for one in sides.values()]
    told = parent.preload_suite(asked, nowhere, forbidden)
    if told is None:
        return ["nothing is imported beforehand: no way was found that leaves the workers as they would be"]
    try:
        done = _Imported.model_validate(told)
    except ValidationError:
        return ["what was imported beforehand is not known: the parent's answer does not fit"]
    parent.imported += done.paid
    lines = [f"{done.modules} modules were imported once for all workers, in {done.seconds:.1f} s"]
    if done.stopped:
        lines.append(
            f"{done.stopped}: from here on the suite decides how it imports: set variables under env: in perfci.yaml, "
            "and folders under path:, for imports that are paid once"
        )
    return lines + [f"each worker imports {name}: it {why}" for name, why in done.refused.items()]
