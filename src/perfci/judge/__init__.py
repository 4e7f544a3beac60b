"""Layer 3: results to report. Pure: the same report for the same results."""

from perfci.judge.judge import judge

__all__ = ["judge"]
