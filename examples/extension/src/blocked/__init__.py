"""A blocked matrix transpose in C++."""

from blocked._transpose import transpose

__all__ = ["transpose"]
