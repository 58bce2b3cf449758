"""Nobody but the page itself may talk to the server, and nothing but runs and the page is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from layerscope.server.app import create_app
from tests.server.conftest import HOST


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8765",
        "",
        "127.0.0.1:80:80",
        "a b",
        "[::1",
        "::1",
    ],
)
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/api/runs", headers={"host": host})
    assert answer.status_code == 403
    assert "address" in answer.json()["problem"]


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:1234", "LOCALHOST", "[::1]:8765"])
def test_loopback_by_any_of_its_names_is_served(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8765", "http://127.0.0.1:9999"])
def test_a_foreign_page_is_refused(client: TestClient, origin: str) -> None:
    assert client.get("/api/runs", headers={"origin": origin}).status_code == 403
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/live", headers={"origin": origin}):
        pass


def test_a_socket_to_a_foreign_host_is_refused(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/live", headers={"host": "evil.example"}):
        pass


def test_the_own_page_is_served(client: TestClient) -> None:
    assert client.get("/api/runs", headers={"origin": HOST}).status_code == 200
    with client.websocket_connect("/api/live", headers={"host": "127.0.0.1:8765", "origin": HOST}):
        pass


def test_a_picture_on_another_site_cannot_ask(client: TestClient) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert client.get("/api/runs", headers=foreign).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/api/runs", headers=followed).status_code == 200


def test_listening_everywhere_takes_numbers_but_no_foreign_names(project: Path) -> None:
    with TestClient(create_app(project, host="0.0.0.0"), base_url="http://192.168.1.7:8765") as client:
        assert client.get("/api/runs").status_code == 200
        assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/api/run/../../etc/passwd/sites",
        "/api/run/%2e%2e/sites",
        "/api/run/..%2f..%2fsecret/sites",
        "/api/run/first/../../secret/sites",
        "/api/run/%2fetc/sites",
        "/api/run/first%00/sites",
        "/../app.py",
        "/%2e%2e/app.py",
        "/assets/..%2f..%2fapp.py",
        "/api/run/first/run.json",
    ],
)
def test_no_path_leads_outside(client: TestClient, project: Path, path: str) -> None:
    (project.parent / "secret").mkdir()
    (project.parent / "secret" / "run.json").write_text((project / "first" / "run.json").read_text())
    assert client.get(path).status_code == 404


def test_every_answer_forbids_foreign_scripts_and_frames(client: TestClient) -> None:
    for path in ("/api/runs", "/api/nothing", "/"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
