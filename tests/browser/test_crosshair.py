"""One crosshair, one step: every part shows the last recorded step at or before it, and says which: `@55`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect
from torch import Tensor, nn

import layerscope as ls
from layerscope.cli.main import main
from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.test_graph import point
from tests.server.test_last_step import written

pytestmark = pytest.mark.browser
STEPS, EVERY, CROSSED = 70, 5, 59
AT = f"&step={CROSSED}"


class Net(nn.Module):
    """A residual sum, an attached tensor and a layer that is called in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.rare = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        hidden = ls.attach("hidden", self.up(x).relu())
        y: Tensor = x + self.down(hidden)
        self.calls += 1
        return y + self.rare(y) if (self.calls - 1) % 10 == 0 else y


def train(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ls.watch(model, optimizer, to=folder, every=EVERY, kinds="all") as run:
        for step in range(STEPS):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            y = model(x)
            loss = (y - x.sin()).square().mean()
            run.record("answer", y)
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            if step in (50, 65):
                ls.trace(model, x).save(folder, step=step)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "a", 0)
    train(folder / "b", 1)
    return folder


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with PageServer(runs, port=0) as server:
        yield server.address


def value(runs: Path, site: str, step: int, stat: str = "rms", kind: str = "output") -> float:
    table = ls.open(runs / "a").stats(site, kind=kind, stat=stat, steps=(step, step))
    return float(table[stat][0])


def shown(page: Page) -> Locator:
    """All steps that numbers on the page are said to be of."""
    return page.get_by_test_id("step-label")


def test_charts_histogram_and_site_panel_read_the_last_recorded_step(visit: Visit, address: str, runs: Path) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&site=up{AT}")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 59")
    expect(page.get_by_test_id("readout-rms")).to_have_text(re.compile(rf"rms {value(runs, 'up', 55):.4g}\s*@55"))
    expect(shown(page)).to_have_text(["@55", "@55"])  # statistic and histogram; the loss is of step 59
    page.goto(f"{address}#run=a&site=up&oneStep=1{AT}")
    expect(shown(page)).to_have_text(["@55", "@55"])
    expect(page.get_by_test_id("histograms")).to_contain_text(f"std {value(runs, 'up', 55, 'std'):.4g}")
    lines = page.evaluate(
        "[...document.querySelectorAll('.plot')].map((plot) => getComputedStyle(plot).getPropertyValue('--crossing'))"
    )
    assert [round(float(line) * 71.5 - 2.5) for line in lines] == [59, 55]  # the lines stand where the numbers are read


def test_graph_panels_and_merges_read_the_last_recorded_step(visit: Visit, address: str, runs: Path) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&view=graph&site=up{AT}")
    legend = page.get_by_test_id("graph-legend")
    expect(legend).to_contain_text("output rms @55")
    expect(legend).to_contain_text("1 of other steps")  # `rare`, of step 50
    expect(page.get_by_test_id("site-panel").get_by_test_id("step-label").first).to_have_text("@55")
    for name, kind, step in (("up", "output", 55), ("rare", "output", 50), ("hidden", "tensor", 55)):
        page.goto(f"{address}#run=a&view=graph&site={name}&kind={kind}{AT}")
        expect(page.get_by_test_id("site-panel")).to_have_attribute("data-site", name)
        expect(page.get_by_test_id("site-panel").get_by_test_id("step-label").first).to_have_text(f"@{step}")
        page.mouse.move(*point(page, name))
        tip = page.get_by_test_id("graph-tip")
        expect(tip.locator("dt").last).to_have_text(f"{kind} rms")  # an attached tensor has the color of its own kind
        expect(tip.locator("dd").last).to_have_text(f"{value(runs, name, step, kind=kind):.4g} @{step}")


def test_heat_map_reads_the_last_recorded_step_of_the_chosen_row(visit: Visit, address: str, runs: Path) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&view=heatmap&site=up{AT}")
    reading = page.get_by_test_id("heatmap-readout")
    expect(reading).to_have_text(f"rms {value(runs, 'up', 55):.4g} @55 · up")
    page.goto(f"{address}#run=a&view=heatmap&site=rare{AT}")
    expect(reading).to_have_text(f"rms {value(runs, 'rare', 50):.4g} @50 · rare")


