"""What is kept of a chart says of which tensor it is."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from layerscope.model.records import Kind, Mode, Phase, Series
from layerscope.server.serve import PageServer
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.browser.conftest import Visit
from tests.server.runs import summaries, tensor_at

pytestmark = pytest.mark.browser
SERIES = (
    ("output.0", Kind.OUTPUT, Mode.TRAIN),
    ("output.1", Kind.OUTPUT, Mode.TRAIN),
    ("output.0", Kind.OUTPUT, Mode.EVAL),
    ("output.0", Kind.OUTPUT_GRAD, Mode.TRAIN),
)
LONG = "block." * 40 + "fc"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A run with two sites, one of them of a long name, of two kinds, ports and modes each."""
    sink = FolderSink(create(tmp_path / "run"))
    numbers = [
        sink.series_id(Series(site, port, kind, mode, Phase.FORWARD, "float64", (500,)))
        for site in ("fc", LONG)
        for port, kind, mode in SERIES
    ]
    for step in range(12):
        sink.put(summaries(step, numbers, [tensor_at(step)] * len(numbers)))
    sink.close()
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def kept(page: Page, button: Locator) -> tuple[str, str]:
    """Name and text of the file that a button gives."""
    with page.expect_download() as download:
        button.click()
    return download.value.suggested_filename, Path(download.value.path()).read_text("utf-8")


def column(text: str, name: str) -> set[str]:
    return {row[name] for row in csv.DictReader(text.splitlines())}


@pytest.mark.parametrize(
    ("chosen", "tensor"),
    [
        ("kind=output", "fc output output.0"),
        ("kind=output&port=output.1", "fc output output.1"),
        ("kind=output&mode=eval", "fc output output.0 eval"),
        ("kind=output_grad", "fc output_grad"),
    ],
)
def test_files_and_their_columns_name_the_tensor(visit: Visit, address: str, chosen: str, tensor: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run&site=fc&{chosen}&port=output.0")
    name = tensor.replace(" ", "_")
    statistic = page.get_by_role("region", name="Statistic over the steps")
    histogram = page.get_by_role("region", name="Histogram over time")
    file, text = kept(page, statistic.get_by_role("button", name="CSV"))
    assert file == f"run_{name}_rms.csv"
    assert column(text, "curve") == {f"{tensor} rms"}
    file, text = kept(page, histogram.get_by_role("button", name="CSV"))
    assert file == f"run_{name}_histogram.csv"
    assert column(text, "tensor") == {tensor}
    file, text = kept(page, histogram.get_by_role("button", name="SVG"))
    assert file == f"run_{name}_histogram.svg"
    assert f">run {tensor} histogram<" in text
    page.goto(f"{address}#run=run&site=fc&{chosen}&port=output.0&oneStep=1&step=7")
    single = page.get_by_test_id("histograms")
    expect(single).to_contain_text("@7")
    file, text = kept(page, single.get_by_role("button", name="CSV"))
    assert file == f"run_{name}_step_7.csv"
    assert (column(text, "tensor"), column(text, "step")) == ({tensor}, {"7"})


def test_training_and_evaluation_have_their_own_curves_in_one_file(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run&site=fc&kind=output&port=output.0&overlay=1")
    expect(page.get_by_test_id("mode-eval")).to_be_visible()
    statistic = page.get_by_role("region", name="Statistic over the steps")
    file, text = kept(page, statistic.get_by_role("button", name="CSV"))
    assert file == "run_fc_output_output.0_and_fc_output_output.0_eval_rms.csv"
    assert column(text, "curve") == {"fc output output.0 rms", "fc output output.0 eval rms"}


def test_a_long_name_keeps_its_end(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run&site={LONG}&kind=output_grad")
    statistic = page.get_by_role("region", name="Statistic over the steps")
    file, _ = kept(page, statistic.get_by_role("button", name="CSV"))
    assert file.startswith("run_block.")
    assert file.endswith(".fc_output_grad_rms.csv")
    assert len(file) <= len("x" * 120 + ".csv")
