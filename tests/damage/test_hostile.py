"""A folder of hostile runs beside good ones: these are served as usual, nothing outside is read, changed or deleted."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.damage.hostile import CANARY, GOOD, HARMLESS, IN_TRACES, hostile, make_hostile
from tests.damage.wire import decoded
from tests.store.runs import ROOT

MEMORY_BYTES = 6 << 30  # address space of the server and of each command
PEAK_MB = 500
USUAL_S = 10.0  # for one answer, on a busy machine
ABOUT_RUN = (
    *("sites", "timeline", "scalar?series=0&stat=mean", "histogram?series=0&axis=linear", "graph", "notes"),
    *("heatmap?kind=output&stat=mean&mode=train", "findings", "traces", "trace?trace=000001", "network"),
    *("trace-overview?trace=000001", "operation?trace=000001&op=0", "value?trace=000001&op=0&what=value"),
)
BESIDES = (
    "api/metrics?run=good-a&run={name}",
    "api/compare/curves?run=good-a&run={name}&stat=mean&site=layer.0&kind=output",
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
LIMIT = partial(resource.setrlimit, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The project and what lies outside of it."""
    return make_hostile(tmp_path_factory.mktemp("hostile"))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@contextlib.contextmanager
def serving(project: Path) -> Iterator[tuple[httpx.Client, int]]:
    """The real command, as a user starts it; a client, and the number of the process."""
    command = [sys.executable, "-u", "-m", "layerscope.cli", "ui", str(project), "--port", "0", "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=pipe, stderr=subprocess.DEVNULL, text=True, preexec_fn=LIMIT
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+/", process.stdout.readline())
            assert found
            with httpx.Client(base_url=found[0], timeout=USUAL_S) as client:
                yield client, process.pid
            assert process.poll() is None, "the server has ended"
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def peak_mb(process: int) -> int:
    status = Path(f"/proc/{process}/status")
    return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) // 1024 if status.exists() else 0  # type: ignore[index]


@pytest.mark.slow
def test_good_runs_beside_hostile_ones_are_served_and_nothing_outside_is_touched(made: tuple[Path, Path]) -> None:
    project, outside = made
    before, bad = contents(outside), hostile(outside)
    assert len(bad) >= 40
    with serving(project) as (client, process):

        def get(address: str) -> httpx.Response:
            answer = client.get(address)
            assert CANARY.encode() not in answer.content, address
            return answer

        listed = [run["name"] for run in decoded(get("api/runs").content)["runs"]]
        assert set(listed) == {*GOOD, *bad}
        for name in listed:
            allowed = (200,) if name in GOOD else (200, 404, 409)
            for address in (
                *(f"api/run/{name}/{about}" for about in ABOUT_RUN),
                *(each.format(name=name) for each in BESIDES),
            ):
                answer = get(address)
                assert answer.status_code in allowed, (address, answer.text[:300])
        problems = {run["name"]: run["problem"] for run in decoded(get("api/runs").content)["runs"]}
        assert [name for name in GOOD if problems[name] is not None] == []
        assert {name for name in bad if problems[name] is None} == {*HARMLESS, *IN_TRACES}
        for name in IN_TRACES:
            first, second = decoded(get(f"api/run/{name}/traces").content)["traces"]
            assert "damaged" in first["failure"]
            assert second["failure"] is None
        assert peak_mb(process) < PEAK_MB
    assert contents(outside) == before


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", "check", "compact"])
def test_commands_on_hostile_runs_end_and_touch_nothing_outside(made: tuple[Path, Path], verb: str) -> None:
    project, outside = made
    before = contents(outside)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "layerscope.cli", verb, str(project)],
        env=ENVIRONMENT,
        preexec_fn=LIMIT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert "fault of layerscope" not in done.stderr
    assert CANARY not in done.stdout + done.stderr
    assert contents(outside) == before
    assert all(name in done.stdout for name in GOOD)
    assert time.monotonic() - began < 60
