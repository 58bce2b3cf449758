"""What the page asks for, and what it gets when that is not there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from layerscope.server import catalogue, wire
from layerscope.stats import derived
from layerscope.store.compaction import compact
from layerscope.views.run_overview import MOST_EVENTS
from tests.query.test_discover import closed_to_us
from tests.server.decoding import decode
from tests.server.runs import Writing, summaries, tensor_at, write_run


def asked(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == wire.MEDIA_TYPE
    return decode(answer.content)


def refused(client: TestClient, path: str, status: int) -> str:
    answer = client.get(path)
    assert answer.status_code == status
    assert list(answer.json()) == ["problem"]
    assert "Traceback" not in answer.text
    return str(answer.json()["problem"])


def test_the_list_names_every_run_with_its_state_and_last_numbers(client: TestClient) -> None:
    runs = asked(client, "/api/runs")["runs"]
    assert [(run["name"], run["status"], run["last_step"]) for run in runs] == [
        ("first", "finished", 4),
        ("group/second", "finished", 2),
    ]
    assert runs[0]["metrics"] == ["loss"]
    assert runs[0]["metric_values"].tolist() == [0.2]
    assert runs[0]["sparkline"].tolist() == [1.0, 0.5, 1 / 3, 0.25, 0.2]
    assert runs[0]["problem"] is None


def test_a_folder_that_is_itself_a_run_is_listed_by_its_own_name(project: Path) -> None:
    from layerscope.server.app import create_app

    with TestClient(create_app(project / "first"), base_url="http://localhost") as client:
        assert [run["name"] for run in asked(client, "/api/runs")["runs"]] == ["first"]
        assert asked(client, "/api/run/first/sites")["series"][0]["site"] == "layer"


def test_the_list_of_sites_is_made_again_when_there_is_a_new_one(client: TestClient, project: Path) -> None:
    writing = Writing(project / "growing")
    writing.step(0)
    before = asked(client, "/api/run/growing/sites")
    writing.step(1)
    assert asked(client, "/api/run/growing/sites") == before
    writing.tensor(2, writing.series_of("float16"))
    writing.own(2, "sparsity", 0.5)
    writing.sink.close()
    after = asked(client, "/api/run/growing/sites")
    assert [len(sites["series"]) for sites in (before, after)] == [1, 2]
    assert after["stats"] == [*before["stats"], "sparsity"]


def test_sites_come_with_everything_that_tells_series_apart(client: TestClient) -> None:
    sites = asked(client, "/api/run/group/second/sites")
    assert sites["stats"] == list(derived.STATS)
    (series,) = sites["series"]
    assert (series["site"], series["port"], series["kind"], series["mode"]) == ("layer", "output.0", "output", "train")
    assert (series["dtype"], series["phase"], series["shape"]) == ("float64", "forward", [500])


def test_a_statistic_equals_numpys(client: TestClient) -> None:
    series = asked(client, "/api/run/first/sites")["series"][0]["series"]
    view = asked(client, f"/api/run/first/scalar?series={series}&stat=std")
    assert view["last_steps"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(view["last"], [tensor_at(step).std() for step in range(5)], rtol=1e-9)


def test_an_own_statistic_is_listed_and_drawn_at_the_steps_that_have_it(client: TestClient, project: Path) -> None:
    writing = Writing(project / "own")
    for step in range(5):
        writing.step(step)
    other = writing.series_of("float32")
    writing.tensor(0, other)
    for step, value in ((1, 0.5), (3, np.nan)):
        writing.own(step, "sparsity", value)
    writing.sink.close()
    assert asked(client, "/api/run/own/sites")["stats"] == [*derived.STATS, "sparsity"]
    view = asked(client, f"/api/run/own/scalar?series={writing.series}&stat=sparsity")
    assert view["last_steps"].tolist() == [1, 3]
    np.testing.assert_array_equal(view["last"], [0.5, np.nan])
    assert asked(client, f"/api/run/own/scalar?series={other}&stat=sparsity")["points"] == 0
    assert "'sparsity'" in refused(client, "/api/run/first/scalar?series=0&stat=sparsity", 404)


def test_a_histogram_counts_every_element_of_every_step(client: TestClient) -> None:
    series = asked(client, "/api/run/first/sites")["series"][0]["series"]
    for axis in ("linear", "symlog", "exponent"):
        view = asked(client, f"/api/run/first/histogram?series={series}&axis={axis}&height=64")
        counted = view["counts"].reshape(5, -1).sum(axis=1) + view["below"] + view["above"]
        np.testing.assert_allclose(counted, 500, rtol=1e-5)


def test_a_histogram_of_one_step_counts_the_elements_of_that_step(client: TestClient) -> None:
    for query, step in (("&step=3", 3), ("&step=77", 4), ("", 4)):
        view = asked(client, f"/api/run/first/step-histogram?series=0&axis=linear&height=64{query}")
        (only,) = view["runs"]
        assert (only["run"], only["step"]) == ("first", step)
        assert only["counts"].sum() + only["numbers"][1] + only["numbers"][2] == pytest.approx(500)
        np.testing.assert_allclose(only["extremes"][:2], [tensor_at(step).min(), tensor_at(step).max()])


def test_the_limits_of_a_number_format_stand_on_the_exponent_axis(client: TestClient) -> None:
    assert "float8_e4m3fn" in asked(client, "/api/run/first/sites")["formats"]
    below = [int((np.abs(tensor_at(step)) < 2.0**-6).sum()) for step in range(5)]
    for asking, rows in (("histogram?", slice(None)), ("step-histogram?step=2&", slice(2, 3))):
        query = f"/api/run/first/{asking}series=0&axis="
        limits = asked(client, f"{query}exponent&format=float8_e4m3fn")["limits"]
        assert (limits["smallest"], limits["smallest_normal"], limits["largest"]) == (2.0**-9, 2.0**-6, 448.0)
        np.testing.assert_allclose(limits["to_zero"] + limits["subnormal"], below[rows])
        assert not limits["too_large"].any()
        assert asked(client, f"{query}exponent")["limits"]["format"] == "float16"
        assert asked(client, f"{query}exponent&format=none")["limits"] is None
        assert asked(client, f"{query}linear&format=float16")["limits"] is None


def test_the_timeline_shows_the_asked_steps_and_says_how_many_there_are(client: TestClient) -> None:
    timeline = asked(client, "/api/run/first/timeline?first=1&last=2")
    assert (timeline["first_step"], timeline["last_step"]) == (0, 4)
    assert timeline["metrics"][0]["last_steps"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("scalar?stat=rms", "series"),
        ("scalar?series=-1&stat=rms", "series"),
        ("scalar?series=0&stat=rms&width=0", "width"),
        ("scalar?series=0&stat=rms&width=1e9", "width"),
        ("scalar?series=0&stat=rms&first=99999999999999999999", "first"),
        ("histogram?series=0&axis=round", "axis"),
        ("histogram?series=0&axis=exponent&format=float7", "format"),
        ("step-histogram?series=0&axis=exponent&step=now", "step"),
        ("histogram?series=0&axis=linear&height=1000000", "height"),
        ("timeline?width=%00", "width"),
    ],
)
def test_a_malformed_request_is_told_which_part_is_wrong(client: TestClient, query: str, names: str) -> None:
    assert repr(names) in refused(client, f"/api/run/first/{query}", 400)


def test_an_unknown_series_is_told_how_many_there_are(client: TestClient) -> None:
    assert "has 1 series" in refused(client, "/api/run/first/scalar?series=77&stat=rms", 404)


@pytest.mark.parametrize("path", ["/api/run/third/sites", "/api/nothing", "/api/run/first/nothing", "/api/"])
def test_what_is_not_there_is_not_found(client: TestClient, path: str) -> None:
    refused(client, path, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(client: TestClient, method: str) -> None:
    assert client.request(method, "/api/run/first/sites").status_code == 405


def test_a_run_that_appears_is_listed_and_one_that_vanishes_is_said_to_be_gone(
    client: TestClient, project: Path
) -> None:
    write_run(project / "third", steps=1)
    assert [run["name"] for run in asked(client, "/api/runs")["runs"]] == ["first", "group/second", "third"]
    asked(client, "/api/run/first/timeline")
    shutil.rmtree(project / "first")
    assert "'first'" in refused(client, "/api/run/first/timeline", 404)
    assert [run["name"] for run in asked(client, "/api/runs")["runs"]] == ["group/second", "third"]


def test_a_run_made_again_under_the_same_name_shows_the_new_numbers(client: TestClient, project: Path) -> None:
    assert asked(client, "/api/run/first/timeline")["last_step"] == 4
    write_run(project.parent / "another", steps=2)
    # The same folder, hence the same inode, with another run in it: as a file system that reuses inodes makes it.
    for entry in (project / "first").iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.copytree(project.parent / "another", project / "first", dirs_exist_ok=True)
    assert asked(client, "/api/run/first/timeline")["last_step"] == 1


def test_a_compacted_run_made_again_in_the_same_place_shows_nothing_of_the_one_before(
    client: TestClient, project: Path
) -> None:
    def drawn() -> float:
        view = asked(client, "/api/run/again/scalar?series=0&stat=max&width=100")
        return float(view["last"][-1])

    seen = []
    for number in (1.0, 2.0):
        shutil.rmtree(project / "again", ignore_errors=True)
        writing = Writing(project / "again")
        for step in range(3):
            writing.sink.put(summaries(step, [writing.series], [np.full(8, number)]))
        writing.sink.close()
        compact(project / "again")
        seen.append(drawn())
    assert seen == [1.0, 2.0]


def test_a_damaged_run_says_what_is_wrong_and_the_others_keep_working(client: TestClient, project: Path) -> None:
    manifest = project / "first" / "run.json"
    manifest.write_text("{ this is no JSON")
    broken, sound = asked(client, "/api/runs")["runs"]
    assert (broken["status"], sound["status"]) == ("unreadable", "finished")
    assert "run.json" in broken["problem"]
    assert "run.json" in refused(client, "/api/run/first/sites", 409)
    asked(client, "/api/run/group/second/sites")


def test_a_bug_of_ours_shows_no_trace_to_the_page(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> list[object]:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(catalogue.Catalogue, "entries", broken)
    assert "secret" not in refused(client, "/api/runs", 500)


def test_a_running_run_is_said_to_run_and_its_new_steps_are_served(client: TestClient, project: Path) -> None:
    writing = Writing(project / "live")
    writing.step(0)
    entry = next(run for run in asked(client, "/api/runs")["runs"] if run["name"] == "live")
    assert (entry["status"], entry["last_step"]) == ("running", 0)
    writing.step(1)
    assert asked(client, "/api/run/live/timeline")["last_step"] == 1
    writing.sink.close()


def test_names_travel_as_they_are(client: TestClient, project: Path) -> None:
    name = "<img src=x onerror=alert(1)>" + "x" * 472
    write_run(project / "odd & <b>", steps=1, site=name)
    assert asked(client, "/api/run/odd%20%26%20%3Cb%3E/sites")["series"][0]["site"] == name


def test_a_run_without_metrics_has_the_last_step_of_its_tensors(client: TestClient, project: Path) -> None:
    writing = Writing(project / "bare")
    for step in (10, 20, 30):
        writing.tensor(step, writing.series)
    writing.sink.close()
    entry = next(run for run in asked(client, "/api/runs")["runs"] if run["name"] == "bare")
    assert (entry["last_step"], entry["metrics"]) == (30, [])
    timeline = asked(client, "/api/run/bare/timeline")
    assert (timeline["first_step"], timeline["last_step"]) == (10, 30)


def test_a_loss_that_is_no_number_travels_as_it_is(client: TestClient, project: Path) -> None:
    writing = Writing(project / "broken")
    for step, value in enumerate((1.0, np.nan, np.inf)):
        writing.metric(step, value)
    writing.sink.close()
    entry = next(run for run in asked(client, "/api/runs")["runs"] if run["name"] == "broken")
    assert entry["metric_values"].tolist() == [np.inf]
    np.testing.assert_array_equal(
        asked(client, "/api/run/broken/timeline")["metrics"][0]["last"], [1.0, np.nan, np.inf]
    )


def test_of_too_many_events_the_newest_are_sent(client: TestClient, project: Path) -> None:
    writing = Writing(project / "noted")
    for step in range(MOST_EVENTS + 5):
        writing.note(step, f"note {step}")
    writing.sink.close()
    events = asked(client, "/api/run/noted/timeline")["events"]
    assert (len(events), events[0]["text"], events[-1]["text"]) == (MOST_EVENTS, "note 5", f"note {MOST_EVENTS + 4}")


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="file systems there hold no such names")
def test_a_name_that_is_no_utf8_does_not_hide_the_other_runs(client: TestClient, project: Path) -> None:
    (project / "group").rename(Path(os.fsdecode(os.fsencode(project) + b"/odd\xff")))
    assert [run["name"] for run in asked(client, "/api/runs")["runs"]] == ["first"]


def test_an_unreadable_folder_hides_no_other_run_and_is_told_once(
    client: TestClient, project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "closed").mkdir()
    closed_to_us(monkeypatch, project / "closed")
    for _ in range(2):
        assert [run["name"] for run in asked(client, "/api/runs")["runs"]] == ["first", "group/second"]
    assert [record.message for record in caplog.records if "closed" in record.message] == [
        f"The folder '{project / 'closed'}' cannot be read: Permission denied. It was skipped."
    ]
