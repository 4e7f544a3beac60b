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
from tests.e2e.conftest import PLAIN_PYTHON, Repo, Run, adding, as_root, two_users  # noqa: F401  # a fixture

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")]
UNDRAWN, DRAWN = "2", "1"
"""Seeds of runs without and with an audit."""
LIMIT = 'limits:\n  - {cases: "*", metric: time, regression: 50%}\n'
CODE = "no file that it reads differs between base and head"
Change = Callable[[Repo], None]


@pytest.fixture
def proving(repo: Repo) -> Repo:
    """A repository of two kernels whose comparison may prove; `b` never reads more than its own file."""
    repo.env[MEASURE_ALL] = "0"
    repo.policy(LIMIT)
    repo.write("kernels/a.py", adding())
    repo.write("kernels/b.py", adding().replace("def adding", "def b"))
    return repo


def kernel(before: str, body: str) -> str:
    lines = [dedent(before).strip(), "def work():", *(f"    {line}" for line in dedent(body).strip().splitlines())]
    return (
        "\n".join(
            [*lines, "", "import perfci", "", "@perfci.kernel(devices=['cpu'])", "def a(bench):", "    return work"]
        )
        + "\n"
    )


def compared(repo: Repo, *args: str, seed: str = UNDRAWN) -> Run:
    return repo.perfci(f"PERFCI_SEED={seed}", "compare", "--base", "HEAD", "--budget", "5m", *args)


def planned(repo: Repo) -> dict[str, tuple[str, str]]:
    """What a comparison would prove: nothing is measured."""
    out = repo.root / "perfci-out/plan.json"
    out.parent.mkdir(exist_ok=True)
    run = repo.perfci(f"PERFCI_SEED={UNDRAWN}", "plan", "--base", "HEAD", "--shards", "1", "--out", str(out))
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
    proving.write("kernels/a.py", adding(spin=60_000))
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


def test_a_kernel_that_changed_is_measured_and_shares_alpha_with_none_that_did_not(proving: Repo) -> None:
    proving.commit()
    proving.write("kernels/a.py", adding(spin=60_000))
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


@pytest.mark.slow
def test_without_strace_all_is_measured(proving: Repo, tmp_path: Path) -> None:
    proving.commit()
    proving.write("README.md", "More.")
    _without_strace(proving, tmp_path)
    run = compared(proving)
    assert proofs(run) == dict.fromkeys(("adding", "b"), ("", WITHOUT))
    assert f"note: nothing was proved unchanged by its code: {WITHOUT}" in run.out


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
def test_what_strace_cannot_be_attached_to_is_measured(proving: Repo, tmp_path: Path) -> None:
    proving.commit()
    proving.write("README.md", "More.")
    _not_attached(proving, tmp_path)
    run = compared(proving, "--quick", "--budget", "5m")
    assert proofs(run) == dict.fromkeys(("adding", "b"), ("", DETACHED))
    assert all(case["pairs"] for case in run.results["cases"])


