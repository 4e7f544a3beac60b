"""Finds the kernels of a suite, and where each module of the repository came from."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

from .declare import Kernel, collecting
from .scripts.held import Left
from .scripts.kernel import kernel_of
from .scripts.script import Script, Unlisted, Unsupported

TEXT_LIMIT = 400
NEVER_FOREIGN = frozenset({"perfci", "setup", "conftest", "__main__", "__mp_main__", __name__.split(".", 1)[0]})
"""perfci comes from the run, even if the repository is perfci's own."""
MOST_PACKAGES = 5000
NO_FILE = "matches no file"
SUITE_PREFIX = "perfci_suite_"
NO_CALLS: dict[str, Any] = {
    "names": [], "stable": [], "calls": [], "lines": [], "places": [], "failed": [],
    "ended": "", "alone": "", "skipped": "",
}  # fmt: skip
"""Of a script: see `listing`; `skipped` says why there are none here."""
PACKAGES = frozenset({"site-packages", "dist-packages"})
"""They may lie below the standard library."""


def discover(root: str, patterns: Sequence[str]) -> dict[str, list[Any]]:
    """Import the files below `root` that match `patterns` (pathlib globs, `**` allowed) and collect kernels.

    Returns `{"files": [{"file", "error"}], "kernels": [Kernel]}`, paths relative to `root`. A file that fails costs
    only its own kernels: "error" is `{"kind": "import", "text": one line}`, else None; kind "absent" is for a pattern
    without files.
    """
    top = Path(root).resolve()
    files: list[dict[str, Any]] = []
    kernels: dict[str, Kernel] = {}
    seen: set[str] = set()
    for pattern in patterns:
        matched = matches(top, pattern)
        if isinstance(matched, str):
            files.append(_failure(pattern, matched, "absent" if matched == NO_FILE else "import"))
            continue
        for file in matched:
            if file not in seen:
                seen.add(file)
                files.append(_load(top, file, kernels))
    return {"files": files, "kernels": list(kernels.values())}


def scripts(
    root: str,
    entries: Sequence[dict[str, Any]],
    found: dict[str, list[Any]],
    running: Callable[[str], AbstractContextManager[None]],
) -> list[dict[str, Any]]:
    """Add the kernels of benchmark scripts to what `discover` has found; return an entry for each file, with its calls.

    An entry has the fields of `Script`, `file` a glob, and `listed` where known; or `names`, file → `kernel` of those
    asked for. `running` is around the run of each file.
    """
    top = Path(root).resolve()
    kernels, listed = found["kernels"], []
    for entry in entries:
        matched = matches(top, entry["file"])
        if isinstance(matched, str):
            found["files"].append(_failure(entry["file"], matched, "absent" if matched == NO_FILE else "import"))
            continue
        for file in matched:
            one = dict(entry, file=file)
            known = one.pop("listed", None)
            if (names := one.pop("names", None)) is not None:
                if file not in names:
                    continue
                one["kernel"] = names[file]
            if known is not None and known["skipped"]:
                listed.append(dict(one, listed=known))
                continue
            try:
                with running(file):
                    kernel = kernel_of(Script(**one), str(top), known)
            except Unlisted as error:
                # A glob matches modules, and scripts that do not run here: what base has of its calls must be in head.
                globbed = file != entry["file"] and not one.get("base", {}).get(file, NO_CALLS)["calls"]
                if globbed or isinstance(error, Unsupported):
                    listed.append(dict(one, listed={**NO_CALLS, "skipped": str(error)[:TEXT_LIMIT]}))
                else:
                    found["files"].append(_failure(file, str(error), "script"))
                continue
            except (Exception, SystemExit, Left) as error:
                traceback.print_exc()
                found["files"].append(_failure(file, _explained(error, top), "script"))
                continue
            twin = next((other for other in kernels if other.name == kernel.name), None)
            if twin is not None:
                told = f"its cases would be named as those of {twin.file}, {kernel.name!r}: rename one of them"
                found["files"].append(_failure(file, told, "script"))
                continue
            found["files"].append({"file": file, "error": None})
            kernels.append(kernel)
            listed.append(dict(one, listed={**NO_CALLS, **kernel.listed}))
    return listed