@pytest.mark.parametrize("way", ["curves", "difference", "histograms", "histograms&oneStep=1"])
def test_comparison_reads_the_last_recorded_step_of_each_run(visit: Visit, address: str, way: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=b&view=compare&site=up&comparing={way}{AT}")
    if way == "difference":
        expect(page.get_by_test_id("heatmap-readout")).to_contain_text("@55 · up")
        return
    expect(shown(page)).to_have_text(["@55", "@55"])


def test_named_tensors_and_traces_show_the_last_recorded_step(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&view=tensors&node=answer{AT}")
    expect(page.get_by_test_id("panel").get_by_test_id("step-label").first).to_have_text("@55")
    expect(page.get_by_test_id("step")).to_have_value("55")
    page.goto(f"{address}#run=a&view=traces{AT}")
    expect(page.get_by_role("button", name="@50", exact=True)).to_be_visible()
    page.goto(f"{address}#run=a&view=traces&step=66")
    expect(page.get_by_role("button", name="@65", exact=True)).to_be_visible()


def test_without_a_crosshair_the_last_visible_step_is_shown(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&site=up&oneStep=1&first=11&last=33")
    expect(shown(page)).to_have_text(["@30", "@30"])
    page.goto(f"{address}#run=a&site=up&view=graph&first=11&last=33")
    expect(page.get_by_test_id("graph-legend")).to_contain_text("output rms @30")


def test_left_of_the_first_visible_recorded_step_the_one_before_it_is_read(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&site=up&oneStep=1&first=57&last=69{AT}")
    expect(shown(page)).to_have_text(["@55", "@55"])


def test_a_stride_of_steps_applies_to_every_view(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&site=up&oneStep=1&every=20{AT}")
    expect(shown(page)).to_have_text(["@40", "@40"])
    page.goto(f"{address}#run=a&site=up&view=graph&every=20{AT}")
    expect(page.get_by_test_id("graph-legend")).to_contain_text("output rms @40")
    page.goto(f"{address}#run=a&site=up&view=heatmap&every=20{AT}")
    expect(page.get_by_test_id("heatmap-readout")).to_contain_text("@40 · up")


def test_keys_lead_from_between_two_recorded_steps_to_one_of_the_two(visit: Visit, address: str) -> None:
    page = visit.page
    for key, step in (("]", 60), ("[", 55)):
        page.goto("about:blank")
        page.goto(f"{address}#run=a&site=up{AT}")
        expect(shown(page)).to_have_text(["@55", "@55"])
        page.keyboard.press(key)
        expect(page.get_by_test_id("crosshair-step")).to_have_text(f"step {step}")


def test_the_pointer_finds_the_steps_of_the_plot_it_is_over(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&site=up")
    step = page.get_by_test_id("crosshair-step")
    for name, found in (("loss over the steps", "step 59"), ("rms of up over the steps", "step 60")):
        plot = page.get_by_role("img", name=name).bounding_box()
        assert plot is not None
        inner = plot["width"] - 66 - 54
        page.mouse.move(plot["x"] + 66 + inner * (59 + 2.5) / 71.5, plot["y"] + plot["height"] / 2)
        expect(step).to_have_text(found)


def test_a_saved_report_shows_the_same_step_in_every_part(visit: Visit, runs: Path, tmp_path: Path) -> None:
    assert main(["report", str(runs / "a"), "-o", str(tmp_path / "a.html")]) == 0
    page = visit.page
    page.context.unroute_all()
    for oneStep in ("", "&oneStep=1"):
        page.goto("about:blank")
        page.goto(f"{(tmp_path / 'a.html').as_uri()}#site=up{oneStep}{AT}")
        expect(shown(page)).to_have_text(["@55", "@55"])
    page.goto("about:blank")
    page.goto(f"{(tmp_path / 'a.html').as_uri()}#view=graph&site=up{AT}")
    expect(page.get_by_test_id("graph-legend")).to_contain_text("output rms @55")
    expect(page.get_by_test_id("graph-legend")).to_contain_text("1 of other steps")  # not the attached tensor
    expect(page.get_by_test_id("site-panel").get_by_test_id("step-label").first).to_have_text("@55")
    page.goto("about:blank")
    page.goto(f"{(tmp_path / 'a.html').as_uri()}#view=heatmap&site=up{AT}")
    expect(page.get_by_test_id("heatmap-readout")).to_contain_text("@55 · up")


def test_a_statistic_is_offered_for_the_kinds_that_have_it(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&site=up&kind=output&stat=ratio")
    stat = page.get_by_test_id("stat")
    expect(stat).to_have_value("rms")
    expect(stat.locator("option", has_text="ratio")).to_have_count(0)
    for view in ("", "&view=heatmap", "&view=graph&colorKind=update"):
        page.goto(f"{address}#run=a&site=up.weight&kind=update&stat=ratio{view}")
        expect(stat).to_have_value("ratio")
    page.get_by_role("combobox", name="Kind that colors the graph").select_option("output")
    expect(stat).to_have_value("rms")
    expect(page.get_by_test_id("graph-legend")).to_contain_text("output rms")


def test_without_metrics_the_last_step_is_that_of_the_series_that_lasts_longest(visit: Visit, tmp_path: Path) -> None:
    written(tmp_path / "run")
    page = visit.page
    with PageServer(tmp_path, port=0) as server:
        page.goto(f"{server.address}#run=run")
        expect(page.get_by_test_id("last-step")).to_have_text("9")
        expect(page.get_by_test_id("site-title")).to_have_text("first")
        expect(shown(page)).to_have_text(["@4", "@4"])
        page.get_by_test_id("sites").get_by_text("second").click()
        expect(shown(page)).to_have_text(["@9", "@9"])
