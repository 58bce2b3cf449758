"""The live channel tells of news as they happen."""

from __future__ import annotations

import shutil
from pathlib import Path

from starlette.testclient import TestClient, WebSocketTestSession

from layerscope.server.app import changes
from layerscope.server.catalogue import State
from layerscope.server.wire import Change
from tests.server.runs import Writing, write_run


def test_new_rows_a_new_status_a_new_run_and_a_vanished_one_are_told(client: TestClient, project: Path) -> None:
    writing = Writing(project / "live")
    writing.step(0)
    with client.websocket_connect("/api/live", headers={"host": "127.0.0.1:8765"}) as socket:
        writing.step(1)
        assert next_of("live", socket) == ("live", "running")
        writing.sink.close()
        while (heard := next_of("live", socket)) == ("live", "running"):
            pass  # closing writes what is left before it ends the run
        assert heard == ("live", "finished")
        write_run(project / "third", steps=1)
        assert next_of("third", socket)[0] == "third"
        shutil.rmtree(project / "first")
        while (heard := next_of("first", socket)) == ("first", "finished"):
            pass
        assert heard == ("first", "gone")


def next_of(run: str, socket: WebSocketTestSession) -> tuple[str, str]:
    """The next news of a run: those of others may come at any time, as that their findings are known."""
    while (change := socket.receive_json())["run"] != run:
        pass
    return change["run"], change["status"]


def test_two_equal_looks_are_no_news() -> None:
    before = {"a": State("running", "1"), "b": State("finished", "7")}
    assert changes(before, dict(before)) == []
    assert changes(before, {"a": State("running", "2")}) == [Change("a", "running", "2"), Change("b", "gone", "")]
