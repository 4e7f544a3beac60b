"""Changes that reach a case by a way that its own file does not show: none is proved unchanged by its code."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from perfci.worker.bench import Bench
from tests.e2e.conftest import Repo, adding

from .test_proof import CODE, LIMIT, UNDRAWN, compared, kernel, planned, proofs, proving  # noqa: F401  # a fixture

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")]
SPIN = "for i in range({}): pass"


def reading(how: str, before: str = "", after: str = "") -> str:
    """Return a kernel that works as long as `slow.py` says where `how` holds."""
    loop = "import slow\nfor i in range(slow.N): pass"
    body = "\n".join(f"    {line}" for line in loop.splitlines())
    return kernel(f"import os\n{before}", f"{after}\nif {how}:\n{body}\nfor i in range(20_000): pass")


def slow(n: int) -> dict[str, str]:
    return {"slow.py": f"N = {n}\n"}


FAST, SLOW = slow(1), slow(40_000)
DRAWN = Bench("cpu", int(UNDRAWN), 0).random.randrange(2**20)
"""What is drawn where a case is checked."""
B = adding().replace("def adding", "def b")
Files = Mapping[str, str]
CHANGES: dict[str, tuple[Files, Files, str]] = {
    "on one core only": (
        {"kernels/a.py": reading("len(os.sched_getaffinity(0)) == 1"), **FAST},
        SLOW,
        "it reads tree/slow.py, which differs",
    ),
    "after 20 calls": (
        {"kernels/a.py": reading("len(calls) > 20", "calls = []", "calls.append(1)"), **FAST},
        SLOW,
        "it reads tree/slow.py, which differs",
    ),
    "late in one placement": (
        {
            "kernels/a.py": dedent("""
                import perfci

                class Work:
                    calls = 0
                    def __call__(self):
                        self.calls += 1
                        if self.calls > 26:
                            import slow
                            for i in range(slow.N): pass
                        for i in range(40_000): pass

                @perfci.kernel(devices=["cpu"])
                def a(bench):
                    work = Work()
                    return lambda: work()
                """),
            **FAST,
        },
        SLOW,
        "it reads tree/slow.py, which differs",
    ),
    "for other draws": (
        {
            "kernels/a.py": dedent(f"""
                import perfci

                def work(size):
                    if size != {DRAWN}:
                        import slow
                        for i in range(slow.N): pass
                    for i in range(20_000): pass

                @perfci.kernel(devices=["cpu"])
                def a(bench):
                    size = bench.random.randrange(2**20)
                    return lambda: work(size)
                """),
            **FAST,
        },
        SLOW,
        "it reads tree/slow.py, which differs",
    ),
    "another suite file sets a variable": (
        {"kernels/a.py": reading("'FAST' in os.environ"), **SLOW, "kernels/b.py": B},
        {"kernels/b.py": "import os\nos.environ['FAST'] = '1'\n" + B},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file sets what a module holds": (
        {
            "kernels/a.py": kernel("import deep", "for i in range(deep.config['sizes'].n): pass"),
            "deep.py": "class Sizes: n = 20_000\nconfig = {'sizes': Sizes()}\n",
            "kernels/b.py": B,
        },
        {"kernels/b.py": "import deep\ndeep.config['sizes'].n = 40_000\n" + B},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file sets a flag that another flag is like": (
        {
            "kernels/a.py": kernel("import deep", "for i in range(40_000 if deep.EXACT else 20_000): pass"),
            "deep.py": "EXACT = False\nOTHER = True\nMORE = False\n",
            "kernels/b.py": B,
        },
        {"kernels/b.py": "import deep\ndeep.EXACT = True\n" + B},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file stands in for a module": (
        {
            "kernels/a.py": kernel("", "import deep\nfor i in range(deep.N): pass"),
            "deep.py": "N = 20_000\n",
            "kernels/b.py": B,
        },
        {"kernels/b.py": "import sys, types\nsys.modules['deep'] = types.SimpleNamespace(N=40_000)\n" + B},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file sets what a case imports late": (
        {
            "kernels/z.py": kernel("", "import deep\nfor i in range(deep.FLAGS['n']): pass"),
            "deep.py": "FLAGS = {'n': 20_000}\n",
            "kernels/b.py": B,
        },
        {"kernels/b.py": "import deep\ndeep.FLAGS['n'] = 40_000\n" + B},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file asks first": (
        {
            "kernels/a.py": kernel("import deep", "for i in range(deep.size()): pass"),
            "deep.py": "found = []\ndef size(n=20_000):\n    found.append(n)\n    return found[0]\n",
            "kernels/b.py": "import deep\n" + B,
        },
        {"kernels/b.py": "import deep\ndeep.size(40_000)\n" + B},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file imports first": (
        {
            "kernels/z.py": kernel("import one, two, deep", "for i in range(deep.found[0]): pass"),
            "deep.py": "found = []\n",
            "one.py": "import deep\ndeep.found.append(20_000)\n",
            "two.py": "import deep\ndeep.found.append(40_000)\n",
            "kernels/b.py": B,
        },
        {"kernels/b.py": "import two\n" + B},
        "tree/two.py:2 does more than define as it is imported",
    ),
    "another suite file sets what sends a case elsewhere": (
        {
            "kernels/a.py": kernel("import deep", "n = int(open('n.txt').read()) if deep.found else 1\nfor i in range(n): pass"),
            "deep.py": "found = []\n",
            "n.txt": "20000",
            "kernels/b.py": "import deep\ndeep.found.append(1)\n" + B,
        },
        {"kernels/b.py": "import deep\ndeep.found.append(1)\nN = 2\n" + B, "n.txt": "40000"},
        "tree/kernels/b.py:2 does more than define as it is imported",
    ),
    "another suite file's constant stands elsewhere": (
        {
            "kernels/a.py": kernel("import deep", "for i in range(deep.FLAGS['n']): pass"),
            "deep.py": "FLAGS = {'n': 0}\n",
            "kernels/b.py": "import deep\nN = 20_000\nif deep.FLAGS['n']:\n    N = 40_000\ndeep.FLAGS['n'] = N\n" + B,
        },
        {"kernels/b.py": "import deep\nN = 20_000\nif deep.FLAGS['n']:\n    pass\nN = 40_000\ndeep.FLAGS['n'] = N\n" + B},
        "tree/kernels/b.py:3 does more than define as it is imported",
    ),
    "another suite file reads what differs": (
        {
            "kernels/a.py": reading("'WHICH' in os.environ"),
            **FAST,
            "kernels/b.py": "import os\nif open('which').read(): os.environ['WHICH'] = '1'\n" + B,
            "which": "",
        },
        {"which": "1"},
        "the suite imports kernels/b.py: it reads tree/which, which differs",
    ),
    "another suite file that is the same sets a variable": (
        {"kernels/a.py": reading("'WHICH' in os.environ"), **FAST, "kernels/b.py": "import os\nos.environ['WHICH'] = '1'\n" + B},
        SLOW,
        "it reads tree/slow.py, which differs",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES)
def test_a_change_that_reaches_a_case_is_measured(proving: Repo, how: str) -> None:  # noqa: F811
    before, after, why = CHANGES[how]
    for name, text in before.items():
        proving.write(name, text)
    proving.commit()
    proving.write("README.md", "More.")
    assert planned(proving)["a"] == ("code", CODE)
    for name, text in after.items():
        proving.write(name, text)
    assert planned(proving)["a"] == ("", why)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["on one core only", "after 20 calls", "for other draws"])
def test_the_slow_down_that_was_proved_to_be_none_is_found(proving: Repo, how: str) -> None:  # noqa: F811
    before, after, _ = CHANGES[how]
    for name, text in before.items():
        proving.write(name, text)
    proving.commit()
    for name, text in after.items():
        proving.write(name, text)
    run = compared(proving, "a")
    assert run.code == 1 and run.classes()["a"] == "regression", run.out


@pytest.mark.slow
def test_a_suite_file_that_changes_nothing_for_others_is_left_out(proving: Repo) -> None:  # noqa: F811
    proving.write("kernels/a.py", kernel("import logging\nlog = logging.getLogger('a')", "log.debug('x')"))
    proving.commit()
    more = (
        "import dataclasses, logging, re, xml.dom\nlog = logging.getLogger(__name__)\npattern = re.compile('[a-z]+')\n"
    )
    proving.write("kernels/b.py", f"{more}@dataclasses.dataclass\nclass Shape:\n    n: int = 1\n{B}")
    proving.write("kernels/c.py", adding().replace("def adding", "def c"))
    assert planned(proving) == {
        "a": ("code", CODE), "b": ("", "it reads tree/kernels/b.py, which differs"), "c": ("", ""),
    }  # fmt: skip


@pytest.mark.slow
def test_a_wrong_result_at_a_fuzzed_shape_is_found(proving: Repo) -> None:  # noqa: F811
    """`many.py` is for odd sizes alone, of which none is timed."""
    proving.write(
        "kernels/a.py",
        """
        import perfci

        def total(n):
            if n % 2:
                import many
                return many.total(n)
            return float(sum(range(n)))

        @perfci.kernel(params={"n": [20_000]}, fuzz={"n": [7]}, devices=["cpu"])
        def a(bench, n):
            bench.reference(lambda: n * (n - 1) / 2)
            return lambda: total(n)
        """,
    )
    proving.write("many.py", "def total(n): return float(sum(range(n)))\n")
    proving.commit()
    proving.write("README.md", "More.")
    assert planned(proving)["a/n=20000"] == ("code", CODE)
    proving.write("many.py", "def total(n): return 0.5\n")
    run = compared(proving)
    assert proofs(run)["a"] == ("", "it reads tree/many.py, which differs")
    assert run.code == 1 and run.classes()["a/n=20000"] == "failed", run.out


OUTSIDE = {
    "its build wrote it": (
        "build: sh build.sh\n",
        {"build.sh": 'printf {n} > "{size}"\n'},
        kernel("import pathlib\nn = int(pathlib.Path('{size}').read_text())", "for i in range(n): pass"),
    ),
    "its import wrote it": (
        "",
        {"size.txt": "{n}"},
        kernel(
            "import pathlib\nkept = pathlib.Path('{size}')\n"
            "if not kept.exists():\n    kept.write_text(pathlib.Path('size.txt').read_text())\nn = int(kept.read_text())",
            "for i in range(n): pass",
        ),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", OUTSIDE)
def test_what_was_written_outside_since_the_run_began_counts_as_differing(proving: Repo, how: str) -> None:  # noqa: F811
    policy, files, text = OUTSIDE[how]
    proving.policy(LIMIT + policy)
    size = Path(proving.env["TMPDIR"], "size")
    proving.write("kernels/a.py", text.replace("{size}", str(size)))
    for name, content in files.items():
        proving.write(name, content.format(n=20_000, size=size))
    proving.commit()
    for name, content in files.items():
        proving.write(name, content.format(n=40_000, size=size))
    why = ("", f"the suite imports kernels/a.py: it reads {size.resolve()}, which was written since this run began")
    assert planned(proving) == {"a": why, "b": why}
    if not policy:  # it was there before, and both sides read it
        assert planned(proving)["a"] == ("code", CODE)


BUILDS = {
    "another mode": (
        "echo x > made; chmod {}", ("644 made", "600 made"),
        kernel("import os", "for i in range(20_000 if os.stat('made').st_mode & 0o77 else 40_000): pass"),
        "it reads tree/made, which differs",
    ),
    "a pipe": (
        "{}", ("true", "mkfifo made"),
        kernel("import os", "for i in range(40_000 if os.path.exists('made') else 20_000): pass"),
        "it reads tree/made, which differs",
    ),
    "a temporary file": (
        "{}", ("true", 'touch "$TMPDIR/made"'),
        kernel("import os", "for i in range(20_000): pass\nassert not os.path.exists(os.environ['TMPDIR'] + '/made')"),
        "",
    ),
    "bytecode of another source": (
        "cp {} impl.py; touch -d @1000000000 impl.py; {python} -m compileall -q impl.py; "
        "cp fast.py impl.py; touch -d @1000000000 impl.py",
        ("fast.py", "slow.py"),
        kernel("import impl", "for i in range(20_000): pass\nassert impl.N == 1"),
        "",
    ),
}  # fmt: skip
"""What a build leaves → how it is built, on which two ways, the kernel, and what differs; empty where nothing is left of
it that a case could find."""


@pytest.mark.slow
@pytest.mark.parametrize("how", BUILDS)
def test_what_a_build_leaves_differs_or_is_gone(proving: Repo, how: str) -> None:  # noqa: F811
    build, ways, text, why = BUILDS[how]
    proving.policy(LIMIT + "build: sh build.sh\n")
    proving.write("kernels/a.py", text)
    proving.write("fast.py", "N = 1\n")
    proving.write("slow.py", "N = 2\n")
    build = build.replace("{python}", sys.executable)
    proving.write("build.sh", build.format(ways[0]))
    proving.commit()
    proving.write("build.sh", build.format(ways[1]))
    assert planned(proving)["a"] == (("", why) if why else ("code", CODE))
    run = compared(proving, "a", "--measure-all", "--budget", "10s")
    assert run.classes()["a"] != "failed", run.out
