"""Documents and code say the same: inputs, messages, commands, names, links."""

import ast
import os
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
import typer
import yaml

from perfci.cli import app
from perfci.github.check import Conclusion
from perfci.github.event import _READERS
from perfci.model.metrics import CATALOGUE, OBSERVED
from perfci.model.publication import ACCEPT_LABEL, ACCEPT_LINE
from perfci.sources import environment
from perfci.sources.environment import is_secret
from perfci.worker.bench import Bench

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md"), *ROOT.glob("benchmarks/*/README.md")
]  # fmt: skip
GITHUB = ROOT / "docs" / "github.md"
PROFILING = ROOT / "docs" / "profiling.md"
TEMPLATE = yaml.safe_load((ROOT / "src/perfci/cli/templates/perf.yml").read_text())


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def table(action: str) -> str:
    """Names of inputs and outputs of an action, from its definition, where the rest stands; the metrics that profilers
    see, from their table."""
    if action == "metrics":
        return metrics()
    found = yaml.safe_load((ROOT / action).read_text())

    def named(kind: str) -> str:
        return f"{kind.capitalize()}: {', '.join(f'`{name}`' for name in found[kind])}."

    return f"{named('inputs')}\n\n{named('outputs')}\n"


def metrics() -> str:
    """The metrics that profilers see, by tier; the stalls as one."""
    rows: dict[str, list[str]] = {}
    for one in CATALOGUE.values():
        if one.tier in OBSERVED:
            name = "stall_…" if one.name.startswith("stall_") else one.name
            rows.setdefault(f"{one.tier}{': deep' if one.deep else ''}", []).append(f"`{name}`")
    rows["trace"].append("`range:NAME`")
    said = [f"| {tier} | {', '.join(dict.fromkeys(names))} |" for tier, names in sorted(rows.items())]
    return "\n".join(["| tier | metrics |", "|---|---|", *said, ""])


@pytest.mark.parametrize(
    ("action", "document"), [("action.yml", GITHUB), ("publish/action.yml", GITHUB), ("metrics", PROFILING)]
)
def test_the_tables_are_those_of_the_actions_and_of_the_metrics(action: str, document: Path) -> None:
    """PERFCI_UPDATE_GOLDEN=1 writes them anew."""
    begin, end = f"<!-- table: {action} -->\n", f"<!-- end: {action} -->"
    before, opened, rest = document.read_text().partition(begin)
    written, closed, after = rest.partition(end)
    assert opened and closed
    if os.environ.get("PERFCI_UPDATE_GOLDEN") == "1":
        written = table(action)
        document.write_text(f"{before}{opened}{written}{closed}{after}")
    assert written == table(action)


def test_relative_limits_are_for_the_metrics_that_are_exact() -> None:
    listed = re.search(r"what the same code repeats exactly:\s(.*?)\. All others", PROFILING.read_text(), re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == {name for name, one in CATALOGUE.items() if one.exact}


def said() -> list[str]:
    """Every text of the source, `…` for what is filled in."""
    texts = [(ROOT / "action/start").read_text().replace('" \\\n            "', "")]
    for file in (ROOT / "src/perfci").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_every_message_that_is_explained_is_one_that_is_printed() -> None:
    rows = GITHUB.read_text().partition("## When it does not work")[2].splitlines()
    messages = [re.match(r"\| `(.*?)` \|", row)[1] for row in rows if row.startswith("| `")]
    assert len(messages) > 9
    texts = said()
    # A placeholder at an end may stand for more than one.
    assert [m for m in messages if not any(m.strip("… ") in text for text in texts)] == []


def commands(path: Path) -> list[str]:
    """The command lines of perfci in blocks of code and of output."""
    lines, fence = [], ""
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence in ("```", "```sh"):
            lines.append(line)
        elif not fence and line.startswith("    "):
            lines.append(line[4:])
    found = [re.match(r"(?:\$ )?(perfci(?: \S.*)?)$", line.rstrip()) for line in lines]
    # What stands two spaces further is what the command is for.
    return [re.split(r"\s{2,}|\s+#", match[1])[0] for match in found if match]


TYPED = {path: found for path in DOCUMENTS if (found := commands(path))}
assert {"perfci init", "perfci compare main"} <= set(TYPED[ROOT / "README.md"]), "are found"


@pytest.mark.parametrize("path", TYPED, ids=name)
def test_every_command_can_be_typed(path: Path) -> None:
    known = typer.main.get_command(app).commands
    for line in TYPED[path]:
        verb, *args = shlex.split(line)[1:]
        assert verb in known, line
        known[verb].make_context(verb, args)  # raises what the user would read


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (path.parent / link).exists()] == []


def within(small: object, large: object) -> bool:
    """Tell whether everything that `small` says `large` says too; actions are compared without their versions."""
    if isinstance(small, dict):
        return isinstance(large, dict) and all(key in large and within(small[key], large[key]) for key in small)
    if isinstance(small, list):
        return isinstance(large, list) and len(small) == len(large) and all(map(within, small, large))
    return str(small).partition("@")[0] == str(large).partition("@")[0]


def test_the_workflow_of_the_readme_is_the_essence_of_what_init_writes() -> None:
    (block,) = re.findall(
        r"```yaml\n(# \.github/workflows/perf\.yml.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    shown = yaml.safe_load(block)
    assert within(shown, TEMPLATE)
    for job in TEMPLATE["jobs"]:
        assert shown["jobs"][job]["permissions"] == TEMPLATE["jobs"][job]["permissions"]


def test_the_permissions_are_those_of_the_workflow() -> None:
    rows = (ROOT / "docs/security.md").read_text().partition("## Permissions")[2].partition("\n\nWith")[0]
    found: dict[str, dict[str, str]] = {}
    job = ""
    for first, what, right in re.findall(r"^\| (\w*) *\| `([a-z-]+): (\w+)` \|", rows, re.MULTILINE):
        job = first or job
        found.setdefault(job, {})[what] = right
    assert found == {job: one["permissions"] for job, one in TEMPLATE["jobs"].items()}


def test_whatever_cannot_be_done_to_the_check_is_tried() -> None:
    text = (ROOT / "docs/security.md").read_text()
    who, tests = re.findall(r"## Who can do what to the check\n(.*?)\n### The tests\n(.*?)\n### ", text, re.DOTALL)[0]
    rows = [
        row for row in re.findall(r"^\| (.*) \|$", who, re.MULTILINE) if not row.startswith(("it can", "can |", "---"))
    ]
    listed = dict(re.findall(r"^(\d+)\. (.*?)(?=^\d+\.|\Z)", tests, re.MULTILINE | re.DOTALL))
    assert [row.rsplit(" | ", 1)[-1] for row in rows] == list(listed)
    for number, said in listed.items():
        file = ""
        for word in re.findall(r"`([^`]+)`", said):
            if word.endswith(".py"):
                file = (ROOT / word if "/" in word else ROOT / "tests/github" / word).read_text()
            else:
                assert f"def {word}(" in file, (number, word)


def test_names_are_those_of_the_code() -> None:
    github, security = GITHUB.read_text(), (ROOT / "docs/security.md").read_text()
    events = github.partition("## What is compared with what")[2].partition("## The measuring action")[0]
    assert [event for event in _READERS if f"`{event}`" not in events] == []
    assert [one for one in get_args(Conclusion) if f"| `{one}` |" not in github] == []
    assert f"`{ACCEPT_LABEL}`" in github and f"`{ACCEPT_LINE}: reason`" in github
    words = re.search(r"whose name holds (.*?), and all", security, re.DOTALL)[1].replace("\nor", " or")
    named = re.findall(r"[A-Z_]{2,}", words)
    assert len(named) == 13 and all(is_secret(f"MY_{word}_1") for word in named)


def test_contributing_names_what_is_in_the_files_that_it_names() -> None:
    """`file.py` (`name`, `other`) and `file.py: name`; a file by its path in the package, or by the end of it."""
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    told = re.findall(r"`([\w/]+\.py)`,? \(((?:`\w+`(?:, )?)+)[):]", text)
    told += re.findall(r"`([\w/]+\.py): (\w+)`", text)
    assert len(told) > 20
    sources = [(path.as_posix(), path.read_text()) for path in ROOT.rglob("src/perfci/**/*.py")]
    for file, names in told:
        texts = [source for path, source in sources if path.endswith(f"/{file}")]
        lost = [name for name in re.findall(r"\w+", names) if not any(re.search(rf"\b{name}\b", one) for one in texts)]
        assert lost == [], (file, lost)


