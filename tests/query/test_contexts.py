"""Series of different contexts stay apart in tables, SQL, heat maps, findings and saved reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerscope.cli.main import main
from layerscope.diagnose.rules import check
from layerscope.errors import SelectError
from layerscope.model.records import CallGraph, Kind, Metric, Mode, ModuleNode, Phase, Series
from layerscope.query.matrix import Question, matrix
from layerscope.runs import Run
from layerscope.server.one_file import OfflineApi, report
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from tests.server.runs import summaries

STEPS = 20
LEVEL = {"real": 1.0, "fake": -3.0, "": 4.0}


def series(context: str, site: str = "d", kind: Kind = Kind.OUTPUT) -> Series:
    """One tensor in a context."""
    return Series(site, f"{kind.value}.0", kind, Mode.TRAIN, Phase.FORWARD, "float64", (64,), context)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run in which one output has a level of its own in each context; in `fake` the unit behind it is dead."""
    path = tmp_path / "runs" / "gan"
    sink = FolderSink(create(path))
    sink.put(CallGraph((ModuleNode("(model)", "D", 0, ""), ModuleNode("act", "ReLU", 0, ""))))
    noise = np.random.default_rng(0)
    for step in range(STEPS):
        made = [noise.normal(level, 0.1, 64) for level in LEVEL.values()]
        numbers = [sink.series_id(series(context)) for context in LEVEL]
        numbers += [sink.series_id(series(context, "act")) for context in LEVEL]
        sink.put(summaries(step, numbers, [*made, *(np.maximum(tensor, 0.0) for tensor in made)]))
        sink.put(Metric(step, "loss", 1.0 / (step + 1), float(step)))
    sink.close()
    return path


@pytest.mark.parametrize("compacted", [False, True], ids=["segments", "parts"])
def test_each_context_has_rows_of_its_own_in_every_table(folder: Path, *, compacted: bool) -> None:
    if compacted:
        compact(folder)
    run = Run(folder)
    for context, level in LEVEL.items():
        table = run.stats("d", stat="mean", context=context)
        assert set(table["context"]) == {context}
        np.testing.assert_allclose(table["mean"], np.full(STEPS, level), atol=0.1)
        for other in (run.histograms, run.quantiles, run.exponents):
            assert set(other("d", context=context)["context"]) == {context}
    assert len(run.stats("d", stat="mean")) == STEPS * len(LEVEL)
    assert len(run.stats("d", stat="mean", context=["r*", "fake"])) == STEPS * 2
    found = run.sql("select context, avg(mean) as level from stats where site = 'd' group by context")
    assert dict(zip(found["context"], np.round(found["level"]), strict=True)) == {"real": 1, "fake": -3, "": 4}


def test_an_unknown_context_is_named_with_those_there_are(folder: Path) -> None:
    with pytest.raises(SelectError, match=r"No context matches 'fakes'.*3 contexts.*'fake'"):
        Run(folder).stats("d", context="fakes")


def test_a_resumed_run_goes_on_with_the_series_of_each_context(folder: Path) -> None:
    before = {(row["site"], row["context"]): row["series"] for row in Run(folder).series().arrow().to_pylist()}
    sink = FolderSink(create(folder, resume=True))
    assert {context: sink.series_id(series(context)) for context in LEVEL} == {
        context: before["d", context] for context in LEVEL
    }
    assert sink.series_id(series("real/late")) not in before.values()
    sink.close()


def test_a_heat_map_has_the_tensors_of_one_context(folder: Path) -> None:
    reader = Reader(folder)
    for context, level in LEVEL.items():
        found = matrix(reader, Question("output", "mean", context=context))
        assert found.tensors == (("d", "output.0"), ("act", "output.0"))
        np.testing.assert_allclose(found.values[:, 0], level, atol=0.1)


def test_a_rule_judges_each_context_by_itself(folder: Path) -> None:
    (dead,) = [found for found in check(folder).findings if found.rule == "dead_units"]
    assert (dead.site, dead.context) == ("act", "fake")
    assert "'act' (ReLU) in context 'fake'" in dead.title
    assert {each.context for each in dead.evidence} == {"fake"}


def test_the_terminal_lists_contexts_and_shows_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder)]) == 0
    assert "contexts: real, fake" in capsys.readouterr().out
    assert main(["show", str(folder), "d", "--context", "fake", "--stat", "mean"]) == 0
    shown = capsys.readouterr().out
    assert "fake" in shown and "real" not in shown and f"{STEPS} rows" in shown


def test_a_saved_report_answers_for_every_context(folder: Path) -> None:
    assert report(folder).holds == "6 of 6 histories"
    answers = OfflineApi(folder)
    try:
        for context in LEVEL:
            where = {"kind": "output", "stat": "mean", "mode": "train", "context": context}
            assert answers.ask("api/run/gan/heatmap", {**where, "width": 40, "height": 8})
    finally:
        answers.close()
