"""Commands and files of the runner, judged as actions/runner reads them."""

import errno
import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfci.github import workflow
from perfci.github.workflow import Files, annotation, annotations, output_text, quiet
from perfci.model.base import MachineError
from tests.render import build

COMMAND = re.compile(r"^::(?P<name>[a-z-]+)(?: (?P<properties>.*?))?::(?P<data>.*)$")
nasty = st.text() | st.lists(
    st.sampled_from(["::", "\n", "\r", "%", ",", ":", "%0A", "=", "::error::x", "\u2028", "\x1b[31m", "a", " "])
).map("".join)


def runner_reads(line: str) -> tuple[str, dict[str, str], str]:
    """A command as actions/runner takes it apart (ActionCommand.TryParseV2)."""
    found = COMMAND.match(line)
    assert found is not None, line
    properties = {}
    for pair in (found["properties"] or "").split(","):
        if pair:
            name, _, value = pair.partition("=")
            properties[name] = unescaped(value, {"%3A": ":", "%2C": ","})
    return found["name"], properties, unescaped(found["data"], {})


def unescaped(text: str, more: dict[str, str]) -> str:
    for code, character in {"%0D": "\r", "%0A": "\n", **more, "%25": "%"}.items():
        text = text.replace(code, character)
    return text


@given(text=nasty, file=nasty, title=nasty, line=st.integers(-5, 10**6))
def test_an_annotation_is_one_command_and_says_what_was_intended(text: str, file: str, title: str, line: int) -> None:
    command = annotation("error", text, file=file, line=line, title=title)
    assert len(command.splitlines()) == 1
    name, properties, data = runner_reads(command)
    assert name == "error"
    assert set(properties) <= {"file", "line", "title"}
    visible = workflow.visible
    assert data == workflow.shorten(visible(text), 1000)
    assert properties.get("file", "") == workflow.shorten(visible(file), 300)
    assert properties.get("title", "") == workflow.shorten(visible(title), 300)


@given(values=st.dictionaries(st.from_regex(r"[a-z-]+", fullmatch=True), nasty, max_size=4))
def test_outputs_are_read_back_as_they_were(values: dict[str, str]) -> None:
    """As FileCommandManager reads a file of `name<<delimiter` blocks."""
    lines = output_text(values).split("\n")
    found, at = {}, 0
    while at < len(lines) - 1:
        name, _, delimiter = lines[at].partition("<<")
        end = lines.index(delimiter, at + 1)
        found[name] = "\n".join(lines[at + 1 : end])
        at = end + 1
    assert found == values


def test_no_line_is_a_command_while_quiet() -> None:
    stream = io.StringIO()
    with quiet(stream):
        stream.write("::error::from the code under test\n::set-output name=exit-code::0\nno newline at the end")
    first, *inside, last = stream.getvalue().splitlines()
    word = first.removeprefix("::stop-commands::")
    assert re.fullmatch(r"perfci-[0-9a-f]{32}", word)
    assert last == f"::{word}::"
    assert not any(word in line for line in inside)


def test_quiet_ends_when_something_breaks() -> None:
    stream = io.StringIO()
    try:
        with quiet(stream):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        stream.write("out")
    assert stream.getvalue().splitlines()[-2].startswith("::perfci-")


def test_annotations_are_the_ten_worst_of_each_level() -> None:
    row = build.row("case", "regression")
    report = build.report([row], "slower")
    failing = [
        row.model_copy(update={"case": f"case/{n}", "effect": "fail", "file": "kernels/a.py", "line": n + 1})
        for n in range(14)
    ]
    warning = [row.model_copy(update={"case": f"warned/{n}", "effect": "warn"}) for n in range(3)]
    passing = [row.model_copy(update={"effect": "pass"})]
    report = report.model_copy(update={"rows": failing + warning + passing, "exit_code": 1, "verdict": "fail"})
    read = [runner_reads(line) for line in annotations(report)]
    assert [name for name, _, _ in read] == ["error"] * 10 + ["warning"] * 3
    assert read[0][1] == {"file": "kernels/a.py", "line": "1", "title": f"case/0 · {row.metric}"}
    assert read[9][2] == "5 more: the summary has them"


