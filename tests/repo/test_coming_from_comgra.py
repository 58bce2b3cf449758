"""`docs/coming-from-comgra.md`: its examples record what they claim, and its table covers every call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import layerscope as ls
from layerscope.model.records import TensorType
from tests.repo.source import ROOT
from tests.repo.test_docs import BLOCK

PAGE = (ROOT / "docs/coming-from-comgra.md").read_text(encoding="utf-8")
CALLS = (
    "ComgraRecorder",
    "track_module",
    "add_note",
    "record_metric_in_graph",
    "start_recording",
    "start_iteration",
    "register_tensor",
    "add_tensor_connection",
    "start_backward_pass",
    "record_current_gradients",
    "finish_iteration",
    "finish_recording",
    "finalize",
    "DecisionMakerForRecordingsFrequencyPerType",
    "--visualization-file",
    "comgra-test-run",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples of the page, executed from top to bottom."""
    folder = tmp_path_factory.mktemp("comgra")
    (folder / "page.py").write_text("\n".join(BLOCK.findall(PAGE)), encoding="utf-8")
    done = subprocess.run([sys.executable, "-W", "error", "page.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "runs"


@pytest.mark.parametrize("call", CALLS)
def test_every_call_has_a_row(call: str) -> None:
    assert any(call in line for line in PAGE.splitlines() if line.startswith("| "))


@pytest.mark.slow
def test_the_minimal_example_records_its_four_tensors_every_ten_steps(runs: Path) -> None:
    named = ls.open(runs / "example_trial").named()
    assert named.steps()["step"] == list(range(0, 100, 10))
    graph = named.graph(90, 1)
    assert graph is not None
    types = {node.name: node.type for node in graph.nodes}
    assert types == {
        "inputs": TensorType.INPUT,
        "outputs": TensorType.INTERMEDIATE,
        "targets": TensorType.TARGET,
        "loss": TensorType.LOSS,
        "linear": TensorType.PARAMETER,
    }
    links = {(link.source, link.target) for link in graph.links}
    assert links == {("inputs", "outputs"), ("linear", "outputs"), ("outputs", "loss"), ("targets", "loss")}
    assert named.statistics(90, "outputs", loss="")["abs_max"] > 0
    values = named.values(90, "inputs")
    assert values is not None
    assert values.array.shape == (5, 5)


@pytest.mark.slow
def test_the_second_example_records_types_iterations_roles_losses_and_the_kept_step(runs: Path) -> None:
    run = ls.open(runs / "every_call")
    named = run.named()
    assert {"02_iterations", "03_iterations", "looked at"} == set(named.types())
    kept = named.steps("looked at")
    assert kept["step"] == [33]
    assert kept["reason"] == ["by hand"]
    assert len(set(kept["categories"][0])) == 2
    first = named.steps()["step"][0]
    assert set(named.steps()["losses"][0]) == {"loss", "penalty"}
    assert named.values(first, "memory", iteration=0) is not None
    above = named.values(first, "helper", "above two", 1)
    assert above is not None
    assert above.array.shape == (16,)
    assert above.array.dtype.kind == "i"
    gradients = [named.statistics(first, "answer", iteration=3, loss=loss) for loss in ("loss", "penalty")]
    assert gradients[0]["rms"] != gradients[1]["rms"]
    graph = named.graph(first, 2)
    assert graph is not None
    assert ("memory", 1, "memory") in {(link.source, link.back, link.target) for link in graph.links}
    last = named.graph(first, 3)
    assert last is not None
    assert "helper" in {link.source for link in last.links if link.target == "answer"}
    assert "Sequences of two and three" in run.events()["text"][0]
    assert "error/mean" in run.metrics().columns
