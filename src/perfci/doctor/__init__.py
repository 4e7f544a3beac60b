"""Layer 3: `perfci doctor`: each check is a function of a Machine that gives Findings, bounded in time, and never
raises."""

from perfci.doctor.machine import Machine, Said, fail, ok, warn
from perfci.doctor.survey import CHECKS, Check, examine

__all__ = ["CHECKS", "Check", "Machine", "Said", "examine", "fail", "ok", "warn"]