def files_of(folder: Path) -> tuple[dict[str, str], Files]:
    env = {}
    for name in ("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        env[name] = str(folder / name)
        Path(env[name]).write_text("" if name != "GITHUB_ENV" else "KEPT=1\n")
    return env, Files(env)


def test_what_others_write_into_the_runners_files_is_undone(tmp_path: Path) -> None:
    env, files = files_of(tmp_path)
    assert files.restore() == []
    with Path(env["GITHUB_ENV"]).open("a") as handle:
        handle.write("LD_PRELOAD=/tmp/evil.so\n")
    Path(env["GITHUB_OUTPUT"]).write_text("exit-code=0\n")
    Path(env["GITHUB_PATH"]).unlink()
    os.mkfifo(env["GITHUB_PATH"])
    Path(env["GITHUB_STEP_SUMMARY"]).unlink()
    Path(env["GITHUB_STEP_SUMMARY"]).symlink_to("/etc/hostname")
    assert files.restore() == ["GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"]
    assert Path(env["GITHUB_ENV"]).read_text() == "KEPT=1\n"
    assert Path(env["GITHUB_OUTPUT"]).read_text() == Path(env["GITHUB_PATH"]).read_text() == ""
    files.outputs({"exit-code": "1"})
    assert re.fullmatch(r"exit-code<<(\S+)\n1\n\1\n", Path(env["GITHUB_OUTPUT"]).read_text())


def test_one_file_that_is_in_the_way_leaves_no_other_as_it_is(tmp_path: Path) -> None:
    """A folder in the place of the first file once ended the restoring: what was forged in the others stayed."""
    env, files = files_of(tmp_path)
    Path(env["GITHUB_ENV"]).unlink()
    Path(env["GITHUB_ENV"]).mkdir()
    (Path(env["GITHUB_ENV"]) / "inside").write_text("")
    Path(env["GITHUB_OUTPUT"]).write_text("exit-code=0\n")
    assert files.restore() == ["GITHUB_ENV", "GITHUB_OUTPUT"]
    assert Path(env["GITHUB_ENV"]).read_text() == "KEPT=1\n"
    assert Path(env["GITHUB_OUTPUT"]).read_text() == ""


def test_what_cannot_be_undone_is_told_once_all_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, files = files_of(tmp_path)
    held = Path(env["GITHUB_ENV"])
    held.write_text("LD_PRELOAD=/tmp/evil.so\n")
    Path(env["GITHUB_OUTPUT"]).write_text("exit-code=0\n")
    write = Path.write_bytes

    def refused(path: Path, data: bytes) -> int:
        if path == held:
            raise OSError(errno.EROFS, "Read-only file system")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", refused)
    with pytest.raises(MachineError, match="GITHUB_ENV: cannot be written"):
        files.restore()
    assert Path(env["GITHUB_OUTPUT"]).read_text() == ""


def test_a_summary_that_the_runner_would_refuse_gives_way_to_a_shorter_one(tmp_path: Path) -> None:
    env, files = files_of(tmp_path)
    assert files.summary(["µ" * 600_000, "short\n"])
    assert Path(env["GITHUB_STEP_SUMMARY"]).read_text() == "short\n"
    assert files.summary(["µ" * 500_000])
    assert not files.summary(["µ" * 100_000])
    assert Path(env["GITHUB_STEP_SUMMARY"]).stat().st_size <= 1 << 20


def test_without_the_runners_files_nothing_is_written() -> None:
    files = Files({})
    files.outputs({"verdict": "pass"})
    files.summary(["text"])
    assert files.restore() == []
