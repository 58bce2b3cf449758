"""How much of an evaluation is in the numbers stands beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

import layerscope as ls
from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit

pytestmark = pytest.mark.browser


def test_a_series_of_evaluations_says_how_many_forwards_were_recorded(visit: Visit, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout())
    with ls.watch(model, to=tmp_path / "run", every=10) as run:
        for step in range(30):
            model.train()(torch.randn(5, 4)).sum().backward()
            run.step(loss=1.0)
            if step in (4, 24):
                for name, batches in (("valid", 20 + step), ("test", 3)):
                    with run.context(name), torch.no_grad():
                        for _ in range(batches):
                            model.eval()(torch.randn(5, 4))
    page = visit.page
    with PageServer(tmp_path, port=0) as server:
        for step, context, text in ((24, "valid", "16 of 44"), (4, "valid", "16 of 24"), (24, "test", "3 of 3")):
            page.goto(f"{server.address}#run=run&site=1&kind=output&mode=eval&context={context}&step={step}")
            expect(page.get_by_test_id("forwards")).to_have_text(f"{text} forwards")
            page.goto("about:blank")
        page.goto(f"{server.address}#run=run&site=1&kind=output&mode=train")
        expect(page.get_by_test_id("site-title")).to_have_text("1")
        expect(page.get_by_test_id("forwards")).to_have_count(0)
