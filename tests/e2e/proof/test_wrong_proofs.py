"""Changes that reach a case by a way that its own file does not show: none is proved unchanged by its code."""

import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from perfci.model.text import chosen
from perfci.worker.bench import Bench
from tests.e2e.conftest import Repo, adding

from .test_proof import CODE, LIMIT, UNDRAWN, compared, kernel, planned, proofs, proving  # noqa: F401  # a fixture

pytestmark = [pytest.mark.tools, pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")]


def reading(how: str, before: str = "", after: str = "", name: str = "a") -> str:
    """Return a kernel that works as long as `slow.py` says where `how` holds."""
    loop = "import slow\nfor i in range(slow.N): pass"
    body = "\n".join(f"    {line}" for line in loop.splitlines())
    return kernel(f"import os\n{before}", f"{after}\nif {how}:\n{body}\nfor i in range(20_000): pass", name)


def slow(n: int) -> dict[str, str]:
    return {"slow.py": f"N = {n}\n"}


FAST, SLOW = slow(1), slow(40_000)
DRAWN = Bench("cpu", int(UNDRAWN), 0).random.randrange(2**20)
"""What is drawn where a case is checked."""
B = adding(name="b")
Files = Mapping[str, str]
SELDOM = {
    "on_one_core_only": reading("len(os.sched_getaffinity(0)) == 1", name="on_one_core_only"),
    "after_20_calls": reading("len(calls) > 20", "calls = []", "calls.append(1)", "after_20_calls"),
    "late_in_one_placement": """
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
        def late_in_one_placement(bench):
            work = Work()
            return lambda: work()
        """,
    "for_other_draws": f"""
        import perfci

        def work(size):
            if size != {DRAWN}:
                import slow
                for i in range(slow.N): pass
            for i in range(20_000): pass

        @perfci.kernel(devices=["cpu"])
        def for_other_draws(bench):
            size = bench.random.randrange(2**20)
            return lambda: work(size)
        """,
}
"""Cases that read `slow.py`, but not wherever they are called."""


@pytest.mark.slow
def test_a_file_that_a_case_seldom_reads_is_known_and_its_slow_down_is_found(proving: Repo) -> None:  # noqa: F811
    for name, text in ({f"kernels/{name}.py": text for name, text in SELDOM.items()} | FAST).items():
        proving.write(name, text)
    proving.commit()
    proving.write("slow.py", SLOW["slow.py"])
    run = compared(proving, *chosen(SELDOM))
    assert proofs(run) == dict.fromkeys(SELDOM, ("", "it reads tree/slow.py, which differs"))
    # Beside other work pairs drift: one is then inconclusive, and fails the run all the same.
    slower = {row["case"] for row in run.report["rows"] if row["effect"] == "fail" and row["head"] > 2 * row["base"]}
    assert run.code == 1 and slower >= SELDOM.keys() - {"late_in_one_placement"}, run.out


CHANGES: dict[str, tuple[Files, Files, str]] = {
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
    "another suite file sets what a case imports late": (
        {
            "kernels/z.py": kernel("", "import deep\nfor i in range(deep.FLAGS['n']): pass"),
            "deep.py": "FLAGS = {'n': 20_000}\n",
            "kernels/b.py": B,
        },
        {"kernels/b.py": "import deep\ndeep.FLAGS['n'] = 40_000\n" + B},
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
def test_a_change_that_reaches_a_case_by_another_file_is_measured(proving: Repo, how: str) -> None:  # noqa: F811
    before, after, why = CHANGES[how]
    for files in (before, after):
        for name, text in files.items():
            proving.write(name, text)
        if files is before:
            proving.commit()
    assert planned(proving, *chosen(["a"])) == {"a": ("", why)}


@pytest.mark.slow
def test_a_suite_file_that_changes_nothing_for_others_is_left_out(proving: Repo) -> None:  # noqa: F811
    proving.write("kernels/a.py", kernel("import logging\nlog = logging.getLogger('a')", "log.debug('x')"))
    proving.commit()
    more = (
        "import dataclasses, logging, re, xml.dom\nlog = logging.getLogger(__name__)\npattern = re.compile('[a-z]+')\n"
    )
    proving.write("kernels/b.py", f"{more}@dataclasses.dataclass\nclass Shape:\n    n: int = 1\n{B}")
    proving.write("kernels/c.py", adding(name="c"))
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


BUILT = {
    "another_mode": (
        kernel(
            "import os", "for i in range(20_000 if os.stat('moded').st_mode & 0o77 else 40_000): pass", "another_mode"
        ),
        "it reads tree/moded, which differs",
    ),
    "a_pipe": (
        kernel("import os", "for i in range(40_000 if os.path.exists('pipe') else 20_000): pass", "a_pipe"),
        "it reads tree/pipe, which differs",
    ),
    "a_temporary_file": (
        kernel(
            "import os",
            "for i in range(20_000): pass\nassert not os.path.exists(os.environ['TMPDIR'] + '/made')",
            "a_temporary_file",
        ),
        "",
    ),
    "other_bytecode": (kernel("import impl", "for i in range(20_000): pass\nassert impl.N == 1", "other_bytecode"), ""),
}
"""What a build leaves → a kernel, and what differs; empty where nothing is left of it that a case could find."""
BUILD = """
echo x > moded; chmod {mode} moded
{pipe}
{temporary}
cp {source}.py impl.py; touch -d @1000000000 impl.py; {python} -m compileall -q impl.py
cp fast.py impl.py; touch -d @1000000000 impl.py
"""


@pytest.mark.slow
def test_what_a_build_leaves_differs_or_is_gone(proving: Repo) -> None:  # noqa: F811
    build = partial(BUILD.format, python=sys.executable)
    proving.policy(LIMIT + "build: sh build.sh\n")
    for name, (text, _) in BUILT.items():
        proving.write(f"kernels/{name}.py", text)
    proving.write("fast.py", "N = 1\n")
    proving.write("slow.py", "N = 2\n")
    proving.write("build.sh", build(mode="644", pipe="", temporary="", source="fast"))
    proving.commit()
    proving.write("build.sh", build(mode="600", pipe="mkfifo pipe", temporary='touch "$TMPDIR/made"', source="slow"))
    told = planned(proving, *chosen(BUILT))
    assert told == {name: ("", why) if why else ("code", CODE) for name, (_, why) in BUILT.items()}
    run = compared(proving, *chosen(BUILT), "--measure-all", "--budget", "20s")
    assert "failed" not in run.classes().values(), run.out
