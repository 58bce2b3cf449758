"""Every broken training of the examples is run, and the command must name its fault."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from layerscope.cli.main import main
from tests.repo.source import ROOT

BROKEN = ROOT / "examples" / "broken"
FAULTS = {  # example → rule, site, step of its first finding, and what else may be said
    "dead_relu": ("dead_units", "3", 20, set()),
    "detached": ("stuck_weights", "right.weight", 0, set()),
    "diverging": ("loss_growing", "", None, set()),
    "exploding": ("exploding_gradients", "1", None, {"loss_growing", "loss_not_finite", "not_finite"}),
    "exploding_depth": ("exploding_gradients", "0.bias", 0, set()),
    "idle_units": ("dead_units", "0.bias", 0, set()),
    "large_update": ("update_too_large", "0.weight", None, set()),
    "nan_backward": ("not_finite", "1", 25, {"loss_not_finite"}),
    "nan_forward": ("not_finite", "3", 25, {"loss_not_finite"}),
    "skipped_amp": ("skipped_updates", "0.weight", 20, set()),
    "small_update": ("update_too_small", "0.weight", 0, set()),
    "stuck": ("stuck_weights", "2.weight", 0, set()),
    "vanishing": ("vanishing_gradients", "0.bias", 0, {"update_too_small"}),
}


def checked(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(folder), "--json"])
    (diagnosis,) = json.loads(capfd.readouterr().out)
    return code, diagnosis


def test_every_broken_example_has_a_fault_to_be_named() -> None:
    assert {path.stem for path in BROKEN.glob("*.py")} == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_check_names_the_fault_of_a_broken_example(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "run")])
    runpy.run_path(str(BROKEN / f"{name}.py"))
    code, diagnosis = checked(tmp_path / "run", capfd)
    rule, site, step, others = FAULTS[name]
    cause, *more = diagnosis["findings"]
    assert (cause["rule"], cause["site"]) == (rule, site)
    assert step in (None, cause["step"])
    assert not more
    assert {found["rule"] for found in cause["consequences"]} <= others
    assert code == (cause["severity"] == "error")
    if site:
        assert f"{site!r} ({diagnosis['classes'][site]})" in cause["title"]  # a number alone tells nobody which it is
