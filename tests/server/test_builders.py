"""Views are built without a server: what a route sends is what a builder makes of a run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

import layerscope as ls
from layerscope.server.app import create_app
from layerscope.server.routes import OF_RUN, OF_RUNS
from tests.repo.source import ROOT
from tests.server.builders import built
from tests.server.conftest import HOST
from tests.server.graphs import blocks_graph, write_graph_run
from tests.server.named_runs import write_named
from tests.server.runs import write_run

WITHOUT_SERVER = """
import json, pathlib, sys
sys.modules.update(dict.fromkeys(("starlette", "uvicorn", "anyio", "torch")))  # importing them is an error
from tests.server.builders import digests
print(json.dumps(digests(pathlib.Path(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first")
    write_run(folder / "second", steps=3)
    write_graph_run(folder / "blocks", blocks_graph())
    write_named(folder / "named")
    ls.trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.ones(2, 3, 8, 8)).save(folder / "net")
    return folder


def test_every_view_is_built_without_starlette_as_the_route_sends_it(runs: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_SERVER, str(runs)]
    alone = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    with TestClient(create_app(runs), base_url=HOST) as client:
        sent = {request: hashlib.sha256(client.get(f"/api/{request}").content).hexdigest() for request in alone}
    assert alone == sent


def test_no_view_of_the_page_is_left_out(runs: Path) -> None:
    names = {name for name, _, _ in built(runs)}
    assert names >= {*OF_RUN, *OF_RUNS, "sites", "scalar", "findings", "tensors", "tensors/samples"}
