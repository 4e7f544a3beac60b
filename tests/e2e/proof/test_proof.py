"""Cases that need not be measured since nothing that they read differs; and every way in which something does."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from perfci.measure.request import MEASURE_ALL
from perfci.model.text import chosen
from tests.e2e.conftest import SYSTEM_PYTHON, Repo, Run, adding, as_root, two_users  # noqa: F401  # a fixture

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")]
UNDRAWN, DRAWN = "2", "1"
"""Seeds of runs without and with an audit."""
LIMIT = 'limits:\n  - {cases: "*", metric: time, regression: 50%}\n'
CODE = "no file that it reads differs between base and head"


@pytest.fixture
def proving(repo: Repo) -> Repo:
    """A repository of two kernels whose comparison may prove; `b` never reads more than its own file."""
    repo.env[MEASURE_ALL] = "0"
    repo.policy(LIMIT)
    repo.write("kernels/a.py", adding())
    repo.write("kernels/b.py", adding(name="b"))
    return repo


def kernel(before: str, body: str, name: str = "a") -> str:
    lines = [dedent(before).strip(), "def work():", *(f"    {line}" for line in dedent(body).strip().splitlines())]
    declared = f"import perfci\n\n@perfci.kernel(devices=['cpu'])\ndef {name}(bench):\n    return work\n"
    return "\n".join([*lines, "", declared])


def compared(repo: Repo, *args: str, seed: str = UNDRAWN) -> Run:
    return repo.perfci(f"PERFCI_SEED={seed}", "compare", "--base", "HEAD", "--budget", "5m", *args)


def planned(repo: Repo, *args: str) -> dict[str, tuple[str, str]]:
    """What a comparison would prove: nothing is measured."""
    out = repo.root / "perfci-out/plan.json"
    out.parent.mkdir(exist_ok=True)
    run = repo.perfci(f"PERFCI_SEED={UNDRAWN}", "plan", "--base", "HEAD", "--shards", "1", "--out", str(out), *args)
    assert run.code == 0, run.err
    found = {case["key"].partition("@")[0]: case["proof"] for case in json.loads(out.read_text())["cases"]}
    return {name: (proof["by"], proof["reason"]) if proof else ("", "") for name, proof in found.items()}


def proofs(run: Run) -> dict[str, tuple[str, str]]:
    assert run.out, run.err
    return {case["kernel"]: (case["proof"]["by"], case["proof"]["reason"]) for case in run.results["cases"]}


def test_a_change_to_documents_and_tests_is_proved_without_a_check(proving: Repo) -> None:
    proving.write("docs/why.md", "One way.")
    proving.commit()
    proving.write("docs/why.md", "Another way.")
    proving.write("tests/test_more.py", "def test_more(): pass")
    run = compared(proving)
    assert run.code == 0, run.err
    assert proofs(run) == {"adding": ("code", CODE), "b": ("code", CODE)}
    assert run.report["sentence"] == "No regression: 2 cases unchanged (all proved)"
    assert "2 of 2 cases proved unchanged, and not measured: they read no file that differs" in run.out
    for case in run.results["cases"]:
        assert not case["pairs"] and not any(side["check"]["shapes"] for side in case["sides"].values())
    assert run.results["plan"]["m"] == 1 and run.results["costs"]["prove"] > 0


@pytest.mark.slow
def test_an_interrupt_while_proving_leaves_nothing_to_resume(proving: Repo) -> None:
    """The journal of the run before is of other proofs, and its pairs are that run's."""
    proving.commit()
    proving.write("kernels/a.py", adding(spin=20_000))
    assert (done := compared(proving)).results["cases"], done.err
    process = proving.start("compare", "--base", "HEAD")
    assert process.stderr is not None and any("proving" in line for line in process.stderr)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 3
    resumed = proving.perfci("compare", "--resume")
    assert (resumed.code, "journal.jsonl: nothing to resume" in resumed.err) == (2, True), resumed.err
    assert (proving.root / "perfci-out/journal.previous.jsonl").exists()


def test_an_unchanged_tree_is_proved_without_a_process(proving: Repo, tmp_path: Path) -> None:
    proving.commit()
    _without_strace(proving, tmp_path)
    run = compared(proving)
    assert run.code == 0
    assert proofs(run) == dict.fromkeys(("adding", "b"), ("files", "base and head are the same files"))


@pytest.mark.slow
def test_a_kernel_that_changed_is_measured_and_shares_alpha_with_none_that_did_not(proving: Repo) -> None:
    proving.commit()
    proving.write("kernels/a.py", adding(spin=20_000))
    run = compared(proving, "--budget", "1m")
    assert proofs(run) == {"adding": ("", "it reads tree/kernels/a.py, which differs"), "b": ("code", CODE)}
    assert run.code == 1 and run.classes() == {"adding": "regression", "b": "unchanged"}
    assert run.results["plan"]["m"] == 1


