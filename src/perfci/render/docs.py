"""Where the pages of docs/ are to be read."""

import json
import os
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import quote, urlsplit

import perfci

VARIABLE = "PERFCI_DOCS"
"""For a perfci not installed: in an action, in a container."""


def page(name: str) -> str:
    """Return the address of a page if one is known, else its file here."""
    return f"{os.environ.get(VARIABLE) or _folder()}/{name}"


def link(name: str) -> str:
    """Return the same for readers elsewhere; empty without an address."""
    found = page(name)
    return quote(found, safe=":/#%") if found.startswith("https://") else ""


@cache
def _folder() -> str:
    checkout = str(Path(perfci.__file__).parents[2] / "docs")
    try:
        installed = metadata.distribution("perfci")
    except metadata.PackageNotFoundError:
        return checkout
    came = json.loads(installed.read_text("direct_url.json") or "{}")
    if "vcs_info" in came and (address := _address(came["url"])):
        return f"{address}/blob/{came['vcs_info']['commit_id']}/docs"
    shipped = [file for file in installed.files or [] if file.name == "undecided.md"]
    return str(Path(str(installed.locate_file(shipped[0]))).resolve().parent) if shipped else checkout


def _address(url: str) -> str:
    """Without who fetched from it; empty where it has none."""
    parts = urlsplit(url)
    known = parts.scheme in ("https", "ssh") and parts.hostname
    return f"https://{parts.hostname}{parts.path.removesuffix('/').removesuffix('.git')}" if known else ""
