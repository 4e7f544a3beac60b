"""Layer 5: perfci in containers."""

import sys


def say(line: str) -> None:
    """Print `line` on stderr as perfci does, unless empty."""
    if line:
        sys.stderr.write(f"perfci: {line}\n")
        sys.stderr.flush()