class _Names:
    """Each name looked up alone."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __contains__(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.folder, name))


def packages() -> list[tuple[str, str]]:
    """Return name and version of each package, the first of several of one name."""
    from importlib.metadata import distributions  # which brings along more than all else here

    found: dict[str, tuple[str, str]] = {}
    for one in distributions():
        notes: Any = one.metadata
        name = notes and notes.get("Name")  # none where its notes are damaged
        if name and len(found) < MOST_PACKAGES:
            version = str(notes.get("Version") or "of no version")
            found.setdefault(normalized(name), (name[:100], version[:100]))
    return list(found.values())


def normalized(package: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def is_metadata(path: str) -> bool:
    """Tell whether a name is that of metadata, as importlib.metadata has it."""
    return path.lower().endswith((".dist-info", ".egg-info", "/egg-info")) or path.lower() == "egg-info"


def find_without_listing(own: Sequence[str]) -> None:
    """Have modules searched name by name, so that a tracer sees each name; and metadata in the present content of the
    folders `own`.

    FileFinder (importlib/_bootstrap_external.py) and importlib.metadata (FastPath) list every folder on sys.path, and
    search that list (Python 3.9 to 3.14).
    """

    def fill(finder: Any) -> None:
        finder._path_cache = _Names(finder.path or os.getcwd())

    def children(path: Any) -> Any:
        for name in known.get(path.root, ()):
            os.access(os.path.join(path.root, name), os.F_OK)
        return known[path.root] if path.root in known else listed(path)

    importlib.machinery.FileFinder._fill_cache = fill  # type: ignore[attr-defined]  # not public
    known = {folder: [name for name in os.listdir(folder) if is_metadata(name)] for folder in own}
    paths = getattr(importlib.import_module("importlib.metadata"), "FastPath", None)
    if paths is not None:
        listed, paths.children = paths.children, children
        getattr(paths.__new__, "cache_clear", lambda: None)()  # of what was listed before


def matches(top: Path, pattern: str) -> list[str] | str:
    """Return the relative paths of matching files, or what is wrong with the pattern."""
    if os.path.isabs(pattern) or ".." in Path(pattern).parts:
        return "lies outside the repository: write a glob relative to its root"
    if (top / pattern).is_file():
        return [Path(pattern).as_posix()]  # no folder is listed, which Python 3.12 does for the name of a file, too
    try:
        files = sorted(path.relative_to(top).as_posix() for path in top.glob(pattern) if path.is_file())
    except ValueError as error:
        return f"is no glob: {error}"
    return files or NO_FILE


def _load(top: Path, file: str, kernels: dict[str, Kernel]) -> dict[str, Any]:
    path = top / file
    if path.suffix != ".py":
        return _failure(file, "is no Python file: narrow the glob under suite")
    if not inside(path.resolve(), [top]):
        return _failure(file, "is a link that leads out of the repository")
    name = _module_name(file)
    spec = importlib.util.spec_from_file_location(name, str(path))
    if spec is None or spec.loader is None:
        return _failure(file, "cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with collecting() as declared:
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            sys.modules.pop(name, None)
            return _failure(file, _explained(error, top))
    for kernel in declared:
        twin = kernels.get(kernel.name)
        if twin is not None:
            return _failure(
                file,
                f"kernel {kernel.name!r} is declared already in {twin.file}:{twin.line}: rename one of them",
            )
    for kernel in declared:
        kernel.file, kernel.suite = _relative(kernel.file, top) or file, file
        kernels[kernel.name] = kernel
    return {"file": file, "error": None}


def _failure(file: str, text: str, kind: str = "import") -> dict[str, Any]:
    return {"file": file, "error": {"kind": kind, "text": text}}


def _module_name(file: str) -> str:
    stem = re.sub(r"\W", "_", Path(file).stem)
    return f"{SUITE_PREFIX}{hashlib.sha256(file.encode()).hexdigest()[:8]}_{stem}"


def _explained(error: BaseException, top: Path) -> str:
    place: Optional[tuple[str, Optional[int]]] = None
    for frame in traceback.extract_tb(error.__traceback__):
        relative = _relative(frame.filename, top)
        if relative:
            place = relative, frame.lineno
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename:
        message = error.msg or ""
        place = (_relative(error.filename, top) or error.filename), error.lineno
    text = " ".join(f"{type(error).__name__}: {message}".replace(f"{top}{os.sep}", "").split()).rstrip(": ")
    if len(text) > TEXT_LIMIT:
        text = text[: TEXT_LIMIT - 1] + "…"
    if place is not None and f"{place[0]}:" not in text:
        text = f"{text} ({place[0]}:{place[1]})"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        text = f"{text}: {sys.executable} has no torch: install it there, or name another interpreter with --python"
    return text


def _relative(file: str, top: Path) -> Optional[str]:
    if not os.path.isabs(file):
        return None  # such as <string>
    path = Path(os.path.realpath(file))
    return path.relative_to(top).as_posix() if inside(path, [top]) else None


def inside(path: str | Path, folders: Sequence[str | Path]) -> bool:
    """Tell whether a path is one of `folders` or below one; all are real paths."""
    whole = os.path.join(path, "")
    return any(whole.startswith(os.path.join(folder, "")) for folder in folders)


def foreign_modules(root: str, site: str, forbidden_roots: Sequence[str], cache: str = "") -> list[tuple[str, str]]:
    """Return imported modules that should be this side's and are not, as (name, file), sorted.

    Their top-level name is provided by the tree at `root` (or `root/src`, or an entry of sys.path inside it) or `site`,
    but they came from elsewhere; or they lie below `forbidden_roots` (the user's checkout, the other side). The
    interpreter's packages, perfci and what the side compiled into its `cache`, as Triton does, are allowed.
    """
    own = (os.path.realpath(root), os.path.realpath(site))
    library = tuple(os.path.realpath(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))
    packages = [os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")]
    allowed = (*packages, os.path.realpath(cache)) if cache else tuple(packages)
    forbidden = tuple(map(os.path.realpath, forbidden_roots))
    regular, namespaces = _provided([Path(folder) for folder in own])
    found = []
    for name, file, _, spread in _imported():
        top = name.split(".", 1)[0]
        if top in NEVER_FOREIGN or any(_below(folder, own) for folder in spread):
            continue
        if any(_below(folder, library) and not _of_packages(folder) for folder in spread):
            continue  # the standard library wins over a file of the same name in the repository
        # A folder without __init__.py provides a name only if nothing else does: `packaging/` holding a
        # script does not clash with the package of that name.
        claimed = top in regular or (top in namespaces and _is_namespace(top))
        if claimed or any(_below(folder, forbidden) and not _below(folder, allowed) for folder in spread):
            found.append((name, file))
    return sorted(found)


def repo_modules(root: str, site: str) -> dict[str, str]:
    """Return imported modules of the repository → paths, below `tree/` for `root` and `site/` for `site`."""
    tree, overlay = os.path.realpath(root), os.path.realpath(site)
    modules = {}
    for name, _, path, spread in _imported():
        if name.startswith(SUITE_PREFIX):
            continue
        if _below(spread[0], (overlay,)):
            modules[name] = (Path("site") / Path(path).relative_to(overlay)).as_posix()
        elif _below(spread[0], (tree,)):
            modules[name] = (Path("tree") / Path(path).relative_to(tree)).as_posix()
    return dict(sorted(modules.items()))


def learn() -> None:
    """Look up where present modules came from, once for all forks."""
    for _ in _imported():
        pass


@functools.lru_cache(maxsize=None)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


@functools.lru_cache(maxsize=None)
def real_file(path: str) -> str:
    """Return os.path.realpath(), resolving each folder once: large libraries have thousands of files."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(_real_folder(folder), name)


@functools.lru_cache(maxsize=None)
def _below(folder: str, folders: tuple[str, ...]) -> bool:
    return inside(folder, folders)


@functools.lru_cache(maxsize=None)
def _of_packages(folder: str) -> bool:
    return not PACKAGES.isdisjoint(folder.split(os.sep))


def _imported() -> Iterator[tuple[str, str, str, list[str]]]:
    """Name, file as given, real path and real folders of each module with a file, or of a namespace package."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType):
            continue
        # Not getattr: modules with a __getattr__ of their own may import or raise.
        file, folders = module.__dict__.get("__file__"), module.__dict__.get("__path__")
        if isinstance(file, str):
            if os.path.isabs(file):  # torch.ops calls itself "_ops.py"
                path = real_file(file)
                yield name, file, path, [os.path.dirname(path)]
        elif folders is not None:
            places = [entry for entry in folders if isinstance(entry, str)]
            if places:
                spread = [_real_folder(entry) for entry in places]
                yield name, places[0], spread[0], spread


def _is_namespace(top: str) -> bool:
    module = sys.modules.get(top)
    return isinstance(module, ModuleType) and not isinstance(module.__dict__.get("__file__"), str)


def _provided(own: Sequence[Path]) -> tuple[set[str], set[str]]:
    searched = (Path(os.path.realpath(entry)) for entry in sys.path)
    entries = [*own, own[0] / "src", *(path for path in searched if inside(path, own))]
    suffixes = (".py", *importlib.machinery.EXTENSION_SUFFIXES)
    regular: set[str] = set()
    namespaces: set[str] = set()
    for entry in dict.fromkeys(entries):
        for item in entry.iterdir() if entry.is_dir() else ():
            suffix = next((suffix for suffix in suffixes if item.name.endswith(suffix)), None)
            if item.is_dir():
                (regular if (item / "__init__.py").is_file() else namespaces).add(item.name)
            elif suffix:
                regular.add(item.name[: -len(suffix)])
    return regular, namespaces
