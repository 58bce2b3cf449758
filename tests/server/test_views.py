"""What the heat map, the findings and the comparison ask for."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from layerscope.diagnose.rules import check
from layerscope.errors import StoreError
from layerscope.query.matrix import Layout, Matrix, Question, matrix
from layerscope.server.background import checked_in_another_process
from layerscope.store.reader import Reader
from layerscope.views import open_run
from tests.server.runs import Writing, tensor_at, write_run
from tests.server.test_routes import asked, refused

HEAT = "kind=output&mode=train&stat=rms"
TENSOR = "site=layer&port=output.0&kind=output&mode=train"


@pytest.fixture
def broken(project: Path) -> Path:
    """A run whose loss becomes NaN. Ask for it before the server: one that grows is looked at every few seconds."""
    writing = Writing(project / "broken")
    for step in range(12):
        writing.tensor(step, writing.series)
        writing.metric(step, 1.0 if step < 9 else float("nan"))
    writing.sink.close()
    return project / "broken"


def test_a_heat_map_holds_the_statistic_of_every_step(client: TestClient) -> None:
    view = asked(client, f"/api/run/first/heatmap?{HEAT}")
    assert view["labels"] == ["layer"]
    expected = [np.sqrt(np.mean(tensor_at(step) ** 2)) for step in range(5)]
    np.testing.assert_allclose(view["cells"], expected, rtol=1e-6)


def test_of_several_steps_one_is_shown_but_metrics_are_whole(client: TestClient) -> None:
    for path in (f"heatmap?{HEAT}", "histogram?series=0&axis=linear", "scalar?series=0&stat=rms"):
        view = asked(client, f"/api/run/first/{path}&every=2")
        assert view["last_steps"].tolist() == [0, 2, 4]
    assert asked(client, "/api/run/first/timeline?every=2")["metrics"][0]["last_steps"].tolist() == [0, 1, 2, 3, 4]
    curves = asked(client, f"/api/compare/curves?run=first&run=group/second&{TENSOR}&stat=rms&every=2")
    assert [run["view"]["last_steps"].tolist() for run in curves["tensor"]["runs"]] == [[0, 2, 4], [0, 2]]
    difference = f"/api/compare/difference?run=first&run=group/second&{HEAT}&how=difference&every=2"
    assert asked(client, difference)["view"]["last_steps"].tolist() == [0, 2]
    assert "'every'" in refused(client, f"/api/run/first/heatmap?{HEAT}&every=0", 400)


def test_a_heat_map_grows_with_its_run(client: TestClient, project: Path) -> None:
    writing = Writing(project / "live")
    writing.step(0)
    assert asked(client, f"/api/run/live/heatmap?{HEAT}")["last_steps"].tolist() == [0]
    writing.step(1)
    assert asked(client, f"/api/run/live/heatmap?{HEAT}")["last_steps"].tolist() == [0, 1]
    writing.sink.close()


def test_a_heat_map_of_the_statistic_that_is_looked_at_is_read_when_nothing_is_asked_for_a_while(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: queue.Queue[Question] = queue.Queue()

    def read_matrix(reader: Reader, question: Question, layout: Callable[[], Layout]) -> Matrix:
        read.put(question)
        return matrix(reader, question, layout)

    monkeypatch.setattr(open_run, "matrix", read_matrix)
    asked(client, "/api/run/first/scalar?series=0&stat=rms")
    assert read.get(timeout=30) == Question("output", "rms", "train", 0)
    test_a_heat_map_holds_the_statistic_of_every_step(client)
    assert read.empty()


@pytest.mark.parametrize(
    ("query", "status", "names"),
    [
        ("kind=nonsense&mode=train&stat=rms", 400, "'kind'"),
        ("kind=output&mode=train&stat=nonsense", 404, "'nonsense'"),
        ("kind=output&mode=x&stat=rms", 400, "'mode'"),
        ("kind=buffer&mode=train&stat=rms", 404, "'buffer'"),
    ],
)
def test_a_heat_map_of_nothing_is_told_what_is_wrong(client: TestClient, query: str, status: int, names: str) -> None:
    assert names in refused(client, f"/api/run/first/heatmap?{query}", status)


def test_findings_begin_with_the_verdict_and_name_step_and_advice(broken: Path, client: TestClient) -> None:
    view = asked(client, "/api/run/broken/findings")
    assert view["verdict"].startswith("1 error")
    (finding,) = view["findings"]
    assert (finding["rule"], finding["severity"], finding["step"]) == ("loss_not_finite", "error", 9)
    assert finding["advice"]
    assert len(finding["numbers"]) == len(finding["evidence"])
    assert view["counts"] == {"errors": 1, "warnings": 0, "notes": 0, "checked": 4}


def test_the_list_of_runs_does_not_wait_for_findings_and_has_them_later(broken: Path, client: TestClient) -> None:
    def counts() -> list[dict[str, int] | None]:
        return [run["findings"] for run in asked(client, "/api/runs")["runs"]]

    counts()
    deadline = time.monotonic() + 30
    while None in counts():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert counts()[0] == {"errors": 1, "warnings": 0, "notes": 0, "checked": 4}
    assert counts()[1] == {"errors": 0, "warnings": 0, "notes": 0, "checked": 3}


def test_findings_of_a_run_that_is_gone_are_refused(client: TestClient) -> None:
    assert "'nowhere'" in refused(client, "/api/run/nowhere/findings", 404)


def test_curves_of_several_runs_come_together_and_say_what_is_missing(client: TestClient, project: Path) -> None:
    write_run(project / "other", site="elsewhere")
    query = f"run=first&run=group/second&run=other&run=nowhere&{TENSOR}&stat=mean"
    view = asked(client, f"/api/compare/curves?{query}")
    assert (view["first_step"], view["last_step"]) == (0, 4)
    (loss,) = view["metrics"]
    assert [curve["run"] for curve in loss["runs"]] == ["first", "group/second", "other", "nowhere"]
    assert [len(curve["view"]["last"]) for curve in loss["runs"][:3]] == [5, 3, 5]
    assert loss["runs"][3]["view"] is None
    first, second, third, fourth = view["tensor"]["runs"]
    np.testing.assert_allclose(first["view"]["last"], [tensor_at(step).mean() for step in range(5)])
    assert len(second["view"]["last"]) == 3
    assert "'layer'" in third["lacking"]
    assert "'nowhere'" in fourth["lacking"]


def test_histograms_of_several_runs_are_of_the_asked_step(client: TestClient) -> None:
    view = asked(client, f"/api/compare/histograms?run=first&run=group/second&{TENSOR}&axis=linear&step=4")
    assert [(run["run"], run["step"]) for run in view["runs"]] == [("first", 4), ("group/second", 2)]


def test_two_runs_of_the_same_numbers_do_not_differ(client: TestClient) -> None:
    query = f"/api/compare/difference?run=first&run=group/second&{HEAT}&how=difference"
    view = asked(client, query)
    assert (view["steps_in_common"], view["only_in_first"]) == (3, [])
    assert view["view"]["cells"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        (f"curves?{TENSOR}", "no run"),
        (f"difference?run=first&run=group/second&{HEAT}&how=x", "'how'"),
        (f"histograms?run=first&{TENSOR}&axis=x", "'axis'"),
        (f"curves?run=first&{TENSOR}&stat=rms&smooth=1.5", "'smooth'"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_told_why(client: TestClient, query: str, names: str) -> None:
    assert names in refused(client, f"/api/compare/{query}", 400)


def test_a_comparison_of_what_is_not_there_is_told_what_there_is(client: TestClient) -> None:
    assert "two runs" in refused(client, f"/api/compare/difference?run=first&{HEAT}&how=difference", 404)
    assert "'nonsense'" in refused(client, f"/api/compare/curves?run=first&{TENSOR}&stat=nonsense", 404)


def test_a_curve_is_smoothed_on_demand(client: TestClient) -> None:
    series = asked(client, "/api/run/first/sites")["series"][0]["series"]
    plain = asked(client, f"/api/run/first/scalar?series={series}&stat=mean")
    assert len(plain["smooth"]) == 0
    smooth = asked(client, f"/api/run/first/scalar?series={series}&stat=mean&smooth=0.5")["smooth"]
    assert smooth[0] == plain["last"][0]
    assert smooth[1] == pytest.approx((plain["last"][0] * 0.5 + plain["last"][1]) / 1.5)


def test_a_check_in_another_process_finds_the_same(broken: Path, tmp_path: Path) -> None:
    assert repr(checked_in_another_process(broken)) == repr(check(broken))
    with pytest.raises(StoreError):
        checked_in_another_process(tmp_path / "nowhere")
