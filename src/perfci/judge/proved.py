"""Cases that a proof answers for, and audited ones."""

from collections.abc import Sequence

from perfci.judge.status import Context, criterion_row
from perfci.model.criteria import Criterion
from perfci.model.report import Row
from perfci.model.results import Case
from perfci.model.text import count, listed

_BY = {
    "files": "base and head are the same files",
    "code": "they read no file that differs",
    "work": "they give the GPU the same work",
}


def proved_row(case: Case, criterion: Criterion) -> Row | None:
    """Return the row that the proof of its case answers; None where values must.

    What is the same keeps limits on its change, and observed bounds as base keeps them.
    """
    if case.proof is None or not case.answered(criterion.metric) or not (criterion.relative or criterion.observed):
        return None
    return criterion_row(case, criterion, "unchanged", "pass", f"proved: {case.proof.reason}", proved=True)


def contradicted(case: Case, row: Row) -> Row:
    """Return the row of an audited case, failing where slower."""
    if case.proof is None or not case.proof.audited or row.class_ != "regression":
        return row
    reason = f"contradicts its proof, by which {case.proof.reason}: {row.reason}; prove: false measures every case"
    return row.model_copy(update={"effect": "fail", "reason": reason})


def remarks(context: Context, cases: Sequence[Case]) -> list[str]:
    """Return notes on how many cases were proved, and audited."""
    asked = [case for case in cases if context.criteria.get(case.key)]
    notes = []
    for by, why in _BY.items():
        proved = [case for case in asked if case.proved and case.proof is not None and case.proof.by == by]
        hosts = [case for case in proved if case.host_open]
        numbers = [case for case in proved if case.measured("head") and case not in hosts]
        aside = f" but for {count(len(numbers), 'number')} of head" if numbers else ""
        aside += f" but for the host times of {count(len(hosts), 'case')}" if hosts else ""
        if proved:
            n = f"{len(proved)} of {count(len(asked), 'case')}"
            notes.append(f"{n} proved unchanged, and not measured{aside}: {why}")
    if audited := [case.id for case in cases if case.proof is not None and case.proof.audited]:
        notes.append(f"{listed(audited, mark='`')} was proved unchanged and measured all the same, to audit the proofs")
    return notes
