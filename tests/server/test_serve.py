"""A server finds a port, serves, and ends."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from layerscope.errors import StateError, StoreError
from layerscope.server import background
from layerscope.server.background import compact_in_process
from layerscope.server.serve import PageServer
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.server.runs import Writing, write_run
from tests.store.runs import put_steps

UI = "import layerscope as ls, sys; ls.ui(sys.argv[1], port=0, open_browser=False)"
NOTEBOOK = """
import asyncio, sys
import layerscope as ls

async def cell():
    ls.ui(sys.argv[1], port=0, open_browser=False)

asyncio.new_event_loop().run_until_complete(cell())
"""


def test_a_server_answers_inside_its_block_and_is_gone_after_it(project: Path) -> None:
    with PageServer(project, port=0) as server:
        assert httpx.get(f"{server.address}api/runs").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.address}api/runs")


def test_a_short_answer_is_not_held_back_until_the_one_before_is_acknowledged(project: Path) -> None:
    with PageServer(project, port=0) as server, httpx.Client(base_url=server.address) as client:
        client.get("api/runs")
        (connection,) = server._server.server_state.connections
        taken: socket.socket = connection.transport.get_extra_info("socket")
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_taken_port_makes_it_take_the_next_one(project: Path) -> None:
    with PageServer(project, port=0) as first:
        port = int(first.address.rstrip("/").rsplit(":", 1)[1])
        with PageServer(project, port=port) as second:
            assert second.address != first.address
            assert httpx.get(f"{second.address}api/runs").status_code == 200


def test_it_listens_on_loopback_only(project: Path) -> None:
    with PageServer(project, port=0) as server:
        assert server.address.startswith("http://127.0.0.1:")


def test_a_missing_folder_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        PageServer(tmp_path / "nowhere", port=0)


def test_an_address_that_is_not_ours_is_said_so(project: Path) -> None:
    with pytest.raises(StateError, match=r"192\.0\.2\.1"):
        PageServer(project, host="192.0.2.1", port=0)


def test_a_run_is_compacted_once_and_only_when_nobody_writes_it(project: Path) -> None:
    writing = Writing(project / "live")
    writing.step(0)
    compacted: list[str] = []
    all_done = threading.Event()

    def compactor(path: Path) -> None:
        compacted.append(path.name)
        if len(compacted) == 2:
            all_done.set()

    with PageServer(project, port=0, compactor=compactor) as server:
        address = server.address.replace("http", "ws") + "api/live"
        for _ in range(2):
            with connect(address) as listening:
                assert all_done.wait(10)
                writing.step(len(compacted))
                listening.recv(timeout=10)
    assert sorted(compacted) == ["first", "second"]
    writing.sink.close()


def test_a_page_that_still_listens_does_not_hold_up_the_end(project: Path) -> None:
    with contextlib.ExitStack() as listening:
        with PageServer(project, port=0) as server:
            listening.enter_context(connect(server.address.replace("http", "ws") + "api/live"))
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.address)


@pytest.mark.parametrize("script", [UI, NOTEBOOK], ids=["script", "inside a running event loop"])
def test_ui_says_where_it_is_and_ends_quietly_when_interrupted(project: Path, script: str) -> None:
    line = [sys.executable, "-u", "-W", "ignore", "-c", script, str(project)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        try:
            assert found is not None
            assert httpx.get(f"{found[0]}api/runs").status_code == 200
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""


def test_a_compaction_that_fails_says_why(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"), compact=False)
    put_steps(sink, [0])
    sink.close()
    shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    compact_in_process(tmp_path / "run")
    assert list((tmp_path / "run" / "segments").rglob("*.arrow")) == []
    (tmp_path / "damaged" / "live.json").write_text("{ no JSON")
    with pytest.raises(StoreError, match=r"live\.json is damaged"):
        compact_in_process(tmp_path / "damaged")


def test_no_process_is_started_for_a_run_without_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", steps=1)
    monkeypatch.setattr(background, "run_in_process", lambda command: pytest.fail(f"started {command}"))
    compact_in_process(run)
