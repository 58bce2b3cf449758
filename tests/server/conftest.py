"""A project of real runs and a client that talks to the application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from layerscope.server.app import create_app
from tests.server.runs import write_run

HOST = "http://127.0.0.1:8765"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write_run(folder / "first")
    write_run(folder / "group" / "second", steps=3)
    return folder


@pytest.fixture
def client(project: Path) -> Iterator[TestClient]:
    with TestClient(create_app(project), base_url=HOST, raise_server_exceptions=False) as client:
        yield client