def _without_strace(repo: Repo, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("git", "sh"):
        (programs / name).symlink_to(shutil.which(name))
    repo.env["PATH"] = str(programs)


WITHOUT = "strace is not installed here: apt-get install strace"
DETACHED = "the process that was traced failed: strace is not attached: ptrace: not again (log: logs/prove-base.log)"


def _not_attached(repo: Repo, tmp_path: Path) -> None:
    """It can be attached when that is tried, and then no more."""
    count, real = tmp_path / "count", shutil.which("strace")
    fake = tmp_path / "bin/strace"
    fake.parent.mkdir()
    fake.write_text(
        f"#!/bin/sh\ncase $1 in --version) exec {real} $1;; esac\n"
        f'[ -e {count} ] || {{ : > {count}; exec {real} "$@"; }}\necho "ptrace: not again" >&2; exit 1\n'
    )
    fake.chmod(0o755)
    repo.env["PATH"] = f"{fake.parent}:{repo.env['PATH']}"


@pytest.mark.parametrize(("broken", "why"), [(_without_strace, WITHOUT), (_not_attached, DETACHED)])
def test_what_strace_does_not_trace_is_not_proved(
    proving: Repo, tmp_path: Path, broken: Callable[[Repo, Path], None], why: str
) -> None:
    proving.commit()
    proving.write("README.md", "More.")
    broken(proving, tmp_path)
    assert planned(proving) == dict.fromkeys(("adding", "b"), ("", why))


@pytest.mark.slow
def test_without_strace_all_is_measured(proving: Repo, tmp_path: Path) -> None:
    proving.commit()
    proving.write("README.md", "More.")
    _without_strace(proving, tmp_path)
    run = compared(proving, "--quick", "--budget", "5m")
    assert proofs(run) == dict.fromkeys(("adding", "b"), ("", WITHOUT))
    assert f"note: nothing was proved unchanged by its code: {WITHOUT}" in run.out
    assert all(case["pairs"] for case in run.results["cases"])


READS: dict[str, tuple[str, str, str]] = {
    "c_opens_it": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.fopen.restype = ctypes.c_void_p",
        "opened = libc.fopen(b'c.txt', b'r')\nassert opened\nlibc.fclose(ctypes.c_void_p(opened))",
        "tree/c.txt",
    ),
    "asked_for_and_only_head_has_it": ("import os", "os.access('flag', os.R_OK)", "tree/flag"),
    "asked_for_and_only_base_has_it": ("import pathlib", "pathlib.Path('gone', 'flag').exists()", "tree/gone"),
    "its_size_is_asked_for_from_elsewhere": (
        "import os\nhere = os.getcwd()",
        "os.chdir('/')\nos.stat(here[1:] + '/./sub/../sized.txt')\nos.chdir(here)",
        "tree/sized.txt",
    ),
    "its_folder_is_listed": ("import os", "os.listdir('data')", "tree/data"),
    "a_link_leads_elsewhere": ("", "open('now/data.txt').close()", "tree/now"),
    "it_is_opened_in_an_open_folder": (
        "import os",
        "folder = os.open('sub', os.O_RDONLY)\nos.close(os.open('at.txt', 0, dir_fd=folder))\nos.close(folder)",
        "tree/sub/at.txt",
    ),
    "it_is_imported_late": ("", "import late", "tree/late.py"),
    "a_module_of_its_name_appears_before_it_on_the_path": ("", "import colorsys", "tree/src/colorsys.py"),
    "its_package_lists_its_modules": ("import pkg, pkgutil", "list(pkgutil.iter_modules(pkg.__path__))", "tree/pkg"),
    "a_module_is_looked_for_that_only_head_has": (
        "import pkg, importlib.util as u", "u.find_spec('pkg.more')", "tree/pkg/more.py",
    ),
    "it_is_imported_by_what_it_imports": ("import first", "pass", "tree/deep.py"),
    "a_child_reads_it": (
        "import subprocess",
        "subprocess.run(['sh', '-c', 'cd sub && cat child.txt'], check=True)",
        "tree/sub/child.txt",
    ),
}  # fmt: skip
"""Case → what stands before its work, its work, and the file that differs in `LATER`."""
BOTH = ["c.txt", "sized.txt", "sub/at.txt", "sub/child.txt", "late.py", "deep.py"]
FIRST = dict.fromkeys([*BOTH, "gone/flag", "data/one", "v1/data.txt", "v2/data.txt"], "x = 1")
FIRST |= {"first.py": "from deep import x", "src/other.py": "", "pkg/__init__.py": ""}
LATER = dict.fromkeys([*BOTH, "flag", "data/two", "src/colorsys.py", "pkg/more.py"], "x = 20")


