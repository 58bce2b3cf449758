"""Named tensors of a run: every answer against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import layerscope as ls
from layerscope.model import summary_spec
from layerscope.model.records import (
    SAMPLE_STATISTICS,
    CustomStatistics,
    DependencyLink,
    Floats,
    Kind,
    Metric,
    Mode,
    NamedNode,
    Phase,
    SampleStats,
    Series,
    StepInfo,
    Summaries,
    TensorType,
    TensorValues,
    call_site,
    gradient_port,
)
from layerscope.query import history, named_tensors
from layerscope.query.named_tensors import NamedTensors, statistics_of
from layerscope.stats import derived, kernel
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink

STEPS, ITERATIONS, BATCH = range(0, 60, 10), 3, 8
CHOSEN = np.array([1, 4, 5], np.int32)
NODES = (
    NamedNode("memory", TensorType.INTERMEDIATE, (("", (BATCH, 4)),)),
    NamedNode("sums", TensorType.INPUT, (("so far", (BATCH, 2)), ("to come", (BATCH, 2)))),
    NamedNode("net", TensorType.PARAMETER, (("0.weight", (3, 4)),)),
)
LINKS = (DependencyLink("memory", "", 1, "memory", ""), DependencyLink("net", "0.weight", 0, "memory", ""))
TENSORS = ((("memory", ""), (BATCH, 4)), (("sums", "so far"), (BATCH, 2)), (("sums", "to come"), (BATCH, 2)))


def drawn(step: int, name: str, iteration: int, loss: str | None) -> npt.NDArray[np.float32]:
    shape = {"memory": (BATCH, 4), "so far": (BATCH, 2), "to come": (BATCH, 2), "0.weight": (3, 4)}[name]
    seed = [step, iteration, len(name), len(loss) + 1 if loss is not None else 0]
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def type_of(step: int) -> str:
    return "long" if step % 20 == 0 else "short"


def summed(step: int, arrays: dict[int, npt.NDArray[Any]]) -> Summaries:
    made = [kernel.summarize(array, summary_spec.SMALLEST_NORMAL["float32"]) for array in arrays.values()]
    bits = [summary_spec.encode(summary.bits) for summary in made]
    return Summaries(
        step=step,
        series=np.array([*arrays], np.int32),
        moments=np.stack([summary.moments for summary in made]),
        m=np.array([summary.bits.m for summary in made], np.uint8),
        offsets=np.cumsum([0, *map(len, bits)]),
        bits=np.frombuffer(b"".join(bits), np.uint8).copy(),
        alias=np.full(len(made), -1, np.int32),
        scale=np.ones(len(made)),
        merged=np.ones(len(made), np.int32),
    )


class Recording:
    """A run of named tensors: `memory` with all its values, `sums` with statistics of samples only."""

    def __init__(self, folder: Path, *, rank: int = 0) -> None:
        self.sink = FolderSink(create(folder, resume=True, rank=rank), compact=False)

    def number(self, site: str, port: str, kind: Kind) -> int:
        return self.sink.series_id(Series(site, port, kind, Mode.TRAIN, Phase.FORWARD, "float32", (BATCH, 4)))

    def step(self, step: int, salt: float = 0.0) -> None:
        arrays: dict[int, npt.NDArray[Any]] = {}
        for iteration in range(ITERATIONS + 1):
            for (name, role), _ in TENSORS[: 1 if iteration == 0 else None]:
                for loss in (None, "", "loss_a"):
                    kind = Kind.TENSOR if loss is None else Kind.TENSOR_GRAD
                    number = self.number(call_site(name, iteration), gradient_port(role, loss or ""), kind)
                    arrays[number] = array = drawn(step, role or name, iteration, loss) + np.float32(salt)
                    self.keep(step, number, array, whole=name == "memory")
        for kind, loss in ((Kind.WEIGHT, None), (Kind.WEIGHT_GRAD, "")):
            number = self.number("net.0.weight", kind.value, kind)
            arrays[number] = drawn(step, "0.weight", 1, loss) + np.float32(salt)
        self.sink.put(summed(step, arrays))
        ids = np.array([*arrays], np.int32)
        self.sink.put(CustomStatistics(step, ids, ("own",) * len(ids), ids.astype(np.float64) + step / 100))
        self.sink.put(Metric(step, "loss", 1.0, float(step), type_of(step)))
        graphs = tuple(self.sink.dependencies_id(NODES[: 1 + min(k, 2)], LINKS[:k]) for k in range(ITERATIONS))
        info = StepInfo(step, type_of(step), ITERATIONS, BATCH, (*graphs, -1), (1, 4, 5), (), ("", "loss_a"), "why")
        self.sink.put(info)

    def keep(self, step: int, number: int, array: npt.NDArray[np.float32], *, whole: bool) -> None:
        if whole:
            self.sink.put(TensorValues.one(step, number, CHOSEN, array[CHOSEN]))
            return
        found = array[CHOSEN].astype(np.float64)
        columns = [found.mean(1), np.abs(found).mean(1), found.std(1), np.abs(found).max(1)]
        self.sink.put(SampleStats(step, number, CHOSEN, np.stack(columns, 1)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("named") / "run"
    recording = Recording(path)
    for step in STEPS:
        recording.step(step)
    recording.sink.close()
    return path


@pytest.fixture
def named(folder: Path) -> NamedTensors:
    return ls.open(folder).named()


PLAIN: dict[str, Callable[[Floats], Any]] = {
    "mean": np.mean,
    "mean_abs": lambda x: np.abs(x).mean(),
    "std": np.std,
    "rms": lambda x: np.sqrt(np.mean(x**2)),
    "norm": np.linalg.norm,
    "min": np.min,
    "max": np.max,
    "abs_max": lambda x: np.abs(x).max(),
    "nan": lambda x: np.isnan(x).sum(),
    "count": np.size,
}


def check(found: dict[str, float], array: npt.NDArray[Any], names: tuple[str, ...] = tuple(PLAIN)) -> None:
    wide = array.astype(np.float64).ravel()
    for name in names:
        np.testing.assert_allclose(found[name], PLAIN[name](wide), rtol=1e-12, err_msg=name)


def test_steps_types_and_graphs_are_those_recorded(named: NamedTensors) -> None:
    assert named.types() == ["long", "short"]
    table = named.steps()
    assert table.columns == ["step", "type", "iterations", "batch", "samples", "categories", "losses", "reason"]
    assert table["step"] == [*STEPS]
    assert named.steps("short")["step"] == [10, 30, 50]
    assert named.steps("none").shape == (0, 8)
    assert (table["samples"][0], table["losses"][0]) == ([1, 4, 5], ["", "loss_a"])
    graph = named.graph(20, 2)
    assert graph is not None
    assert (graph.nodes, graph.links) == (NODES, LINKS)
    assert [named.graph(*at) for at in ((20, 3), (20, 4), (20, -1), (21, 1))] == [None] * 4
    assert len(named.graphs()) == ITERATIONS


@pytest.mark.parametrize("loss", [None, "", "loss_a"])
@pytest.mark.parametrize(("name", "role"), [tensor for tensor, _ in TENSORS])
def test_statistics_over_the_batch_are_those_of_all_values(
    named: NamedTensors, name: str, role: str, loss: str | None
) -> None:
    for step in (0, 40):
        for iteration in (1, 3):
            found = named.statistics(step, name, role, iteration, loss)
            check(found, drawn(step, role or name, iteration, loss))
            assert set(found) == {*derived.STATS, "own"}
    assert named.statistics(1, name, role, 1, loss) == named.statistics(0, name, role, 9, loss) == {}
    assert named.statistics(0, "nobody") == {}


def test_statistics_of_one_sample_come_from_its_values_or_from_what_was_kept_in_their_place(
    named: NamedTensors,
) -> None:
    for step in (0, 50):
        for sample in (1, 5):
            check(named.statistics(step, "memory", "", 2, "", sample), drawn(step, "memory", 2, "")[sample])
            found = named.statistics(step, "sums", "to come", 2, None, sample)
            check(found, drawn(step, "to come", 2, None)[sample], SAMPLE_STATISTICS)
            assert tuple(found) == SAMPLE_STATISTICS
    assert named.statistics(0, "memory", sample=0) == named.statistics(0, "sums", "so far", sample=0) == {}


def test_a_parameter_is_found_by_its_node_in_every_iteration_and_has_no_samples(named: NamedTensors) -> None:
    for iteration in (1, 3):
        for sample in (None, 4):
            for name in ("net", "net."):
                found = named.statistics(30, name, "0.weight", iteration, sample=sample)
                check(found, drawn(30, "0.weight", 1, None))
        check(named.statistics(30, "net", "0.weight", iteration, ""), drawn(30, "0.weight", 1, ""))
        assert named.statistics(30, "net", "0.weight", iteration, "loss_a") == {}  # which was not recorded
    steps, values = named.history("net", "mean", "0.weight", sample=4)
    assert steps.tolist() == [*STEPS]
    np.testing.assert_allclose(values, [drawn(step, "0.weight", 1, None).astype(float).mean() for step in STEPS])


def test_values_are_those_of_the_chosen_samples(named: NamedTensors) -> None:
    for loss in (None, "loss_a"):
        for iteration in range(ITERATIONS + 1):
            for step in (*STEPS, 20):
                kept = named.values(step, "memory", "", iteration, loss)
                assert kept is not None
                assert kept.samples.tolist() == [1, 4, 5]
                np.testing.assert_array_equal(kept.array, drawn(step, "memory", iteration, loss)[CHOSEN])
    assert named.values(5, "memory") is named.values(0, "sums", "so far") is named.values(0, "x") is None


@pytest.mark.parametrize("type_", [None, "long"])
def test_a_history_is_the_statistic_at_each_step(named: NamedTensors, type_: str | None) -> None:
    chosen = [step for step in STEPS if type_ in (None, type_of(step))]
    for sample in (None, 4):
        for name, role, statistic in (("memory", "", "rms"), ("sums", "so far", "std")):
            steps, values = named.history(name, statistic, role, 2, "", sample, type_)
            assert steps.tolist() == chosen
            arrays = [drawn(step, role or name, 2, "") for step in chosen]
            wide = [(array if sample is None else array[sample]).astype(float) for array in arrays]
            np.testing.assert_allclose(values, [PLAIN[statistic](array) for array in wide], rtol=1e-12)
    steps, values = named.history("memory", "own", "", 2, type=type_)
    assert steps.tolist() == chosen
    assert len(set(values - steps / 100)) == 1


def test_a_history_of_what_is_not_there_is_empty_or_nan(named: NamedTensors) -> None:
    assert [len(column) for column in named.history("memory", "nobody's")] == [0, 0]
    assert [len(column) for column in named.history("nobody", "mean")] == [0, 0]
    assert len(named.history("memory", "mean", sample=0)[0]) == 0
    assert np.isnan(named.history("sums", "kurtosis", "so far", sample=4)[1]).all()


def test_large_series_are_read_in_bounded_pieces_and_give_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ls.open(folder).named().history("memory", "mean", sample=5)
    for name, most in (
        ("_SERIES_BYTES", 1),
        ("_BYTES_AT_ONCE", 100),
        ("_STEPS", 2),
        ("_ROWS_AT_ONCE", 1),
        ("_BLOCKS", 1),
    ):
        monkeypatch.setattr(history if hasattr(history, name) else named_tensors, name, most)
    named = ls.open(folder).named()
    for step in STEPS:
        assert named.values(step, "memory") is not None
    pieces = [*named._values.all(named._numbers("memory", "", 1, None))]
    assert [len(piece) for piece in pieces] == [2, 2, 2]
    for ours, theirs in zip(named.history("memory", "mean", sample=5), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_growing_run_gives_new_answers_and_an_unchanged_one_the_same_object(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "run")
    recording.step(0)
    recording.sink.flush()
    run = ls.open(tmp_path / "run")
    before = run.named()
    assert run.named() is before
    recording.step(10)
    recording.sink.flush()
    assert run.named().steps()["step"] == [0, 10]
    assert len(run.named().history("memory", "mean")[0]) == 2
    recording.sink.close()


def test_what_a_later_session_recorded_again_counts(tmp_path: Path) -> None:
    for salt, steps in ((0.0, (0, 10)), (7.0, (10, 20))):
        recording = Recording(tmp_path / "run")
        for step in steps:
            recording.step(step, salt)
        recording.sink.close()
    named = ls.open(tmp_path / "run").named()
    for sample in (None, 4):
        means = named.history("memory", "mean", sample=sample)[1]
        assert (means.round(-1) == [0, 10, 10]).all()
    assert named.steps()["step"] == [0, 10, 20]


def test_a_tensor_whose_type_of_number_changed_is_one_history(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    for step, dtype in enumerate(("float32", "float16", "float32")):
        number = sink.series_id(Series("a", "tensor", Kind.TENSOR, Mode.TRAIN, Phase.FORWARD, dtype, (2,)))
        array = np.array([step, step + 1], dtype)
        sink.put(summed(step, {number: array}))
        sink.put(CustomStatistics(step, np.array([number], np.int32), ("own",), np.array([step + 0.5])))
        sink.put(TensorValues.one(step, number, np.array([0, 1], np.int32), array))
        sink.put(StepInfo(step, "step", 1, 2, (), (0, 1), (), (), ""))
    sink.close()
    named = ls.open(tmp_path / "run").named()
    assert [column.tolist() for column in named.history("a", "mean")] == [[0, 1, 2], [0.5, 1.5, 2.5]]
    assert [column.tolist() for column in named.history("a", "own")] == [[0, 1, 2], [0.5, 1.5, 2.5]]
    assert [column.tolist() for column in named.history("a", "max", sample=1)] == [[0, 1, 2], [1, 2, 3]]
    assert [kept.array.dtype.name for step in range(3) if (kept := named.values(step, "a"))] == [
        "float32",
        "float16",
        "float32",
    ]


def test_a_run_of_several_ranks_answers_with_the_first(tmp_path: Path) -> None:
    for rank, salt in ((0, 0.0), (1, 100.0)):
        recording = Recording(tmp_path / "run", rank=rank)
        recording.step(0, salt)
        recording.sink.close()
    named = ls.open(tmp_path / "run").named()
    check(named.statistics(0, "memory"), drawn(0, "memory", 1, None))
    assert named.steps()["step"] == [0]


def test_a_run_without_named_tensors_has_no_steps(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    sink.put(Metric(1, "loss", 1.0, 1.0))
    sink.close()
    run = ls.open(tmp_path / "run")
    assert (run.named().types(), len(run.steps()), len(run.values()), run.named().graphs()) == ([], 0, 0, [])
    assert run.named().statistics(1, "x") == {}


@pytest.mark.parametrize(
    "array",
    [
        np.array([[np.nan, np.inf, -np.inf, 0.0, 2.0]]),
        np.array([[np.nan, np.nan]]),
        np.zeros((1, 0)),
        np.array([[True, False, True]]),
        np.array([[-3, 0, 7]], np.int8),
        np.array([[2**62, 1]], np.uint64),
        np.array([[1e-40, 1.0, 0.0]], np.float32),
        np.array([[1e200, -1e200]]),
    ],
)
def test_statistics_of_a_sample_are_those_of_a_summary_of_it(array: npt.NDArray[Any]) -> None:
    found = statistics_of(array)
    moments = kernel.summarize(array, summary_spec.SMALLEST_NORMAL[array.dtype.name]).moments
    for name in derived.STATS:
        expected = derived.statistic(
            name, lambda column: moments[summary_spec.COLUMN[column] : summary_spec.COLUMN[column] + 1]
        )
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, err_msg=name)


def test_the_spread_of_a_narrow_sample_is_exact_and_complex_numbers_count_by_magnitude() -> None:
    narrow = 1e6 + np.array([[1e-5, 2e-5, 3e-5]])
    np.testing.assert_allclose(statistics_of(narrow)["std"], narrow.std(), rtol=1e-9)
    assert statistics_of(np.array([[3 + 4j], [0j]]))["max"].tolist() == [5.0, 0.0]


def test_values_as_a_table_have_a_row_for_each_tensor_and_step(folder: Path, tmp_path: Path) -> None:
    run = ls.open(folder)
    table = run.values("memory*", kind="tensor", steps=(0, 10))
    assert table.columns[:4] == ["step", "site", "port", "kind"]
    assert sorted(set(table["site"])) == ["memory", "memory#0", "memory#2", "memory#3"]
    assert len(table) == 2 * (ITERATIONS + 1)
    for step, site, samples, shape, value in zip(
        *(table[name] for name in ("step", "site", "samples", "shape", "value")), strict=True
    ):
        iteration = int(site.partition("#")[2] or 1)
        np.testing.assert_array_equal(np.reshape(value, shape), drawn(step, "memory", iteration, None)[samples])
    sink = FolderSink(create(tmp_path / "complex"))
    number = sink.series_id(Series("z", "tensor", Kind.TENSOR, Mode.TRAIN, Phase.FORWARD, "complex64", (2,)))
    sink.put(TensorValues.one(0, number, np.zeros(0, np.int32), np.array([1 + 2j, 3j], np.complex64)))
    sink.close()
    found = ls.open(tmp_path / "complex").values()
    assert (found["shape"], found["value"]) == ([[2, 2]], [[1.0, 2.0, 0.0, 3.0]])


def test_metrics_tell_the_type_of_their_step_and_sql_knows_the_steps(folder: Path) -> None:
    run = ls.open(folder)
    assert run.metrics().columns == ["step", "time_s", "type", "loss"]
    assert run.metrics()["type"] == [type_of(step) for step in STEPS]
    found = run.sql("select type, count(*) as n from steps group by type order by type")
    assert (found["type"], found["n"]) == (["long", "short"], [3, 3])


def test_named_tensors_stand_beside_modules_in_one_table(folder: Path) -> None:
    table = ls.open(folder).stats(["memory", "net.0.weight"], stat=["mean", "own"], steps=(20, 20))
    assert sorted(zip(table["site"], table["port"], table["kind"], strict=True)) == [
        ("memory", "tensor", "tensor"),
        ("memory", "tensor", "tensor_grad"),
        ("memory", "tensor@loss_a", "tensor_grad"),
        ("net.0.weight", "weight", "weight"),
        ("net.0.weight", "weight_grad", "weight_grad"),
    ]


@pytest.mark.parametrize("last", ["short", "long"])
def test_a_tensor_without_a_batch_keeps_its_curve_when_a_sample_is_chosen_whatever_the_last_step_is_of(
    tmp_path: Path, last: str
) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    number = sink.series_id(Series("scale", "tensor", Kind.TENSOR, Mode.TRAIN, Phase.FORWARD, "float32", ()))
    for step, type_ in enumerate(("long", "long", "long", last)):
        array = np.array(step, np.float32)
        if type_ == "long" and step < 3:
            sink.put(summed(step, {number: array}))
        if type_ == "long" and step < 2:  # at step 2 there was no room for it
            sink.put(TensorValues.one(step, number, np.zeros(0, np.int32), array))
        sink.put(StepInfo(step, type_, 1, 2, (), (0, 1), (), (), ""))
    sink.close()
    named = ls.open(tmp_path / "run").named()
    for wanted in (None, "long"):
        assert [column.tolist() for column in named.history("scale", "mean", sample=1, type=wanted)] == [
            [0, 1, 2],
            [0, 1, 2],
        ]
