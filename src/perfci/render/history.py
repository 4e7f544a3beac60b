"""The history in a terminal."""

from perfci.history.document import Night
from perfci.model.text import count, listed
from perfci.render.escape import visible


def recorded(night: Night, name: str, *, new: bool) -> str:
    """Return the line that says what was recorded, under which name."""
    title = f" {visible(night.commit.title)}" if night.commit.title else ""
    against = [night.reference.name] if night.reference is not None else []
    against += [night.last.sha[:10]] if night.last is not None else []
    cases = count(len({(point.case, point.device) for point in night.points}), "case")
    told = f"{cases} against {listed(map(visible, against)).replace(', ', ' and ')}" if against else f"{cases}, alone"
    seam = f"; seam to {visible(night.seam.before.name)}" if night.seam is not None else ""
    wrong = f"; error: {visible(night.error)}" if night.error else ""
    return (
        f"{'recorded' if new else 'was recorded already:'} {night.commit.sha[:10]}{title}: {told}{seam}{wrong} · {name}"
    )
