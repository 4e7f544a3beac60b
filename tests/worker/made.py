"""Kernels of tests, and the outcomes of the checks before and after timing."""

from perfci.worker.bench import prepare
from perfci.worker.checks.check import check_case, verify
from perfci.worker.declare import collecting, kernel


def case(fn, **arguments):
    with collecting() as kernels:
        kernel(**arguments)(fn)
    return kernels[0]


def prepared(fn, device="cpu"):
    return prepare(case(fn), {}, device, 0, 0)


def outcomes(fn):
    first = check_case(case(fn), [{}], "cpu", 0)
    made = prepared(fn)
    made.fn()
    return first, verify(made)