def read(repo: Repo, *names: str) -> None:
    """Commit these of `READS`, and all files that they read."""
    for name in names:
        before, body, _ = READS[name]
        repo.write(f"kernels/{name}.py", kernel(before, body, name))
    for name, text in FIRST.items():
        repo.write(name, text)
    (repo.root / "now").symlink_to("v1")
    repo.commit()


@pytest.mark.slow
@pytest.mark.parametrize("name", READS)
def test_what_a_case_reads_must_be_the_same(proving: Repo, name: str) -> None:
    read(proving, name)
    for path, text in LATER.items():
        proving.write(path, text)
    for path in ("gone/flag", "now"):
        (proving.root / path).unlink()
    (proving.root / "now").symlink_to("v2")
    assert planned(proving, *chosen([name])) == {name: ("", f"it reads {READS[name][2]}, which differs")}


@pytest.mark.slow
def test_what_is_read_and_is_the_same_is_proved(proving: Repo) -> None:
    read(proving, *READS)
    proving.write("README.md", "More.")
    assert planned(proving, *chosen(READS)) == dict.fromkeys(READS, ("code", CODE))


UNTOUCHED = {
    "a_module_more_beside_those_that_are_imported": ("import pkg", "import pkg.used"),
    # A compiler's entries hold paths.
    "what_cases_leave_in_a_cache": (
        "import os, pathlib\nkept = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'entry')\n"
        "kept.parent.mkdir(parents=True, exist_ok=True)",
        "kept.exists() or kept.write_text(os.getcwd())\nkept.read_text()",
    ),
    "files_of_its_own_that_are_gone_again": (
        "import multiprocessing, os, pathlib, tempfile",
        """
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x")
            path.write_text("1")
            path.rename(path.with_name("y")).read_text()
        with tempfile.TemporaryFile() as file:
            file.write(b"1")
        multiprocessing.Semaphore().release()
        pathlib.Path(os.environ["XDG_CACHE_HOME"]).mkdir(parents=True, exist_ok=True)
        pathlib.Path(os.environ["XDG_CACHE_HOME"], "kept").write_text("1")
        """,
    ),
}
"""Case → what stands before its work, and its work, which nothing that differs touches."""


@pytest.mark.slow
def test_what_does_not_tell_the_sides_apart(proving: Repo) -> None:
    for name, (before, body) in UNTOUCHED.items():
        proving.write(f"kernels/{name}.py", kernel(before, body, name))
    proving.write("pkg/__init__.py", "")
    proving.write("pkg/used.py", "")
    proving.commit()
    proving.write("pkg/more.py", "")
    proving.write("more.py", "")
    assert planned(proving) == dict.fromkeys([*UNTOUCHED, "adding", "b"], ("code", CODE))


@pytest.mark.slow
def test_a_library_that_was_built_otherwise_differs(proving: Repo) -> None:
    proving.policy(LIMIT + "build: sh build.sh\n")
    proving.write("value.c", "int value(int n) { int s = 0; for (int i = 0; i < n; i++) s += i & 3; return s; }")
    proving.write("build.sh", 'gcc -O0 -shared -o "$PERFCI_SITE/value.so" value.c')
    proving.write(
        "kernels/a.py",
        kernel("import ctypes, os\nlibrary = ctypes.CDLL(os.environ['PERFCI_SITE'] + '/value.so')", "library.value(9)"),
    )
    proving.commit()
    proving.write("build.sh", 'gcc -O2 -shared -o "$PERFCI_SITE/value.so" value.c')
    why = ("", "the suite imports kernels/a.py: it reads site/value.so, which differs")  # and may do anything to others
    assert planned(proving) == {"a": why, "b": why}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more, key",
    [("env: {A_SWITCH: '2'}\n", "env"), ("build: 'true'\n", "build"), ("path: [kernels]\n", "path")],
)
def test_what_a_side_takes_from_its_own_policy_must_be_the_same(proving: Repo, more: str, key: str) -> None:
    proving.commit()
    proving.policy(LIMIT + more)
    why = f"the policies of base and head differ in {key}"
    assert planned(proving) == {"adding": ("", why), "b": ("", why)}