READS: dict[str, tuple[str, Change, Change, str]] = {
    "C opens it": (
        kernel(
            "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.fopen.restype = ctypes.c_void_p",
            "opened = libc.fopen(b'data.txt', b'r')\nassert opened\nlibc.fclose(ctypes.c_void_p(opened))",
        ),
        lambda repo: repo.write("data.txt", "1"),
        lambda repo: repo.write("data.txt", "2"),
        "tree/data.txt",
    ),
    "it is asked for, and only head has it": (
        kernel("import os", "os.access('flag', os.R_OK)"),
        lambda repo: None,
        lambda repo: repo.write("flag", ""),
        "tree/flag",
    ),
    "it is asked for, and only base has it": (
        kernel("import pathlib", "pathlib.Path('sub', 'flag').exists()"),
        lambda repo: repo.write("sub/flag", ""),
        lambda repo: (repo.root / "sub" / "flag").unlink(),
        "tree/sub",
    ),
    "its size is asked for from elsewhere": (
        kernel("import os\nhere = os.getcwd()", "os.chdir('/')\nos.stat(here[1:] + '/./sub/../data.txt')\nos.chdir(here)"),
        lambda repo: (repo.write("data.txt", "1"), repo.write("sub/one", "1")),
        lambda repo: repo.write("data.txt", "22"),
        "tree/data.txt",
    ),
    "its folder is listed": (
        kernel("import os", "os.listdir('data')"),
        lambda repo: repo.write("data/one", "1"),
        lambda repo: repo.write("data/two", "2"),
        "tree/data",
    ),
    "a link leads elsewhere": (
        kernel("", "open('now/data.txt').close()"),
        lambda repo: [repo.write(f"v{n}/data.txt", "1") for n in "12"] and (repo.root / "now").symlink_to("v1"),
        lambda repo: ((repo.root / "now").unlink(), (repo.root / "now").symlink_to("v2")),
        "tree/now",
    ),
    "it is opened in an open folder": (
        kernel("import os", "folder = os.open('sub', os.O_RDONLY)\nos.close(os.open('data.txt', 0, dir_fd=folder))\nos.close(folder)"),
        lambda repo: repo.write("sub/data.txt", "1"),
        lambda repo: repo.write("sub/data.txt", "2"),
        "tree/sub/data.txt",
    ),
    "it is imported late": (
        kernel("", "import late"),
        lambda repo: repo.write("late.py", "x = 1"),
        lambda repo: repo.write("late.py", "x = 2"),
        "tree/late.py",
    ),
    "a module of its name appears before it on the path": (
        kernel("", "import colorsys"),
        lambda repo: None,
        lambda repo: repo.write("src/colorsys.py", ""),
        "tree/src",
    ),
    "its package lists its modules": (
        kernel("import pkg, pkgutil", "list(pkgutil.iter_modules(pkg.__path__))"),
        lambda repo: repo.write("pkg/__init__.py", ""),
        lambda repo: repo.write("pkg/more.py", ""),
        "tree/pkg",
    ),
    "a module is looked for that only head has": (
        kernel("import pkg, importlib.util as u", "u.find_spec('pkg.more')"),
        lambda repo: repo.write("pkg/__init__.py", ""),
        lambda repo: repo.write("pkg/more.py", ""),
        "tree/pkg/more.py",
    ),
    "it is imported by what it imports": (
        kernel("import first", "pass"),
        lambda repo: (repo.write("first.py", "from deep import x"), repo.write("deep.py", "x = 1")),
        lambda repo: repo.write("deep.py", "x = 2"),
        "tree/deep.py",
    ),
    "a child reads it": (
        kernel("import subprocess", "subprocess.run(['sh', '-c', 'cd sub && cat data.txt'], check=True)"),
        lambda repo: repo.write("sub/data.txt", "1"),
        lambda repo: repo.write("sub/data.txt", "2"),
        "tree/sub/data.txt",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", READS)
def test_what_a_case_reads_must_be_the_same(proving: Repo, how: str) -> None:
    text, before, after, path = READS[how]
    proving.write("kernels/a.py", text)
    before(proving)
    proving.commit()
    proving.write("README.md", "More.")
    assert planned(proving) == {"a": ("code", CODE), "b": ("code", CODE)}
    after(proving)
    assert planned(proving) == {"a": ("", f"it reads {path}, which differs"), "b": ("code", CODE)}


def test_a_module_more_beside_those_that_are_imported_does_not_matter(proving: Repo) -> None:
    proving.write("kernels/a.py", kernel("import pkg", "import pkg.used"))
    proving.write("pkg/__init__.py", "")
    proving.write("pkg/used.py", "")
    proving.commit()
    proving.write("pkg/more.py", "")
    proving.write("more.py", "")
    assert planned(proving) == {"a": ("code", CODE), "b": ("code", CODE)}


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
    proving.write("README.md", "More.")
    assert planned(proving) == {"a": ("code", CODE), "b": ("code", CODE)}
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


@pytest.mark.slow
def test_what_cases_leave_in_a_cache_does_not_tell_the_sides_apart(proving: Repo) -> None:
    """A compiler's entries hold paths."""
    compiled = "kept.exists() or kept.write_text(os.getcwd())\nkept.read_text()"
    proving.write(
        "kernels/a.py",
        kernel(
            "import os, pathlib\nkept = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'entry')\n"
            "kept.parent.mkdir(parents=True, exist_ok=True)",
            compiled,
        ),
    )
    proving.commit()
    proving.write("README.md", "More.")
    assert planned(proving)["a"] == ("code", CODE)


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
    listening = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)  # whose path may be longer than that of a socket may be
    listening.bind("s")
    listening.listen()
    address = f"/proc/{os.getpid()}/cwd/s"
    shared = tmp_path / "shared"
    shared.write_text("")
    text = ESCAPES[why].replace("{address!r}", repr(address)).replace("{shared!r}", repr(str(shared)))
    proving.write("kernels/a.py", text)
    proving.commit()
    proving.write("README.md", "More.")
    found = planned(proving)
    assert found["a"][0] == "" and why in found["a"][1]
    assert found["b"] == ("code", CODE)
    listening.close()


@pytest.mark.slow
def test_files_of_its_own_that_are_gone_again_do_not_matter(proving: Repo) -> None:
    body = """
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x")
            path.write_text("1")
            path.rename(path.with_name("y")).read_text()
        with tempfile.TemporaryFile() as file:
            file.write(b"1")
        multiprocessing.Semaphore().release()
        pathlib.Path(os.environ["XDG_CACHE_HOME"]).mkdir(parents=True, exist_ok=True)
        pathlib.Path(os.environ["XDG_CACHE_HOME"], "kept").write_text("1")
    """
    proving.write("kernels/a.py", kernel("import multiprocessing, os, pathlib, tempfile", body))
    proving.commit()
    proving.write("README.md", "More.")
    assert planned(proving) == {"a": ("code", CODE), "b": ("code", CODE)}


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
    assert proofs(compared(proving)) == {
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
    proving.policy("prove: false\n" + LIMIT)
    proving.commit()
    assert not any("proof" in case and case["proof"] for case in compared(proving).results["cases"])
    proving.policy(LIMIT)
    proving.commit()
    assert not any(case["proof"] for case in compared(proving, "--measure-all").results["cases"])
    assert not any(case["proof"] for case in proving.perfci("run").results["cases"])


@as_root
@pytest.mark.slow
def test_another_user_is_traced_too(two_users: Repo) -> None:  # noqa: F811
    two_users.env[MEASURE_ALL] = "0"
    two_users.write(
        "perfci.yaml",
        f"version: 1\nsuite: [kernels/*.py]\npython: {shutil.which('python3', path='/usr/bin')}\ndevices: [cpu]\n{LIMIT}",
    )
    two_users.write("kernels/a.py", adding())
    two_users.write("kernels/b.py", kernel("", "open('data.txt').close()").replace("def a(", "def b("))
    two_users.write("data.txt", "1")
    two_users.commit()
    two_users.write("data.txt", "2")
    assert proofs(compared(two_users)) == {
        "adding": ("code", CODE), "b": ("", "it reads tree/data.txt, which differs"),
    }  # fmt: skip
