"""Finds bytecode that is not its source's: `python -I -S -B bytecode.py FILE`, in the side's interpreter.

Bytecode that would not be loaded (another version's, without a source, older than it) is not faulty.
FILE holds a JSON list of paths; the last line printed lists the faulty ones.
"""

import importlib.util
import json
import marshal
import os
import sys
from types import CodeType
from typing import Any

HEADER = 16
"""Bytes: magic number, flags, and time and size of the source, or its hash (PEP 552)."""
HASHED, CHECKED = 1, 2


def faulty(path: str) -> bool:
    """Tell whether the interpreter would load this bytecode, and its source compiles to other code."""
    stem, _, tail = os.path.basename(path)[: -len(".pyc")].partition(f".{sys.implementation.cache_tag}")
    if not stem or tail not in ("", ".opt-1", ".opt-2"):
        return False
    source = os.path.join(os.path.dirname(os.path.dirname(path)), stem + ".py")
    try:
        with open(path, "rb") as file:
            data = file.read()
        with open(source, "rb") as file:
            text = file.read()
        info = os.stat(source)
    except FileNotFoundError:
        return False
    if len(data) < HEADER or data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & HASHED:
        stale = bool(flags & CHECKED) and importlib.util.source_hash(text) != data[8:16]
    else:
        told = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")
        stale = told != (int(info.st_mtime) & 0xFFFFFFFF, info.st_size & 0xFFFFFFFF)
    if stale:
        return False
    try:
        made = compile(text, path, "exec", dont_inherit=True, optimize=int(tail[-1:] or 0))
        loaded = marshal.loads(data[HEADER:])
    except (ValueError, TypeError, SyntaxError, EOFError):
        return True
    return not _same(made, loaded)


def _same(one: CodeType, two: Any) -> bool:
    """Compare without file names; a NaN constant equals nothing."""
    return bool(one == two) or marshal.dumps(one) == marshal.dumps(two)


def main() -> None:
    """Run the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        paths = json.load(file)
    sys.stdout.write(json.dumps([path for path in paths if faulty(path)]) + "\n")


if __name__ == "__main__":
    main()
