"""Contexts on the page: a site that was recorded in other contexts than the chosen one is not called unrecorded."""

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
from tests.browser.test_graph import point

pytestmark = pytest.mark.browser


class Gan(nn.Module):
    """A container whose own forward is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = nn.Linear(4, 8), nn.Linear(8, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder, model = tmp_path_factory.mktemp("runs") / "gan", Gan()
    with ls.watch(model, to=folder, every=1) as recorder:
        for _ in range(3):
            made = model.maker(torch.randn(16, 4))
            with recorder.context("real"):
                real = model.judge(torch.randn(16, 8) + 3)
            with recorder.context("fake"):
                fake = model.judge(made)
            (fake - real).mean().backward()
            recorder.step()
    return folder


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with PageServer(run.parent, port=0) as server:
        yield server.address


def rms(run: Path, site: str, context: str) -> float:
    table = ls.open(run).stats(site, kind="output", stat="rms", context=context, steps=(1, 1))
    return float(table["rms"][0])


def test_a_box_shows_the_chosen_context_or_one_that_it_was_recorded_in(visit: Visit, address: str, run: Path) -> None:
    page = visit.page
    legend, tip = page.get_by_test_id("graph-legend"), page.get_by_test_id("graph-tip")
    for chosen, said, judged in (("", "output rms @1", "real"), ("&context=fake", "output rms in fake @1", "fake")):
        page.goto("about:blank")
        page.goto(f"{address}#run=gan&view=graph&site=maker&step=1{chosen}")
        expect(legend).to_contain_text(said)
        expect(legend).to_contain_text("1 in other contexts")
        page.mouse.move(*point(page, "maker"))
        expect(tip.locator("dt").last).to_have_text("output rms")
        expect(tip.locator("dd").last).to_have_text(f"{rms(run, 'maker', ''):.4g} @1")
        page.mouse.move(*point(page, "judge"))
        expect(tip.locator("dt").last).to_have_text(f"output rms in {judged}")
        expect(tip.locator("dd").last).to_have_text(f"{rms(run, 'judge', judged):.4g} @1")


def test_a_container_that_is_not_called_has_the_name_of_its_class(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=gan&view=graph")
    expect(
        page.get_by_role("img", name="Module graph of Gan").or_(page.get_by_label("Module graph of Gan"))
    ).to_be_visible()
    expect(page.get_by_role("button", name="Gan", exact=True)).to_be_visible()


def test_a_heat_map_without_a_chosen_context_shows_that_of_the_selected_site(
    visit: Visit, address: str, run: Path
) -> None:
    page = visit.page
    for site, context, others in (("judge", "real", "maker"), ("maker", "", "judge")):
        page.goto("about:blank")
        page.goto(f"{address}#run=gan&view=heatmap&site={site}&step=1")
        expect(page.get_by_test_id("heatmap-readout")).to_have_text(f"rms {rms(run, site, context):.4g} @1 · {site}")
        expect(page.get_by_label("Context")).to_have_value(context)
        expect(page.get_by_test_id("heatmap").get_by_title(others, exact=True)).to_have_count(0)
