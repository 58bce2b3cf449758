"""A framework of 150 lines is recorded by `capture/core` alone, where torch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import layerscope as ls
from layerscope.model.records import CallEdge, Floats, TensorType
from layerscope.server.app import create_app
from tests.capture.toy_training import RATE, STEPS, batch, first_weights
from tests.server.conftest import HOST
from tests.server.test_routes import asked

ROOT = Path(__file__).parents[2]
MOST_LINES = 150
TRAINING = """
import sys
sys.modules["torch"] = None  # importing it raises from now on
from pathlib import Path
from tests.capture.toy_training import train
train(Path(sys.argv[1]))
assert not [name for name in sys.modules if name.startswith(("torch.", "layerscope.capture.torch"))]
"""

Tensors = dict[tuple[str, str, str], Floats]  # by site, port and kind


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    subprocess.run([sys.executable, "-W", "error", "-c", TRAINING, str(folder / "toy")], cwd=ROOT, check=True)
    return folder


@pytest.fixture
def run(project: Path) -> ls.Run:
    return ls.open(project / "toy")


@pytest.fixture
def client(project: Path) -> Iterator[TestClient]:
    with TestClient(create_app(project), base_url=HOST, raise_server_exceptions=False) as client:
        yield client


def expected() -> Iterator[Tensors]:
    """Every tensor and gradient of each step, by numpy alone."""
    weights = first_weights()
    for step in range(STEPS):
        x, count = batch(step), len(batch(step))
        first = x @ weights["first"]
        inner1 = first @ weights["block"]
        second = first + np.tanh(inner1)
        inner2 = second @ weights["block"]
        third = second + np.tanh(inner2)
        output = third @ weights["head"]
        to_output = (1 - np.tanh(output) ** 2) / count
        to_third = to_output @ weights["head"].T
        to_inner2 = to_third * (1 - np.tanh(inner2) ** 2)
        through2 = to_inner2 @ weights["block"].T
        to_second = to_third + through2
        to_inner1 = to_second * (1 - np.tanh(inner1) ** 2)
        through1 = to_inner1 @ weights["block"].T
        to_first = to_second + through1
        to_weights = {
            "first": x.T @ to_first,
            "block": first.T @ to_inner1 + second.T @ to_inner2,
            "head": third.T @ to_output,
        }
        yield {
            ("(model)", "input.0", "input"): x,
            ("first", "output.0", "output"): first,
            ("block", "output.0", "output"): np.tanh(inner1),
            ("block.linear#2", "output.0", "output"): inner2,
            ("head", "input.0", "input"): third,
            ("(model)", "output.0", "output"): output,
            ("(model)", "output.0", "output_grad"): to_output,
            ("block#2", "output.0", "output_grad"): to_third,
            ("block#2", "input.0", "input_grad"): through2,
            ("block", "output.0", "output_grad"): to_second,
            ("block", "input.0", "input_grad"): through1,
            ("block.linear", "output.0", "output_grad"): to_inner1,
            ("first", "output.0", "output_grad"): to_first,
            ("first", "output.0", "output_grad_norm"): np.linalg.norm(to_first, axis=1),
            ("first.weight", "weight_grad@loss", "tensor_grad"): to_weights["first"],
            ("block.linear.weight", "weight_grad@loss", "tensor_grad"): to_weights["block"],
            ("head.weight", "weight_grad@loss", "tensor_grad"): to_weights["head"],
            ("x", "tensor", "tensor"): x,
            ("output", "tensor", "tensor"): output,
            ("output", "tensor@loss", "tensor_grad"): to_output,
            ("loss", "tensor", "tensor"): np.tanh(output).mean(keepdims=True),
        }
        weights = {name: weight - RATE * to_weights[name] for name, weight in weights.items()}


def test_the_toy_framework_is_short() -> None:
    assert len((ROOT / "tests/capture/toy_framework.py").read_text().splitlines()) <= MOST_LINES


def test_every_number_is_that_of_numpy(run: ls.Run) -> None:
    table = run.stats(stat=["mean", "rms", "max"]).pandas()
    recorded = table.set_index(["step", "site", "port", "kind"])
    for step, tensors in enumerate(expected()):
        for series, values in tensors.items():
            row = recorded.loc[(step, *series)]
            statistics = [values.mean(), np.sqrt(np.mean(values**2)), values.max()]
            assert row[["mean", "rms", "max"]].to_list() == pytest.approx(statistics, rel=1e-12), (step, series)
    assert run.metrics().pandas()["loss"].to_list() == pytest.approx(
        [tensors["loss", "tensor", "tensor"].item() for tensors in expected()], rel=1e-12
    )


def test_values_of_named_tensors_are_kept(run: ls.Run) -> None:
    kept = run.values(["x", "output"]).pandas().set_index(["step", "site", "kind"])
    for step, tensors in enumerate(expected()):
        for (site, _, kind), values in tensors.items():
            if site in ("x", "output"):
                assert np.allclose(np.reshape(kept.loc[step, site, kind]["value"], values.shape), values, rtol=1e-12)


def test_calls_and_the_data_between_them_are_a_graph(run: ls.Run) -> None:
    graph = run.graph()
    assert graph is not None
    assert [module.path for module in graph.modules] == ["(model)", "first", "block", "block.linear", "head"]
    assert {(call.site, call.parent) for call in graph.calls} == {
        ("(model)", ""),
        ("first", "(model)"),
        ("block", "(model)"),
        ("block.linear", "block"),
        ("block#2", "(model)"),
        ("block.linear#2", "block#2"),
        ("head", "(model)"),
    }
    assert CallEdge("first", "output.0", "block", "input.0") in graph.edges
    into_second = {edge.source for edge in graph.edges if (edge.target, edge.target_port) == ("block#2", "input.0")}
    assert into_second == {"first", "block"}  # what goes around the block, and what comes out of it
    assert CallEdge("head", "output.0", "(model)", "output.0") in graph.edges


def test_named_tensors_depend_on_each_other_and_on_parameters(run: ls.Run) -> None:
    graphs = [graph for graph in run.reader.dependencies() if graph.links]
    assert len(graphs) == 1  # every step is the same
    assert {(node.name, node.type) for node in graphs[0].nodes} == {
        ("x", TensorType.INPUT),
        ("output", TensorType.INTERMEDIATE),
        ("loss", TensorType.LOSS),
        ("first", TensorType.PARAMETER),
        ("block", TensorType.PARAMETER),
        ("head", TensorType.PARAMETER),
    }
    links = {(link.source, link.target) for link in graphs[0].links}
    assert links == {("x", "output"), ("first", "output"), ("block", "output"), ("head", "output"), ("output", "loss")}


def test_the_page_shows_its_module_graph(client: TestClient) -> None:
    graph = asked(client, "/api/run/toy/graph")
    assert {"first", "block", "head"} <= set(graph["sites"])
    numbers = asked(client, "/api/run/toy/graph-numbers?kind=output&stat=rms&step=2")
    assert graph["sites"].index("head") in numbers["parts"]


def test_the_page_shows_a_series_and_the_heat_map(client: TestClient, run: ls.Run) -> None:
    rms = [np.sqrt(np.mean(tensors["first", "output.0", "output"] ** 2)) for tensors in expected()]
    table = run.series().pandas()
    number = table[(table["site"] == "first") & (table["kind"] == "output")]["series"].item()
    assert asked(client, f"/api/run/toy/scalar?series={number}&stat=rms")["last"] == pytest.approx(rms)
    heat = asked(client, "/api/run/toy/heatmap?kind=output&mode=train&stat=rms")
    row = int(heat["own"][heat["labels"].index("first")])
    assert heat["cells"].reshape(-1, STEPS)[row] == pytest.approx(rms, rel=1e-6)


def test_the_page_shows_its_named_tensors(client: TestClient) -> None:
    panel = asked(client, "/api/tensors?run=toy&node=output&step=2")["panels"][0]
    output = list(expected())[2]["output", "tensor", "tensor"]
    assert dict(zip(panel["stat_names"], panel["stats"], strict=True))["mean"] == pytest.approx(output.mean())
    assert panel["neurons"]["numbers"].ravel() == pytest.approx(output.ravel())
