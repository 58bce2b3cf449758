"""`layerscope check`: verdict, reasons, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layerscope as ls
from layerscope.cli.main import main
from layerscope.diagnose.findings import Diagnosis
from layerscope.diagnose.rules import check
from layerscope.model.records import Kind
from tests.cli.test_command import command
from tests.diagnose.runs import Made, noise


def write(folder: Path, *, broken: bool) -> Path:
    made = Made(folder)
    made.steps(
        range(12),
        lambda step: {("[bold]layer", Kind.OUTPUT): [float("nan")] if broken and step > 7 else noise()},
        lambda step: float("nan") if broken and step > 7 else 1.0,
    )
    made.sink.close()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A sound run and a broken one."""
    write(tmp_path / "broken", broken=True)
    write(tmp_path / "sound", broken=False)
    return tmp_path


def test_a_sound_run_is_healthy_and_the_exit_code_is_0(project: Path) -> None:
    done = command("check", "sound", cwd=project)
    assert done.returncode == 0
    assert done.stdout.startswith("sound: healthy (")
    assert "not checked: update_too_large, update_too_small: needs kind update, which was not recorded" in done.stdout


def test_a_broken_run_says_what_where_since_when_and_why_and_the_exit_code_is_1(project: Path) -> None:
    done = command("check", "broken", cwd=project)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("broken: 2 errors (")
    assert lines[1] == "  error, step 8: NaN first seen in the output of '[bold]layer'"
    assert lines[2].startswith("    why: 1 NaN among 1 elements. All was finite at step 7")
    assert lines[3].startswith("    do:  Look at the batch of this step")
    assert lines[4].startswith("    then step 8: The metric loss is not finite")


def test_a_folder_of_runs_is_checked_run_by_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(project)]) == 1
    shown = capfd.readouterr().out
    assert f"{project / 'broken'}: 2 errors" in shown
    assert f"{project / 'sound'}: healthy" in shown


def test_json_holds_every_finding_with_its_evidence(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(project / "sound"), str(project / "broken"), "--json"]) == 1
    sound, broken = json.loads(capfd.readouterr().out)
    assert sound["findings"] == []
    (cause,) = broken["findings"]
    assert cause["evidence"][0] == {
        "site": "[bold]layer", "kind": "output", "step": 8, "stat": "not finite", "value": 1, "context": ""
    }  # fmt: skip
    assert cause["consequences"][0]["evidence"][0]["value"] == "nan"
    assert broken["verdict"].startswith("2 errors")


def test_a_run_that_cannot_be_read_is_told_and_the_others_are_checked(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(project / "nowhere"), str(project / "broken")]) == 2
    shown = capfd.readouterr()
    assert "There is no folder" in shown.err
    assert "2 errors" in shown.out


def test_a_fault_of_a_rule_is_told_with_exit_code_2_and_the_others_are_checked(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(path: Path) -> Diagnosis:
        return check(path) if path.name == "broken" else Diagnosis((), (), [][1], None)

    monkeypatch.setattr("layerscope.cli.main.check", faulty)
    assert main(["check", str(project / "sound"), str(project / "broken")]) == 2
    shown = capfd.readouterr()
    assert f"{project / 'sound'} could not be read: IndexError: list index out of range" in shown.err
    assert "2 errors" in shown.out


def test_findings_are_a_table_whose_consequences_name_their_cause(project: Path) -> None:
    table = ls.open(project / "broken").findings()
    assert table["rule"] == ["not_finite", "loss_not_finite"]
    assert table["cause"] == [None, "not_finite"]
    assert table["step"] == [8, 8]
    assert len(ls.open(project / "sound").findings()) == 0


def test_help_teaches_by_example(project: Path) -> None:
    done = command("check", "--help", cwd=project)
    assert "layerscope check runs/first || exit 1" in done.stdout
    assert command("check", cwd=project).returncode == 2
