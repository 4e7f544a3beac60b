"""Kineto, torch's own profiler: timelines without nsys."""
