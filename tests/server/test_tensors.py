"""What the page asks of named tensors, and what it gets where a run lacks what is wished for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from layerscope.model.records import (
    ONLY_ROLE,
    SAMPLE_STATISTICS,
    Kind,
    Mode,
    NamedNode,
    Phase,
    SampleStats,
    Series,
    StepInfo,
    TensorType,
    TensorValues,
)
from layerscope.server.app import create_app
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.server.conftest import HOST
from tests.server.named_runs import write_named
from tests.server.runs import write_run
from tests.server.test_routes import asked, refused


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_named(folder / "a")
    write_named(folder / "b", steps=3, scale=4.0)
    write_run(folder / "plain")
    return folder


@pytest.fixture
def client(project: Path) -> Iterator[TestClient]:
    with TestClient(create_app(project), base_url=HOST, raise_server_exceptions=False) as client:
        yield client


def panel(client: TestClient, query: str) -> Any:
    return asked(client, f"/api/tensors?run=a&{query}")["panels"][0]


def test_without_a_wish_the_loss_at_the_end_of_the_last_step_is_shown(client: TestClient) -> None:
    found = panel(client, "")
    assert (found["node"], found["step"], found["iteration"], found["sample"]) == ("loss", 50, 2, None)
    assert found["types"] == ["long", "short"]
    assert found["steps"].tolist() == [0, 10, 20, 30, 40, 50]
    assert found["iterations"] == [0, 1, 2]
    assert found["differences"] == []


def test_steps_are_those_of_the_type_and_the_last_iteration_is_the_types_own(client: TestClient) -> None:
    found = panel(client, "type=long")
    assert found["steps"].tolist() == [0, 20, 40]
    assert (found["step"], found["step_type"], found["iteration"]) == (40, "long", 3)


def test_numbers_are_those_of_the_tensor_that_was_written(client: TestClient) -> None:
    rng = np.random.default_rng([30, 2, len("memory"), 0])
    memory = rng.normal(30 / 50, 1.0, (16, 8))
    found = panel(client, "node=memory&step=30&iteration=2")
    stats = dict(zip(found["stat_names"], found["stats"], strict=True))
    assert stats["mean"] == pytest.approx(memory.mean())
    assert stats["abs_max"] == pytest.approx(np.abs(memory).max())
    assert stats["std_of_sample_mean"] == pytest.approx(memory.mean(1).std())
    assert found["neurons"]["samples"] == [0, 1, 2]
    assert found["neurons"]["numbers"].reshape(8, 3) == pytest.approx(memory[:3].T)
    assert found["neurons"]["means"] == pytest.approx(memory[:3].mean(0))


def test_a_sample_has_statistics_and_values_of_its_own(client: TestClient) -> None:
    memory = np.random.default_rng([30, 2, len("memory"), 0]).normal(30 / 50, 1.0, (16, 8))
    found = panel(client, "node=memory&step=30&iteration=2&sample=1&loss=loss_b")
    stats = dict(zip(found["stat_names"], found["stats"], strict=True))
    assert set(SAMPLE_STATISTICS) <= set(stats)
    assert stats["mean"] == pytest.approx(-memory[1].mean())
    assert found["neurons"]["numbers"] == pytest.approx(-memory[1])
    assert found["loss"] == "loss_b"


def test_what_a_step_lacks_falls_back_and_is_told(client: TestClient) -> None:
    found = panel(client, "step=33&iteration=7&sample=9&type=huge&loss=loss_c&node=memory")
    assert (found["step"], found["iteration"], found["sample"], found["type"]) == (30, 2, None, "")
    assert found["loss"] == "loss_a"
    told = " ".join(found["differences"])
    for missing in ("iteration 7", "sample 9", "type huge", "loss_c"):
        assert missing in told


def test_a_node_of_another_iteration_is_told_where_it_is(client: TestClient) -> None:
    found = panel(client, "type=long&iteration=1&node=loss")
    assert found["stat_names"] == []
    assert "not in iteration 1" in found["lacking"]
    assert "in iteration 3" in found["lacking"]
    assert found["graph"]["types"][found["graph"]["names"].index("loss")] == "absent"


def test_a_tensor_without_a_gradient_says_so(client: TestClient) -> None:
    assert "no gradient" in panel(client, "node=target&loss=loss_a")["lacking"]


def test_of_a_tensor_without_a_batch_no_sample_is_shown(client: TestClient) -> None:
    for node, sample in (("memory", 1), ("pre", None), ("loss", None)):  # a parameter, and a single number
        found = panel(client, f"node={node}&step=30&iteration=2&sample=1")
        assert (found["node"], found["sample"], found["differences"]) == (node, sample, [])
        assert "sample" not in found["lacking"]


def test_a_parameter_shows_statistics_and_leads_to_its_charts(client: TestClient) -> None:
    found = panel(client, "node=pre&role=0.bias")
    assert found["roles"] == ["0.weight", "0.bias"]
    assert "mean" in found["stat_names"]
    assert (found["site"], found["kind"]) == ("pre.0.bias", "weight")
    assert "charts" in found["lacking"]


@pytest.mark.parametrize("form", ["bars", "image"])
def test_values_are_drawn_as_bars_and_as_image(client: TestClient, form: str) -> None:
    picture = panel(client, f"node=memory&form={form}")["neurons"]["picture"]
    assert (picture["picture"], picture["columns"]) == ("line" if form == "bars" else "matrix", 8)


def test_two_runs_answer_the_same_selection_at_the_same_places(client: TestClient) -> None:
    answer = asked(client, "/api/tensors?run=a&run=b&panels=2&node=memory&type=long&iteration=2&stat=std")
    first, second = answer["panels"]
    assert (first["step"], second["step"]) == (40, 20)
    assert first["graph"]["boxes"].tolist() == second["graph"]["boxes"].tolist()
    curves = answer["curves"]["runs"]
    assert [curve["run"] for curve in curves] == ["a", "b"]
    assert curves[0]["view"]["last_steps"].tolist() == [0, 20, 40]
    assert curves[1]["view"]["last"].mean() > 2 * curves[0]["view"]["last"].mean()


def test_a_run_without_named_tensors_or_that_is_gone_does_not_hide_the_other(client: TestClient) -> None:
    answer = asked(client, "/api/tensors?run=plain&run=a&panels=2")
    assert "run.record" in answer["panels"][0]["problem"]
    assert answer["panels"][1]["graph"] is not None
    assert "No run here" in asked(client, "/api/tensors?run=gone&panels=1")["panels"][0]["problem"]
    assert "names no run" in refused(client, "/api/tensors", 400)


def test_samples_of_two_tensors_stand_side_by_side_and_make_points_of_all_steps(client: TestClient) -> None:
    answer = asked(client, "/api/tensors/samples?run=a&type=long&of=partial_sums@sum&of=output&of=memory")
    (found,) = answer["runs"]
    assert found["samples"] == [0, 1, 2]
    assert [(column["key"], column["shown"]) for column in found["columns"]] == [
        ("partial_sums@sum", 5),
        ("output", 5),
        ("memory", 8),
    ]
    assert (len(found["x"]), found["steps"]) == (3 * 3 * 5, 3)
    assert "pre@0.weight" not in answer["choices"]


def test_samples_begin_with_the_selected_tensor(client: TestClient) -> None:
    answer = asked(client, "/api/tensors/samples?run=a&node=memory")
    assert answer["keys"][0] == "memory"
    assert len(answer["keys"]) == 2


def write_samples(folder: Path, rank: int, *, shift: float) -> None:
    """One step with a tensor of values, one of statistics of samples, one without any elements and one of complex."""
    sink = FolderSink(create(folder, resume=True, rank=rank))
    kept, four = np.array([0, 2], np.int32), np.arange(8.0).reshape(2, 4) + shift
    tensors = {"held": four, "told": four, "empty": np.zeros((2, 0)), "wave": np.array([[3 + 4j], [0j]])}
    nodes = []
    for name, array in tensors.items():
        series = Series(name, ONLY_ROLE, Kind.TENSOR, Mode.TRAIN, Phase.FORWARD, array.dtype.name, (4, 4))
        number = sink.series_id(series)
        nodes.append(NamedNode(name, TensorType.INTERMEDIATE, (("", array.shape),)))
        if name == "told":
            sink.put(SampleStats(0, number, kept, array))
        else:
            sink.put(TensorValues.one(0, number, kept, array))
    graph = sink.dependencies_id(tuple(nodes), ())
    sink.put(StepInfo(0, "step", 1, 4, (graph, graph), (0, 2), (), (), "schedule"))
    sink.close()


def test_samples_are_those_of_the_first_rank_and_come_from_statistics_where_no_values_were_kept(tmp_path: Path) -> None:
    write_samples(tmp_path / "runs" / "many", 0, shift=0.0)
    write_samples(tmp_path / "runs" / "many", 1, shift=100.0)
    address = "/api/tensors/samples?run=many&stat=mean_of_sample_std&of=held&of=told&of=empty&of=wave"
    with TestClient(create_app(tmp_path / "runs"), base_url=HOST) as client:
        (found,) = asked(client, address)["runs"]
        (alone,) = asked(client, "/api/tensors/samples?run=many&of=held")["runs"]
    held, told, empty, wave = found["columns"]
    assert (held["shown"], held["numbers"].tolist()) == (4, [*range(8)])
    assert (told["statistic"], told["numbers"].tolist()) == ("std", [2.0, 6.0])
    assert (empty["shown"], wave["numbers"].tolist()) == (0, [5.0, 0.0])
    assert found["x"] == pytest.approx([np.arange(4).std()] * 2)
    assert (found["y"].tolist(), found["point_samples"].tolist()) == ([2.0, 6.0], [0, 2])
    assert len(alone["x"]) == 0


def test_metrics_have_a_curve_for_each_run_and_type_and_stand_in_groups(client: TestClient) -> None:
    view = asked(client, "/api/metrics?run=a&run=b")
    assert [(chart["group"], chart["name"]) for chart in view["charts"]] == [
        ("", "loss"),
        ("accuracy", "far"),
        ("accuracy", "near"),
    ]
    curves = {(curve["run"], curve["type"]): curve["view"] for curve in view["charts"][0]["curves"]}
    assert set(curves) == {("a", "long"), ("a", "short"), ("b", "long"), ("b", "short")}
    assert curves["a", "short"]["last_steps"].tolist() == [10, 30, 50]
    assert (view["first_step"], view["last_step"]) == (0, 50)


def test_thinned_metrics_keep_every_outlier_and_both_ends(client: TestClient) -> None:
    view = asked(client, "/api/metrics?run=a&width=2")["charts"][0]["curves"][0]["view"]
    assert view["thinned"]
    assert view["high"].max() == 1.0
    assert view["last_steps"][-1] == 40


def test_notes_come_with_step_and_time(client: TestClient) -> None:
    notes = asked(client, "/api/run/a/notes")
    assert notes["texts"] == ["a new <b>learning rate</b>"]
    assert (notes["steps"].tolist(), notes["times"].tolist()) == ([10], [1.7e9])


def test_the_network_is_a_tree_with_counts_that_add_up(client: TestClient) -> None:
    tree = asked(client, "/api/run/a/network")
    assert tree["names"] == ["", "pre", "0", "weight", "bias"]
    assert tree["counts"].tolist() == [48, 48, 48, 40, 8]
    assert tree["depths"] == [0, 1, 2, 3, 3]
    assert math.prod((8, 5)) == tree["counts"][3]
    assert asked(client, "/api/run/plain/network")["total"] == 0
