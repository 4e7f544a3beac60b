"""A first policy for a repository's benchmark scripts, which are not run."""

import ast
import importlib.metadata
import importlib.util
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from perfci.model.text import listed
from perfci.worker.discover import normalized
from perfci.worker.scripts.timers import KNOWN, TIMER

TIMERS = {*(path.rpartition(".")[2] for path in KNOWN), "perf_report"}
OWN_TIMERS = re.compile(r"\belapsed_time\(|\bperf_counter(_ns)?\(|\bproton\.")
"""What a script calls that times by itself."""
FIXTURE = "benchmark"
"""Of pytest-benchmark."""
GPU = re.compile(r"cuda|gpu|device|triton", re.IGNORECASE)
WORDS = ("bench", "perf")
"""Of paths of benchmarks."""
PLAIN = re.compile(r"[A-Za-z0-9_][\w./*-]*")
"""Text that YAML takes as it stands."""
LARGEST = 2**20
"""Bytes read of a file."""
MOST = 6
"""Globs of a proposal of ten lines at most."""
POLICY = """\
# What perfci measures here, and what must hold. `perfci list` shows the calls of the benchmarks' timers: the cases.
# In an entry of the suite, `select: {{provider: ours}}` keeps some of them, by words of their names, and
# `reference: {{call: {{provider: torch}}, rtol: 1.0e-3}}` says which calls' results are right (docs/scripts.md).
version: 1
{}
limits: [{}{{cases: "*", metric: time, regression: 10%, devices: [cpu]}}]
"""
ON_GPU = '{cases: "*", metric: time, regression: 3%, devices: [cuda]}, '
COMPILED = re.compile(r"\b(CUDAExtension|CppExtension|Extension|cythonize|CMakeExtension)\(")
VERSION = re.compile(r"""\bversion\(["']([\w.-]+)["']\)""")
BY_TAGS = re.compile(r"setuptools[-_]scm|hatch-vcs", re.IGNORECASE)
"""They take versions from git."""
BACKENDS = ("scikit_build_core", "mesonpy", "maturin", "nanobind")
"""Beginnings of build backends that compile."""


@dataclass
class Proposal:
    """Lines of `perfci.yaml`, and remarks on them."""

    scripts: list[str] = field(default_factory=list)
    """Files, of pytest's, too."""
    lines: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    cpu: bool = False
    """None of them speaks of a GPU."""
    first: str = ""
    """The shortest of which all imports are there."""

    @property
    def policy(self) -> str | None:
        """Return the text of `perfci.yaml`; None without scripts."""
        return POLICY.format("\n".join(self.lines), ON_GPU * (not self.cpu)) if self.scripts else None

    def limited(self, regression: str) -> str | None:
        """Return a policy with this one limit; None without scripts."""
        limit = f'limits: [{{cases: "*", metric: time, regression: {regression}}}]'
        return "\n".join(["version: 1", *self.lines, limit, ""]) if self.scripts else None


@dataclass(frozen=True)
class _File:
    path: str
    times: bool
    """It calls a known timer."""
    runs: bool
    """It does something when run."""
    tests: bool
    imports: frozenset[str]
    """Last names of what it imports."""
    packages: frozenset[str]
    """First names."""
    size: int
    """Bytes."""
    own: bool
    """It times by itself."""
    gpu: bool
    """It speaks of a device."""
    versions: frozenset[str]
    """Packages whose installed version it asks for."""

    @property
    def folder(self) -> str:
        return str(PurePosixPath(self.path).parent)


def propose(root: Path, files: Sequence[str]) -> Proposal:
    """Return what makes calls of benchmark scripts cases. `files`: relative to `root`."""
    made = Proposal()
    read = list(_read(root, files))
    helpers: dict[str, set[str]] = defaultdict(set)
    for one in read:
        if one.times and not one.runs:
            helpers[one.folder].add(PurePosixPath(one.path).stem)
    tests: list[str] = []
    themselves: list[str] = []
    for one in read:
        indirect = any(one.imports & names for folder, names in helpers.items() if _near(one.folder, folder))
        bench = any(word in one.path.lower() for word in WORDS)
        if one.tests:
            tests += [one.path] * (bench and (one.times or indirect))
        elif one.runs and bench and (one.times or indirect):
            made.scripts.append(one.path)
        elif one.runs and bench and one.own:
            themselves.append(one.path)
    if themselves:
        made.said.append(
            f"left out, as they time by themselves: {listed(themselves, 5)}: see `timers:` in docs/scripts.md"
        )
    on_gpu = {one.path for one in read if one.gpu}
    direct = {one.path for one in read if one.times}
    made.cpu = on_gpu.isdisjoint([*made.scripts, *tests])
    programs = _entries("script", made.scripts, on_gpu, [name for name in files if _is_test(name)])
    tested = sorted(_entries("pytest", tests, on_gpu), key=lambda entry: direct.isdisjoint(entry[1]))
    entries = [*programs, *tested]
    made.scripts = [file for _, kept in entries[:MOST] for file in kept]
    own = {part.removesuffix(".py") for name in files for part in PurePosixPath(name).parts}
    shortest = sorted((one for one in read if one.path in made.scripts), key=lambda one: one.size)
    ready = (one for one in shortest if all(map(_is_there, one.packages - own)))
    made.first = next((one.path for one in (*ready, *shortest)), "")
    if len(entries) > MOST:
        made.said.append(f"left out {listed((text for text, _ in entries[MOST:]), 5)}: add what matters under `suite:`")
    if entries:
        made.lines = ["suite:", *(f"  - {text}" for text, _ in entries[:MOST]), *_build(root, files, read, made.said)]
    return made


def _near(folder: str, helper: str) -> bool:
    return folder == helper or folder.startswith(f"{helper}/") or "bench" in helper.lower()


