"""The graph of a real model with several arguments and results, a tensor that was named, and blocks at its edge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect
from torch import nn

import layerscope as ls
from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.test_graph import graph, part, point

pytestmark = pytest.mark.browser


class Gated(nn.Module):
    """Two inputs, a scale by name, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        gated = ls.attach("gated", self.encoder(left) * torch.sigmoid(self.encoder(right)))
        return {"logits": self.head(gated * scale), "hidden": gated}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    torch.manual_seed(0)
    model = Gated()
    with ls.watch(model, to=folder / "gated", every=1, kinds="all") as run:
        for step in range(6):
            given = model(torch.randn(4, 8), 10 * torch.randn(4, 8), scale=torch.full((1,), 3.0))
            given["logits"].pow(2).mean().backward()
            if step == 2:
                model.eval()(torch.randn(4, 8), torch.zeros(4, 8), scale=torch.zeros(1))
                model.train()
            run.step(loss=step)
    ls.trace(model, torch.randn(4, 8), torch.randn(4, 8), scale=torch.ones(1)).save(folder / "gated")
    deep = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())) for _ in range(12))
    )
    with ls.watch(deep, to=folder / "deep", every=1) as run:
        for step in range(3):
            deep(torch.randn(2, 4)).sum().backward()
            run.step(loss=step)
    return folder


@pytest.fixture
def address(project: Path) -> Iterator[str]:
    with PageServer(project, port=0) as server:
        yield server.address


@pytest.mark.feature("E3")
def test_each_argument_and_result_opens_its_own_tensor_and_the_address_holds_it(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=gated&view=graph")
    tensor = page.get_by_test_id("site-panel").get_by_role("combobox", name="Tensor")
    shapes = {"input.1": "4×8", "input.scale": "1", "output.hidden": "4×16", "output.logits": "4×4", "input.0": "4×8"}
    for name, shape in shapes.items():
        page.mouse.click(*point(page, name))
        kind = name.partition(".")[0]
        expect(tensor.locator("option:checked")).to_have_text(kind if name == "input.0" else f"{kind} {name}")
        expect(page.get_by_test_id("site-panel")).to_contain_text(f"float32 · {shape}")
    page.mouse.click(*point(page, "input.scale"))
    tensor.select_option(label="output output.hidden")
    page.reload()
    expect(tensor.locator("option:checked")).to_have_text("output output.hidden")


def test_a_named_tensor_shows_its_name_and_enters_the_right_argument(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=gated&view=graph")
    expect(part(page, "gated")).to_contain_text("gated named tensor · 4×16")
    page.mouse.click(*point(page, "head"))
    graph(page).press("ArrowUp")
    expect(graph(page).get_by_role("treeitem", name="where branches meet", selected=True)).to_have_count(1)
    branches = page.get_by_test_id("branches")
    expect(branches.get_by_role("listitem").filter(has_text="input.scale").first).to_contain_text("3")


def test_colors_are_those_of_training_or_of_evaluation_and_tooltips_count_flops(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=gated&view=graph&step=4")
    legend = page.get_by_test_id("graph-legend")
    expect(legend).to_contain_text("output rms @4")
    page.get_by_role("combobox", name="Mode").select_option("eval")
    expect(legend).to_contain_text("output rms in eval @2")
    page.reload()
    expect(legend).to_contain_text("output rms in eval @2")
    page.mouse.move(*point(page, "encoder"))
    flops = 2 * 4 * 8 * 16 + 4 * 16
    expect(page.get_by_test_id("graph-tip")).to_contain_text(f"FLOPs{flops:,}")


def test_a_double_click_at_the_edge_opens_what_it_points_at(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=deep&view=graph")
    expect(part(page, "11")).to_have_count(1)
    for _ in range(6):
        graph(page).press("+")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = graph(page).bounding_box()
    assert box is not None
    at = {n: point(page, str(n)) for n in range(12)}
    last = max(n for n, (_, y) in at.items() if y < box["y"] + box["height"] - 4)
    assert last < 11, "the last visible one is at the edge"
    expect(part(page, str(last))).to_have_attribute("aria-expanded", "false")
    page.mouse.click(*at[last])
    expect(part(page, str(last))).to_have_attribute("aria-selected", "true")
    assert point(page, str(last)) == at[last]
    page.mouse.dblclick(*at[last])
    expect(part(page, str(last))).to_have_attribute("aria-expanded", "true")
