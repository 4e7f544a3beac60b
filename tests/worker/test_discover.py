"""Discovery: a broken file costs itself only, and code from elsewhere is never taken for the side's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfci.worker.discover import discover

KERNEL = """import perfci

@perfci.kernel()
def {name}(bench):
    return lambda: None
"""


@pytest.fixture
def tree(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / "tree" / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path / "tree")

    return write


def names(found):
    return [kernel.name for kernel in found["kernels"]]


def errors(found):
    return {entry["file"]: entry["error"] and entry["error"]["text"] for entry in found["files"]}


def test_files_come_in_the_order_of_patterns_each_once_and_sorted(tree):
    root = tree(k__b_py=KERNEL.format(name="b"), k__a_py=KERNEL.format(name="a"), k__deep__c_py=KERNEL.format(name="c"))
    found = discover(root, ["k/deep/*.py", "k/**/*.py"])
    assert names(found) == ["c", "a", "b"]
    assert errors(found) == {"k/deep/c.py": None, "k/a.py": None, "k/b.py": None}
    assert [(kernel.file, kernel.line) for kernel in found["kernels"]][1] == ("k/a.py", 3)


def test_two_files_of_one_stem_do_not_clash_and_know_their_own_place(tree):
    text = "import perfci, sys\nHERE = sys.modules[__name__]\n" + KERNEL.split("\n", 1)[1]
    root = tree(one__k_py=text.format(name="first"), two__k_py=text.format(name="second"))
    found = discover(root, ["*/k.py"])
    assert names(found) == ["first", "second"]
    for kernel, folder in zip(found["kernels"], ["one", "two"], strict=True):
        module = sys.modules[kernel.fn.__module__]
        assert module.HERE is module
        assert module.__file__ == str(Path(root).resolve() / folder / "k.py")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import perfci\n\ndef f(:\n", "SyntaxError: invalid syntax (k/bad.py:3)"),
        ("\n1/0\n", "ZeroDivisionError: division by zero (k/bad.py:2)"),
        ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found' (k/bad.py:1)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (k/bad.py:2)"),
        ("raise RuntimeError('two\\n  lines')\n", "RuntimeError: two lines (k/bad.py:1)"),
        ("def f():\n    raise KeyError\nf()\n", "KeyError (k/bad.py:2)"),
        ("import json\njson.loads('{')\n", "(k/bad.py:2)"),
        ("exec('1/0')\n", "ZeroDivisionError: division by zero (k/bad.py:1)"),
        (
            "import perfci\n@perfci.kernel(params={'m': [1]})\ndef f(bench):\n    pass\n",
            "TypeError: k/bad.py:2: f() has no parameter 'm': it takes none besides bench",
        ),
        (KERNEL.format(name="good"), "kernel 'good' is declared already in k/a.py:3: rename one of them"),
        (KERNEL.format(name="twin") * 2, "ValueError: k/bad.py:8: kernel 'twin' is declared already in line 3: rename"),
    ],
)
def test_a_file_that_cannot_be_imported_costs_its_own_kernels_only(tree, text, says):
    root = tree(k__a_py=KERNEL.format(name="good"), k__bad_py=text, k__z_py=KERNEL.format(name="last"))
    found = discover(root, ["k/*.py"])
    assert names(found) == ["good", "last"]
    error = next(entry["error"] for entry in found["files"] if entry["file"] == "k/bad.py")
    assert error["kind"] == "import"
    assert says in error["text"]
    assert "\n" not in error["text"]


def test_kernels_declared_before_an_error_are_lost_with_their_file(tree):
    """Half a file must not pass for the whole."""
    root = tree(k__a_py=KERNEL.format(name="early") + "1/0\n")
    before = set(sys.modules)
    assert names(discover(root, ["k/*.py"])) == []
    assert not [name for name in set(sys.modules) - before if name.startswith("perfci_suite_")]


def test_patterns_that_find_nothing_or_the_wrong_thing_are_errors(tree, tmp_path):
    root = tree(k__a_py=KERNEL.format(name="a"))
    Path(root, "k/notes.md").write_text("notes")
    (tmp_path / "outside.py").write_text(KERNEL.format(name="outside"))
    Path(root, "k/link.py").symlink_to(tmp_path / "outside.py")
    found = errors(discover(root, ["k/*", "perf/*.py", "../*.py", str(tmp_path / "*.py"), "k"]))
    assert found["k/a.py"] is None
    assert found["k/notes.md"] == "is no Python file: narrow the glob under suite"
    assert found["k/link.py"] == "is a link that leads out of the repository"
    assert found["perf/*.py"] == found["k"] == "matches no file"
    assert found["../*.py"] == "lies outside the repository: write a glob relative to its root"
    assert found[str(tmp_path / "*.py")] == found["../*.py"]


def test_a_suite_file_does_not_see_its_neighbours(tree):
    """The policy's `path` says what a file can import, not the place of the file."""
    root = tree(k__helpers_of_k_py="X = 1\n", k__a_py="import helpers_of_k\n")
    assert "ModuleNotFoundError" in errors(discover(root, ["k/a.py"]))["k/a.py"]