def _read(root: Path, files: Sequence[str]) -> Iterator[_File]:
    for name in sorted(files):
        path = root / name
        if not name.endswith(".py") or path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
            continue
        text = path.read_bytes()
        if b"bench" not in (name.encode() + text).lower() and b"perf_report" not in text:
            continue
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        imports = frozenset(_imports(tree))
        names = {node.attr if isinstance(node, ast.Attribute) else node.id for node in ast.walk(tree)
                 if isinstance(node, ast.Attribute | ast.Name)}  # fmt: skip
        times = bool(TIMERS & names) or (TIMER.rpartition(".")[2] in imports and "Timer" in names)
        functions = [
            node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        ]
        tests = _is_test(name) and bool(functions)
        times = times or (tests and any(arg.arg == FIXTURE for node in functions for arg in node.args.args))
        plain = text.decode(errors="replace")
        own, versions = OWN_TIMERS.search(plain) is not None, frozenset(map(normalized, VERSION.findall(plain)))
        gpu = GPU.search(plain) is not None
        yield _File(
            name, times, any(map(_does, tree.body)), tests, imports, _packages(tree), len(text), own, gpu, versions
        )


def _is_test(name: str) -> bool:
    stem = PurePosixPath(name).stem
    return stem.startswith("test_") or stem.endswith("_test") or stem == "conftest"


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").rpartition(".")[2]
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.rpartition(".")[2] for alias in node.names)


def _packages(tree: ast.AST) -> frozenset[str]:
    named = [
        [node.module or ""] * (not node.level) if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return frozenset(name.partition(".")[0] for names in named for name in names)


def _is_there(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _does(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        test = ast.unparse(node.test)
        return "TYPE_CHECKING" not in test and any(_does(inner) for inner in (*node.body, *node.orelse))
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.For | ast.While | ast.With)


def _entries(
    key: str, files: Sequence[str], on_gpu: Collection[str], others: Sequence[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    for named, matched in _globs(files, others):
        text = f"{key}: {named}"
        yield (text if any(file in on_gpu for file in matched) else f"{{{text}, device: cpu}}"), matched


def _globs(files: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield YAML for the files of each folder, and these: a glob where its words say that all it matches are
    benchmarks, for each is run, and none of `others`; else their names."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[str(PurePosixPath(file).parent)].append(file)
    for folder, paths in sorted(folders.items()):
        names = [PurePosixPath(path).name for path in paths]
        glob = f"{_common(names)}*.py" if folder == "." else f"{folder}/{_common(names)}*.py"
        if len(paths) == 1:
            yield _quoted(paths[0]), paths
        elif any(word in glob.lower() for word in WORDS) and not any(PurePosixPath(one).match(glob) for one in others):
            yield _quoted(glob), paths
        else:
            yield f"[{', '.join(map(_quoted, paths))}]", paths


def _quoted(path: str) -> str:
    return path if PLAIN.fullmatch(path) else json.dumps(path)


def _common(names: Sequence[str]) -> str:
    shortest, longest = min(names), max(names)
    same = 0
    while same < len(shortest) and shortest[same] == longest[same]:
        same += 1
    return shortest[:same].removesuffix(".py")


def _build(root: Path, files: Sequence[str], read: Sequence[_File], said: list[str]) -> list[str]:
    lines = []
    if any((root / "python").glob("*/__init__.py")):
        lines.append("path: [., python]")
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        project = {}
    except (OSError, ValueError) as error:
        said.append(f"pyproject.toml: {str(error).splitlines()[0]}: write `build:` yourself, if it needs one")
        return lines
    system = project.get("build-system", {})
    backend = str(system.get("build-backend", ""))
    setup = root / "setup.py"
    compiles = setup.is_file() and COMPILED.search(setup.read_text(encoding="utf-8", errors="replace")) is not None
    name = project.get("project", {}).get("name")
    requires = [str(one) for one in system.get("requires", ["setuptools"])]
    # A side has no tags to take a version from.
    install = "SETUPTOOLS_SCM_PRETEND_VERSION=0 " * any(map(BY_TAGS.match, requires)) + "pip install --no-deps"
    # A wheel can lack what developers have, such as folders without __init__.py: the code is taken from the tree.
    module = re.sub(r"\W", "_", str(name))
    editable = "--editable " * any(any((root / folder / module).glob("*.py")) for folder in (".", "src"))
    plain = f'build: {install} --target "$PERFCI_SITE" {editable}.'
    written = _written(project.get("tool", {}))
    if backend.startswith(BACKENDS) or compiles:
        lines.append(f'build: {install} --no-build-isolation --target "$PERFCI_SITE" .')
        missing = [one for one in requires if not _is_installed(one)]
        if missing:
            said.append(f"build: needs {listed(missing, 8)} here, beside what the scripts import")
    elif name and any(normalized(str(name)) in one.versions for one in read):
        lines.append(plain)
        said.append(f"build: a script asks for the installed version of {name}")
    elif written and written not in files:
        lines.append(plain)
        said.append(f"build: {written} is not in the repository: the package's build writes it")
    return lines


def _written(tools: Mapping[str, Any]) -> str:
    hatch = tools.get("hatch", {}).get("build", {}).get("hooks", {}).get("vcs", {})
    known = (
        *(tools.get("setuptools_scm", {}).get(key) for key in ("version_file", "write_to")),
        hatch.get("version-file"),
    )
    return next((str(file) for file in known if file), "")


def _is_installed(requirement: str) -> bool:
    name = re.match(r"[\w.-]+", requirement)
    try:
        return name is not None and bool(importlib.metadata.version(name[0]))
    except importlib.metadata.PackageNotFoundError:
        return False
