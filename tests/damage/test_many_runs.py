"""Many runs, few file handles: all are listed, any can be opened, and the number of open files does not grow."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.damage.runs import make_runs
from tests.store.runs import ROOT

FULL = os.environ.get("LAYERSCOPE_FULL") == "1"
RUNS, HANDLES, OPENED = (2000, 256, 400) if FULL else (150, 80, 30)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs that share their files, so that making them is quick."""
    folder = tmp_path_factory.mktemp("many")
    runs = list(make_runs(folder / "model").values())
    for number in range(RUNS):
        shutil.copytree(runs[number % 2], folder / "project" / f"run-{number:04}", copy_function=os.link)
    return folder / "project"


def ran(*command: object, handles: int | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    limit = None if handles is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, (handles, handles))
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.slow
@pytest.mark.timeout(900 if FULL else 300)
def test_all_runs_are_listed_and_opened_with_few_file_handles(project: Path) -> None:
    done = ran("tests.damage.few_handles", project, HANDLES, OPENED)
    found = json.loads(done.stdout)
    assert found["listed"] == RUNS
    assert (found["unreadable"], found["lacking"], found["failed"]) == ([], [], 0)
    assert found["open"] < HANDLES


@pytest.mark.slow
@pytest.mark.timeout(900 if FULL else 300)
def test_the_commands_read_all_runs_with_few_file_handles(project: Path) -> None:
    for verb in ("show", "check"):
        done = ran("layerscope.cli", verb, project, handles=HANDLES)
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr == ""
        assert done.stdout.count("run-") >= RUNS
