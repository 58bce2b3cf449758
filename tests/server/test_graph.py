"""What the page asks of a module graph, and what it gets when that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from layerscope.server.app import create_app
from tests.server.conftest import HOST
from tests.server.graphs import blocks_graph, write_graph_run
from tests.server.runs import write_run
from tests.server.test_routes import asked, refused


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    write_graph_run(tmp_path / "runs" / "blocks", blocks_graph())
    write_run(tmp_path / "runs" / "bare")
    with TestClient(create_app(tmp_path / "runs"), base_url=HOST, raise_server_exceptions=False) as client:
        yield client


def test_the_graph_comes_with_the_order_of_every_group(client: TestClient) -> None:
    graph = asked(client, "/api/run/blocks/graph")
    assert graph["title"] == "Network"
    groups = {group["group"] for group in graph["groups"]}
    assert groups == {parent for parent in graph["parents"] if parent >= 0}
    again = asked(client, f"/api/run/blocks/graph-groups?of={max(groups)},99999")
    assert again["groups"] == [group for group in graph["groups"] if group["group"] == max(groups)]


def test_numbers_are_those_of_the_last_step_recorded_up_to_the_one_asked_for(client: TestClient) -> None:
    graph = asked(client, "/api/run/blocks/graph")
    embed = graph["sites"].index("embed")
    scales = []
    for step, found in ((0, 0), (3, 3), (900, 5), (-4, 0)):
        numbers = asked(client, f"/api/run/blocks/graph-numbers?kind=output&stat=rms&step={step}")
        assert numbers["step"] == found
        assert embed in numbers["parts"]
        scales.append(numbers["scale"])
    assert scales[0]["low"] < scales[0]["high"]
    assert all(scale == scales[0] for scale in scales)  # that of the whole run


def test_what_is_not_there_is_refused_with_the_way_out(client: TestClient) -> None:
    assert "no module graph" in refused(client, "/api/run/bare/graph", 404)
    assert "was recorded" in refused(client, "/api/run/blocks/graph-numbers?kind=update&stat=rms", 404)
    assert "must be one of" in refused(client, "/api/run/blocks/graph-numbers?kind=nonsense&stat=rms", 400)
    assert "'nonsense'" in refused(client, "/api/run/blocks/graph-numbers?kind=output&stat=nonsense", 404)