def test_kernels_of_an_imported_module_belong_to_the_file_that_imports_it(tree, monkeypatch):
    root = tree(lib_of_kernels_py=KERNEL.format(name="shared"), k__a_py="import lib_of_kernels\n")
    monkeypatch.syspath_prepend(root)
    (kernel,) = discover(root, ["k/a.py"])["kernels"]
    assert (kernel.name, kernel.file, kernel.line) == ("shared", "lib_of_kernels.py", 3)


def test_a_tree_behind_a_link_is_a_tree(tree, tmp_path):
    root = tree(k__a_py=KERNEL.format(name="a"), k__bad_py="1/0")
    (tmp_path / "link").symlink_to(root)
    found = discover(str(tmp_path / "link"), ["k/*.py"])
    assert [kernel.file for kernel in found["kernels"]] == ["k/a.py"]
    assert errors(found)["k/bad.py"] == "ZeroDivisionError: division by zero (k/bad.py:1)"


# ---------------------------------------------------------------- where modules came from

PROBE = """
import json, sys
root, site, forbidden, path, modules, cache = json.loads(sys.argv[1])
sys.path[:0] = path
for name in modules:
    __import__(name)
from perfci.worker.discover import foreign_modules, repo_modules
print(json.dumps([foreign_modules(root, site, forbidden, cache), repo_modules(root, site)]))
"""


