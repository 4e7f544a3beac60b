"""Layer 5: perfci in containers: what its image starts with, and what starts it."""

import sys


def say(line: str) -> None:
    """Print `line` on stderr as perfci does, unless it is empty."""
    if line:
        sys.stderr.write(f"perfci: {line}\n")
        sys.stderr.flush()
