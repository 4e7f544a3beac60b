"""action.yml and what it starts."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from perfci.github.settings import PREFIX, RAW_SUFFIX, Settings, read_settings

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]


def test_every_input_reaches_the_settings_under_its_name() -> None:
    [env] = [step["env"] for step in STEPS if step.get("id") == "measure"]
    reach = {name: value for name, value in env.items() if name.startswith(PREFIX)}
    wanted = {f"{PREFIX}{name.upper().replace('-', '_')}": f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}
    assert reach == wanted
    assert {name.removeprefix(PREFIX).lower() for name in reach} == set(Settings.model_fields)


def test_the_defaults_are_those_of_the_settings() -> None:
    given = {f"{PREFIX}{name.upper().replace('-', '_')}": one["default"] for name, one in ACTION["inputs"].items()}
    assert all(isinstance(value, str) for value in given.values())
    assert read_settings(given) == Settings()


def test_reports_of_profilers_are_handed_on_under_the_name_that_publishers_pass_over() -> None:
    """After a search of them, which only the input starts, and never within what publishers read."""
    [results, reports] = [step for step in STEPS if step.get("uses", "").startswith("actions/upload-artifact@")]
    names = [step["with"]["name"] for step in (results, reports)]
    assert names == [name := "${{ steps.measure.outputs.artifact-name }}", f"{name}{RAW_SUFFIX}"]
    assert reports["if"] == "${{ always() && steps.raw.outputs.path != '' }}"
    assert reports["with"]["path"] == "${{ steps.raw.outputs.path }}"
    assert reports["with"]["retention-days"] == results["with"]["retention-days"]
    [search] = [step for step in STEPS if step.get("id") == "raw"]
    assert "inputs.raw == 'true'" in search["if"]
    order = [step.get("id") for step in STEPS]
    assert order.index("measure") < order.index("raw") < order.index("upload-raw") < order.index("comment")


@pytest.mark.parametrize(
    ("outcome", "value", "code"),
    [("success", "0", 0), ("failure", "1", 1), ("failure", "2", 2), ("failure", "3", 3), ("failure", "0", 3),
     ("failure", "", 3), ("success", "", 3), ("", "", 3)],
)  # fmt: skip
def test_the_last_step_ends_with_what_was_measured_and_never_passes_without(
    outcome: str, value: str, code: int
) -> None:
    """Nor by a 0 that the code under test has forged, where the step itself was killed."""
    gate = STEPS[-1]
    assert gate["if"] == "always()"
    env = {"PERFCI_EXIT_CODE": value, "PERFCI_OUTCOME": outcome}
    assert gate["env"].keys() == env.keys()
    done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", gate["run"]], env=env, check=False)
    assert done.returncode == code


def test_the_locked_packages_are_those_that_are_tested() -> None:
    def pins(name: str) -> dict[str, str]:
        found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s\\]+)", (ROOT / name).read_text(), re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}

    locked, tested = pins("action/requirements.txt"), pins("constraints.txt")
    assert {name: version for name, version in locked.items() if name in tested and tested[name] != version} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = project["dependencies"] + extras["github"] + extras["docker"]
    assert {re.match(r"[A-Za-z0-9_.-]+", one)[0].lower() for one in needed} <= set(locked)
    text = (ROOT / "action" / "requirements.txt").read_text()
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[a-z])", text.partition("\n\n")[0])[1:])


def test_without_a_python_for_itself_it_says_what_to_add(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "mktemp"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    (tools / "python3").write_text("#!/bin/bash\nexit 1\n")  # an old one
    (tools / "python3").chmod(0o755)
    env = {"PATH": str(tools), "RUNNER_TEMP": str(tmp_path)}
    command = ["/bin/bash", str(ROOT / "action" / "start"), "ci"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "add actions/setup-python before this step" in done.stderr
    assert len(done.stderr.splitlines()) == 1