def test_the_reference_of_suites_has_every_name_of_bench() -> None:
    text = (ROOT / "docs/suite.md").read_text()
    # What perfci asks, not a suite.
    asked = (
        "declared_work declared_reference declared_versus shapes device_bytes main_dtype holds release inputs_digest"
    )
    names = {name for name in vars(Bench) if not name.startswith("_")} - set(asked.split())
    assert names == set(re.findall(r"`bench\.(\w+)", text.partition("## Cases that need")[0]))


def test_the_reference_of_suites_has_every_variable_that_passes() -> None:
    """Whatever the code lets pass or sets is named, and what the tables name does pass."""
    section = (ROOT / "docs/suite.md").read_text().partition("## The interpreter and its environment")[2]
    section = section.partition("\n## ")[0]
    named = set(re.findall(r"`([A-Za-z_]+\*?)`", section))
    for pattern in (environment._ALWAYS, environment._BUILD):
        flat = re.sub(r"\(\?i:|\)|\s", "", pattern.pattern).replace("https?_proxy", "http_proxy|https_proxy")
        assert {one.replace(".*", "*") for one in flat.split("|")} <= named
    assert {*environment.FOLDERS, *environment._THREADS, "PERFCI_SITE", "PYTHONHASHSEED"} <= named
    everywhere, builds = [
        re.findall(r"`([A-Za-z_]+\*?)`", " ".join(row for row in section.splitlines() if row.endswith(f"| {to} |")))
        for to in ("builds and cases", "builds")
    ]
    for name in set(everywhere) - {"env", "pass_env"}:  # keys of the policy
        assert environment.passes(name.replace("*", "X"), build=False), name
    for name in builds:
        assert environment.passes(name.replace("*", "X"), build=True), name
        assert not environment.passes(name.replace("*", "X"), build=False), name