ESCAPES = {
    "it speaks to another process through a socket": kernel(
        "import socket\none = socket.socket(socket.AF_UNIX)",
        "if one.fileno() >= 0:\n    one.connect({address!r})\n    one.close()",
    ),
    "and left it there": kernel("import os", "open({shared!r} + '-too', 'w').close()"),
    "which others may read": kernel("import os", "open({shared!r}, 'a').close()"),
    "its processes did not end": kernel(
        "import subprocess\nleft = []",
        "if not left:\n    left.append(subprocess.Popen(['sleep', '600'], start_new_session=True))",
    ),
    "it names files of the other side": kernel(
        "import os", "os.path.exists(os.getcwd().replace('/base/', '/nowhere/').replace('/head/', '/base/') + '/x')"
    ),
    "failed": kernel("import os", "raise ValueError if os.environ.get('NOT') else os._exit(1)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("why", ESCAPES)
def test_what_strace_cannot_vouch_for_is_measured(
    proving: Repo, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # whose path may be longer than that of a socket may be
    shared = tmp_path / "shared"
    shared.write_text("")
    address = f"/proc/{os.getpid()}/cwd/s"
    text = ESCAPES[why].replace("{address!r}", repr(address)).replace("{shared!r}", repr(str(shared)))
    proving.write("kernels/a.py", text)
    proving.commit()
    proving.write("README.md", "More.")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        listening.listen()
        ((by, reason),) = planned(proving, *chosen(["a"])).values()
    assert by == "" and why in reason


@pytest.mark.slow
def test_a_case_that_is_proved_is_audited_in_some_runs(proving: Repo) -> None:
    proving.commit()
    run = compared(proving, "--budget", "1m", seed=DRAWN)
    audited = [case for case in run.results["cases"] if case["proof"]["audited"]]
    assert len(audited) == 1 and audited[0]["pairs"] and audited[0]["sides"]["head"]["check"]["shapes"]
    assert "was proved unchanged and measured all the same, to audit the proofs" in run.out
    assert run.results["plan"]["m"] == 1
    again = compared(proving, "--budget", "1m", "--resume", seed=DRAWN)
    assert [case["proof"] for case in again.results["cases"]] == [case["proof"] for case in run.results["cases"]]


@pytest.mark.slow
def test_some_cases_are_measured_whatever_their_code_is(proving: Repo) -> None:
    proving.policy(
        'commands: [{name: c, run: "true"}]\nlimits:\n  - {cases: [adding, c], metric: time, regression: 50%}\n'
        "  - {cases: adding, metric: time, max: 1s}\n"
    )
    proving.commit()
    assert planned(proving) == {
        "adding": ("files", "base and head are the same files"),
        "b": ("", "no limit asks anything of it"),
        "c": ("", "it is a command's, and only cases of kernels are proved"),
    }


@pytest.mark.slow
def test_a_limit_that_asks_for_a_number_has_head_measured_alone(proving: Repo) -> None:
    proving.policy(f"{LIMIT}  - {{cases: adding, metric: time, max: 1s}}\n")
    proving.commit()
    proving.write("README.md", "More.")
    run = compared(proving, "--budget", "1m")
    assert run.code == 0, run.err
    assert proofs(run) == {"adding": ("code", CODE), "b": ("code", CODE)}
    a, b = run.results["cases"]
    assert a["proof"]["number"] == "time max 1.00 s" and not b["proof"]["number"] and not b["pairs"]
    assert [set(pair["values"]) for pair in a["pairs"]] == [{"head"}] * 4
    assert not a["sides"]["base"]["check"]["shapes"] and a["sides"]["head"]["check"]["shapes"]
    assert "proved unchanged, and not measured but for 1 number of head" in run.out
    again = compared(proving, "--budget", "1m", "--resume")
    assert again.code == 0 and [case["proof"] for case in again.results["cases"]] == [a["proof"], b["proof"]]


@pytest.mark.slow
def test_proofs_can_be_switched_off(proving: Repo) -> None:
    none = dict.fromkeys(("adding", "b"), ("", ""))
    proving.policy("prove: false\n" + LIMIT)
    proving.commit()
    assert planned(proving) == none
    proving.policy(LIMIT)
    proving.commit()
    assert planned(proving, "--measure-all") == none


@as_root
@pytest.mark.slow
def test_another_user_is_traced_too(two_users: Repo) -> None:  # noqa: F811
    two_users.env[MEASURE_ALL] = "0"
    two_users.policy(LIMIT, SYSTEM_PYTHON)
    two_users.write("kernels/a.py", adding())
    two_users.write("kernels/b.py", kernel("", "open('data.txt').close()").replace("def a(", "def b("))
    two_users.write("data.txt", "1")
    two_users.commit()
    two_users.write("data.txt", "2")
    assert planned(two_users) == {
        "adding": ("code", CODE), "b": ("", "it reads tree/data.txt, which differs"),
    }  # fmt: skip
