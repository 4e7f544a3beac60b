"""Reads reports: small ones in this process, others in a bounded one, whose start takes a third of a second."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from perfci.measure.commands.readers import FORMATS, recognise
from perfci.measure.commands.readers.base import About, Format, Reported, open_regular
from perfci.measure.commands.readers.nvbench import NVBENCH
from perfci.model.metrics import CustomMetric
from perfci.model.policy import Columns
from perfci.system.bounded import MIB, Bounds, Unread, call, desk
from perfci.system.users import SAME, Account

SMALL = MIB
"""Bytes of JSON that cannot cost much time or memory, whatever they hold."""
BOUNDS = Bounds(seconds=30.0, answer=128 * MIB)


class Told(NamedTuple):
    """A file's cases, and its account of itself."""

    tool: str
    about: About
    cases: dict[str, Reported]


def read(
    form: Format | None,
    path: Path,
    name: str,
    custom: Mapping[str, CustomMetric],
    account: Account = SAME,
    columns: Columns | None = None,
) -> Told:
    """Return what a file holds; `form` None recognises its format, `columns` are a table's. Raises ValueError, one
    line."""
    with open_regular(path) as file:
        small = file.seek(0, os.SEEK_END) <= SMALL
    told: Told | str | None = None
    if small and form is not NVBENCH:
        told = read_file(form.tool if form else None, path, name, dict(custom), columns, alone=True)
    if told is None:
        whole = path.absolute()
        try:
            with desk(account) as folder:
                told = call(
                    read_file, BOUNDS, folder, account, tool=form.tool if form else None, path=whole, name=name,
                    custom=dict(custom), columns=columns,
                )  # fmt: skip
        except Unread as why:
            raise ValueError(f"{path}: {why}: report fewer samples") from None
        if isinstance(told, str):
            told = told.replace(str(whole), str(path))
    if not isinstance(told, Told):
        raise ValueError(told)
    return told


def read_file(
    tool: str | None,
    path: Path,
    name: str,
    custom: dict[str, CustomMetric],
    columns: Columns | None = None,
    alone: bool = False,
) -> Told | str | None:
    """Return what the file holds, or why nothing. `alone`: None for NVBench's files, which name others."""
    try:
        form, about = (FORMATS[tool], About()) if tool is not None else recognise(path)
        if alone and form is NVBENCH:
            return None
        more = {} if columns is None else {"columns": columns}
        return Told(form.tool, about, form.read(path, name, custom, **more))
    except RecursionError:
        return f"{path}: is nested too deeply to be a result"
    except ValueError as error:
        return str(error)
