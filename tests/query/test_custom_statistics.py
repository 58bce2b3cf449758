"""Custom statistics, costs, graph and last step of a run, as its user sees them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from layerscope.cli.main import main
from layerscope.errors import SelectError
from layerscope.model.records import CallEdge, CallGraph, CustomStatistics, ModuleNode, Overhead
from layerscope.query import tables
from layerscope.runs import Run
from layerscope.stats import derived
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.store.runs import series_at, summaries

VALUES = {(0, 0, "sparsity"): 0.5, (0, 2, "sparsity"): np.nan, (1, 2, "entropy"): 3.0, (0, 2, "entropy"): 4.0}


def own(step: int, rows_of_step: dict[tuple[int, str], float]) -> CustomStatistics:
    series = np.array([number for number, _ in rows_of_step], np.int32)
    return CustomStatistics(
        step, series, tuple(name for _, name in rows_of_step), np.array(list(rows_of_step.values()))
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps of three series, the first two with custom statistics at some; at step 9 there are only own ones."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    sink = FolderSink(create(folder))
    ids = [sink.series_id(series_at(place)) for place in range(3)]
    for step in range(4):
        sink.put(summaries(step, ids))
        sink.put(own(step, {(s, name): v for (s, at, name), v in VALUES.items() if at == step}))
        sink.put(Overhead(step, 0.0 if step == 0 else 0.5, 0.125, 3, 1000 + step))
    sink.put(own(9, {(2, "sparsity"): 7.0, (2, "entropy"): 8.0, (2, "MEAN"): 1.0}))
    sink.put(CallGraph((ModuleNode("", "Net", 0, ""),), (), (CallEdge("a", "output.0", "b", "input.0"),)))
    sink.close()
    return Run(folder)


def test_custom_statistics_are_further_columns_and_null_where_there_are_none(run: Run) -> None:
    table = run.stats()
    assert table.columns[-2:] == ["entropy", "sparsity"]
    found = {(r["site"], r["step"]): r for r in table.arrow().to_pylist()}
    assert len(found) == len(table) == 13
    for (site, step), row in found.items():
        if step < 4:
            expected = [VALUES.get((int(site[-1]), step, name)) for name in ("sparsity", "entropy")]
            assert [row[name] for name in ("sparsity", "entropy")] == pytest.approx(expected, nan_ok=True)
    assert table.arrow().column("sparsity").null_count == 10  # NaN is not null


def test_a_row_without_moments_has_own_statistics_and_nulls(run: Run) -> None:
    (row,) = run.stats(steps=(9, 9)).arrow().to_pylist()
    assert (row["site"], row["sparsity"], row["entropy"]) == ("layer.2", 7.0, 8.0)
    assert {row[name] for name in derived.STATS} == {None}
    assert run.stats(stat="count", steps=(9, 9)).shape[0] == 0


def test_custom_statistics_alone_give_the_rows_that_have_them(run: Run) -> None:
    table = run.stats(stat="sp*")
    assert list(zip(table["site"], table["step"], strict=True)) == [("layer.0", 0), ("layer.0", 2), ("layer.2", 9)]
    assert table.columns == ["step", *tables.IDENTITY, "sparsity"]


def test_built_in_and_own_statistics_are_chosen_together_by_name_and_glob(run: Run) -> None:
    table = run.stats("layer.0", stat=["sparsity", "zero*"], steps=(0, 3))
    assert table.columns[-3:] == ["zero_share", "zeros", "sparsity"]
    assert table.arrow().schema.field("zeros").type == pa.int64()
    assert table["step"] == [0, 1, 2, 3]


def test_a_wrong_name_is_told_the_nearest_of_all(run: Run) -> None:
    with pytest.raises(SelectError, match=r"No statistic matches 'sparsty'.*Near it: 'sparsity'"):
        run.stats(stat="sparsty")


def test_a_name_that_is_taken_is_left_out_and_every_column_is_reserved(run: Run) -> None:
    assert run.custom_statistics == ("entropy", "sparsity")
    assert run.statistics == (*derived.STATS, "entropy", "sparsity")
    assert {"step", *tables.IDENTITY, *derived.STATS} <= derived.RESERVED
    assert all(name == name.lower() for name in derived.RESERVED)


def test_a_curve_has_the_steps_that_have_the_statistic(run: Run) -> None:
    history = run.history(0)
    steps, values = history.curve("sparsity")
    assert steps.tolist() == [0, 2]
    np.testing.assert_array_equal(values, [0.5, np.nan])
    assert history.curve("count")[0].tolist() == [0, 1, 2, 3]
    assert run.history(1).curve("sparsity")[0].tolist() == []


def test_cost_has_the_share_of_each_step_and_null_for_a_step_of_no_length(run: Run) -> None:
    cost = run.overhead()
    assert cost.columns == ["step", "step_s", "recording_s", "share", "summaries", "bytes", "rank"]
    assert cost["share"] == [None, 0.25, 0.25, 0.25]
    assert cost["bytes"] == [1000, 1001, 1002, 1003]


def test_sql_sees_own_statistics_and_costs(run: Run) -> None:
    assert run.sql("select max(entropy) as top from stats where site = 'layer.1'")["top"] == [3.0]
    assert run.sql("select sum(recording_s) as s from overhead")["s"] == [0.5]


def test_the_graph_and_the_last_step_are_those_recorded(run: Run) -> None:
    graph = run.graph()
    assert graph is not None
    assert graph.edges == (CallEdge("a", "output.0", "b", "input.0"),)
    assert run.last_step == 9


def test_show_names_own_statistics_and_what_recording_took(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "custom statistics: entropy, sparsity" in shown
    assert "recording took 33.3 % of the time of 4 steps" in shown
    assert main(["show", str(run.path), "layer.2"]) == 0
    assert "sparsity" in capsys.readouterr().out
