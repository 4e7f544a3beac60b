"""The report as GitHub Markdown: `report.md`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfci.model.report import Report
from perfci.model.text import shell
from perfci.render import parts, words
from perfci.render.fit import LIMIT, Fold, Most, fit
from perfci.render.view import View

_LONGEST_COMMAND = 1_000


def render(report: Report, limit: int = LIMIT) -> str:
    """Render Markdown; `limit` as of `fit`."""
    return fit(_Page(View(report)), limit)


@dataclass(frozen=True)
class _Page:
    shown: View

    @cached_property
    def _folds(self) -> list[Fold]:
        return parts.folds(self.shown)

    def folds(self, most: Most) -> list[Fold]:
        return self._folds

    def text(self, most: Most, kept: Sequence[Fold], dropped: Sequence[Fold]) -> str:
        shown = self.shown
        report = shown.report
        command, advised = shell(report.command), shell(report.advised)
        told = 0 < len(advised) <= _LONGEST_COMMAND
        return parts.page(
            "report.md.j2",
            view=shown,
            body=parts.body(shown, shown.leading[: most.rows], shown.remarks[: most.remarks]),
            folds=[fold.text for fold in kept],
            dropped=parts.dropped(dropped),
            advice=report.advice if told else words.bare_advice(report),
            advised=advised if told else "",
            command=command if len(command) <= _LONGEST_COMMAND and not told else "",
        )
