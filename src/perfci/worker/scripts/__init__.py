"""Benchmark scripts as they are: a case is executed where its script calls a timer, while the script's frames stand."""
