"""The live channel tells of news as they happen."""

from __future__ import annotations

import shutil
from pathlib import Path

from starlette.testclient import TestClient

from layerscope.server.catalogue import State
from layerscope.server.live import changes
from layerscope.server.messages import Change
from tests.server.runs import Writing, write_run


def test_new_rows_a_new_status_a_new_run_and_a_vanished_one_are_told(client: TestClient, project: Path) -> None:
    writing = Writing(project / "live")
    writing.step(0)
    with client.websocket_connect("/api/live", headers={"host": "127.0.0.1:8765"}) as socket:
        writing.step(1)
        assert told(socket.receive_json()) == ("live", "running")
        writing.sink.close()
        while (heard := told(socket.receive_json())) == ("live", "running"):
            pass  # closing writes what is left before it ends the run
        assert heard == ("live", "finished")
        write_run(project / "third", steps=1)
        while (heard := told(socket.receive_json()))[0] == "live":
            pass  # compaction at the end of a run is news of it
        assert heard[0] == "third"
        shutil.rmtree(project / "first")
        while (heard := told(socket.receive_json()))[0] != "first":
            pass
        assert heard == ("first", "gone")


def told(change: dict[str, str]) -> tuple[str, str]:
    return change["run"], change["status"]


def test_two_equal_looks_are_no_news() -> None:
    before = {"a": State("running", "1"), "b": State("finished", "7")}
    assert changes(before, dict(before)) == []
    assert changes(before, {"a": State("running", "2")}) == [Change("a", "running", "2"), Change("b", "gone", "")]
