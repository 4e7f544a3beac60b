"""examples/benchmarks: what its README says of it."""

import re
import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from tests.e2e.conftest import Repo
from tests.e2e.scripts.test_shapes import TRITON

EXAMPLE = Path(__file__).parents[3] / "examples/benchmarks"
CASES = {
    "driver/provider=mine/n=256", "driver/provider=mine/n=1024", "loop/n=256/provider=mine", "loop/n=1024/provider=mine",
    "sweep/n=256/provider=mine", "sweep/n=1024/provider=mine", "test_norms/test=test_norm/shape=64x256/provider=mine",
    "test_norms/test=test_norm/shape=64x1024/provider=mine",
}  # fmt: skip


@pytest.fixture
def example(repo: Repo) -> Repo:
    shutil.copytree(EXAMPLE, repo.root, dirs_exist_ok=True)
    for name, text in TRITON.items():
        repo.write(name, dedent(text))
    repo.commit()
    return repo


def test_each_call_is_a_case(example: Repo) -> None:
    listed = example.perfci("list")
    assert {line.split("\t")[0] for line in listed.out.splitlines()} == CASES, listed.out + listed.err
    assert re.search(r"sweep/n=256/provider=mine\t.*benchmarks/sweep\.py:\d\d\n", listed.out)


@pytest.mark.slow
def test_what_is_wrong_is_found_in_every_shape(example: Repo) -> None:
    norms = (example.root / "norms.py").read_text()
    example.write("norms.py", norms.replace("return x * scale", "return x * scale * 1.001"))
    run = example.perfci("compare", "--base", "HEAD")
    assert run.classes() == dict.fromkeys(CASES, "failed"), run.out + run.err
