"""The verdict over all jobs, as plain text."""

from perfci.judge.status import order
from perfci.model.publication import Publication
from perfci.model.report import CLASSES, Class
from perfci.model.text import count
from perfci.render.view import ICONS, NEEDS_REVIEW, View
from perfci.render.words import bare_advice, class_count

NO_RESULTS = "no job handed over results"
_ADVICE = "Read the log of the run, fix what it names, and run it again: this says nothing about performance."


class PublicationVerdict:
    """The reports of a publication, worst first."""

    def __init__(self, publication: Publication) -> None:
        self.publication = publication
        shards = [(shard, View(shard.report)) for shard in publication.shards]
        self.shards = sorted(shards, key=lambda one: _severity(one[1]))
        """Jobs with their Views: failing, in error, undecided, the rest."""
        self.views = [view for _, view in self.shards]
        idle = publication.unmeasured or publication.nothing
        self.missing = publication.missing or ([] if shards or idle else [NO_RESULTS])
        self.jobs = publication.jobs or len(shards) + len(publication.missing)
        self.failing = [one for one in self.shards if one[1].failing and one[1].report.verdict != "error"]
        self.silent = max(self.jobs, 1) - sum(view.report.verdict != "error" for view in self.views)
        """Jobs that gave no verdict."""

    @property
    def accepted(self) -> bool:
        """Somebody accepted a failure."""
        failed = any(v.report.exit_code == 1 for v in self.views)
        return self.publication.acceptance is not None and (failed or bool(self.publication.unmeasured))

    @property
    def acceptable(self) -> bool:
        """A failure waits for somebody to accept it."""
        publication = self.publication
        return publication.exit_code == 1 and publication.checked and publication.origin.pull_request is not None

    @property
    def icon(self) -> str:
        """The verdict as one sign."""
        code = self.publication.exit_code
        if code:
            return ICONS["error" if code == 3 else "fail"]
        if self.accepted:
            return "☑️"
        if self.publication.undecided:
            return ICONS["undecided"]
        return "⚠️" if any(view.warnings or view.failing for view in self.views) else "✅"

    @property
    def sentence(self) -> str:
        """The verdict with its largest gating change."""
        text = self._one() if self.jobs <= 1 else self._several()
        if self.publication.adopting and not self.publication.exit_code:
            return f"Adopting perfci: {self.publication.adopting}"
        if self.publication.unconfirmed and not self.publication.exit_code:
            return f"Not confirmed: {self.publication.unconfirmed}"
        if self.accepted:
            return f"Accepted: {text}"
        return text + NEEDS_REVIEW * any(view.report.needs_review for view in self.views[:1])

    @property
    def advice(self) -> str:
        """The advice, if any."""
        publication = self.publication
        if (not self.jobs and not self.missing) or (publication.unconfirmed and not publication.exit_code):
            return ""
        lead = self.failing or self.shards
        if lead and (self.failing or not self.missing):
            return bare_advice(lead[0][1].report)  # commands come from commits that are known, never from a report
        return _ADVICE

    @property
    def counts(self) -> list[tuple[Class, int]]:
        """Classes, worst first, with their rows in all jobs."""
        sums = {name: sum(dict(view.counts).get(name, 0) for view in self.views) for name in CLASSES}
        return [(name, number) for name, number in sums.items() if number]

    def _one(self) -> str:
        if not self.views and not self.missing:
            if self.publication.nothing:
                return f"Nothing to compare: {self.publication.nothing}"
            passed = "Nothing was measured" if self.accepted else "Passed without measuring"
            return f"{passed}: {self.publication.unmeasured}"
        if self.missing and self.failing:
            return f"No verdict: {self.missing[0]}; {self.views[0].sentence}"
        if self.missing and self.views and self.views[0].report.verdict != "error":
            return f"No verdict: {self.missing[0]}"
        return self.views[0].sentence if self.views else f"Nothing was measured: {self.missing[0]}"

    def _several(self) -> str:
        silent = f"{self.silent} of {count(self.jobs, 'job')} gave no verdict" if self.silent else ""
        silent = silent or ("no verdict" if self.missing else "")
        if self.failing:
            shard, view = self.failing[0]
            parts = [named(shard.name, view.sentence)]
            failed = sum(view.report.verdict == "fail" for view in self.views)
            parts += [f"{failed} of {self.jobs} jobs fail"] if failed > 1 else []
            return "; ".join([*parts, silent] if silent else parts)
        if silent:
            first = self.missing[0] if self.missing else named(self.shards[0][0].name, self.views[0].sentence)
            return f"{silent}: {first}"
        if self.publication.undecided:
            unanswered = [(shard, view) for shard, view in self.shards if view.report.verdict == "undecided"]
            shard, view = unanswered[0]
            many = f"; {len(unanswered)} of {self.jobs} jobs are undecided" if len(unanswered) > 1 else ""
            return named(shard.name, view.sentence) + many
        return f"Passed in {self.jobs} jobs: " + ", ".join(class_count(*one) for one in self.counts)


def named(job: str, sentence: str) -> str:
    """Return `h100: …`."""
    name = job.replace("`", "'")
    return f"{name}: {sentence}" if name else sentence


def _severity(view: View) -> tuple[object, ...]:
    if view.report.verdict == "error":
        return (1,)
    if view.failing:
        return (0 if view.report.verdict == "fail" else 2, *order(view.failing[0]))
    return (3, view.report.verdict != "undecided", not view.warnings)