class World:
    """A tree, its overlay, a checkout that must not be measured, and installed packages."""

    def __init__(self, folder):
        self.root, self.site, self.checkout, self.installed = (
            str(folder / name) for name in ("tree", "site", "checkout", "installed")
        )
        for path in (self.root, self.site, self.checkout, self.installed):
            Path(path).mkdir()

    def write(self, where, files):
        for file in files.split():
            path = Path(where, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def probe(self, path, modules, forbidden=None, cache=""):
        arguments = [self.root, self.site, [self.checkout] if forbidden is None else forbidden, path, modules, cache]
        out = subprocess.run(
            [sys.executable, "-c", PROBE, json.dumps(arguments)], check=True, capture_output=True, text=True
        ).stdout
        foreign, own = json.loads(out)
        return [name for name, _ in foreign], own


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_what_a_side_compiled_into_its_own_cache_is_its_own(world, tmp_path):
    world.write(str(tmp_path), "base/cache/triton/__launcher.py head/cache/__other.py")
    folders, forbidden = [f"{tmp_path}/base/cache/triton", f"{tmp_path}/head/cache"], [str(tmp_path)]
    foreign, _ = world.probe(folders, ["__launcher", "__other"], forbidden, f"{tmp_path}/base/cache")
    assert foreign == ["__other"]


def test_own_modules_of_tree_and_overlay_are_recorded_and_not_foreign(world):
    world.write(world.root, "src/mylib/__init__.py helpers.py spread/part.py")
    world.write(world.site, "built/__init__.py built/_c.py")
    foreign, own = world.probe(
        [world.site, world.root, f"{world.root}/src"],
        ["mylib", "helpers", "built._c", "spread.part", "numpy", "xml.dom", "email.message"],
    )
    assert foreign == []
    assert own == {
        "built": "site/built/__init__.py",
        "built._c": "site/built/_c.py",
        "helpers": "tree/helpers.py",
        "mylib": "tree/src/mylib/__init__.py",
        "spread": "tree/spread",
        "spread.part": "tree/spread/part.py",
    }


LIB = "mylib/__init__.py mylib/ops.py"
FOREIGN = {
    # Files of the tree, of the overlay and of what is installed; the path; what is imported; what of it is foreign.
    # Base and head would measure the installed copy of what the repository has, too.
    "src": ("src/mylib/__init__.py", "", LIB, "installed", "mylib.ops", "mylib mylib.ops"),
    "package": ("mylib/__init__.py", "", LIB, "installed", "mylib.ops", "mylib mylib.ops"),
    "file": ("mylib.py", "", LIB, "installed", "mylib.ops", "mylib mylib.ops"),
    "extension": ("mylib.abi3.so", "", LIB, "installed", "mylib.ops", "mylib mylib.ops"),
    "overlay": ("", "mylib/__init__.py", LIB, "installed", "mylib", "mylib"),
    "namespace elsewhere": ("ns/mine.py", "", "ns/theirs.py", "installed", "ns.theirs", "ns ns.theirs"),
    "namespace here, too": ("ns/mine.py", "", "ns/theirs.py", "root installed", "ns.mine", ""),
    "folders of scripts": (
        "packaging/build.py docs/conf.py",
        "",
        "packaging/__init__.py",
        "installed",
        "packaging",
        "",
    ),
    "scripts": ("setup.py conftest.py", "", "setup.py conftest.py", "installed", "setup conftest", ""),
    "the standard library's": (
        "json/__init__.py random.py src/platform/__init__.py",
        "",
        "",
        "",
        "json random platform",
        "",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_the_repository_has_and_came_from_elsewhere_is_foreign(world, name):
    root, site, installed, path, modules, foreign = FOREIGN[name]
    world.write(world.root, root)
    world.write(world.site, site)
    world.write(world.installed, installed)
    assert world.probe([getattr(world, one) for one in path.split()], modules.split(), [])[0] == foreign.split()


def test_links_are_followed_on_both_sides(world, tmp_path):
    world.write(world.checkout, "anything.py")
    world.write(world.root, "own.py")
    (tmp_path / "way_to_checkout").symlink_to(world.checkout)
    (tmp_path / "way_to_tree").symlink_to(world.root)
    path = [str(tmp_path / "way_to_checkout"), str(tmp_path / "way_to_tree")]
    foreign, own = world.probe(path, ["anything", "own"])
    assert foreign == ["anything"]
    assert own == {"own": "tree/own.py"}


def test_an_side_inside_the_checkout_is_not_foreign(tmp_path):
    (tmp_path / "checkout").mkdir()
    world = World(tmp_path / "checkout")
    world.write(world.root, "own.py")
    assert world.probe([world.root], ["own"], [str(tmp_path / "checkout")])[0] == []


def test_installed_packages_are_not_foreign_where_the_environment_lies_in_the_checkout(world):
    """`.venv` below the checkout is common; perfci itself may be installed from the checkout, too."""
    import numpy

    environment = str(Path(numpy.__file__).parents[4])
    repository = str(Path(__file__).parents[2])
    assert world.probe([], ["numpy", "xml.dom"], [environment, repository])[0] == []
