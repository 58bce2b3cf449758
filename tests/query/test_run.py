from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import layerscope as ls
from layerscope.errors import ArgumentError, SelectError
from layerscope.model.records import Floats
from layerscope.query.matrix import Question, matrix
from layerscope.store.reader import Reader

STEPS = 12


class Watched:
    """A recorded training, and every output, weight and gradient of it as plain numpy."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.truth: dict[tuple[str, str, int], Floats] = {}
        with ls.watch(model, optimizer, to=folder, every=1) as recorder:
            for step in range(STEPS):
                x = torch.randn(32, 6)
                for name, module in model.named_children():
                    x = module(x)
                    self.truth[name, "output", step] = x.detach().double().numpy().copy()
                loss = x.square().mean()
                loss.backward()
                for name, parameter in model.named_parameters():
                    assert parameter.grad is not None
                    self.truth[name, "weight_grad", step] = parameter.grad.double().numpy().copy()
                optimizer.step()
                optimizer.zero_grad()
                for name, parameter in model.named_parameters():
                    self.truth[name, "weight", step] = parameter.detach().double().numpy().copy()
                recorder.step(loss=loss, **({"lr": 0.05} if step % 2 else {}))
        self.run = ls.open(folder)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(tmp_path_factory.mktemp("runs") / "run")


STATISTICS = {
    "mean": np.mean,
    "std": np.std,
    "rms": lambda x: np.sqrt(np.mean(x**2)),
    "norm": np.linalg.norm,
    "mean_abs": lambda x: np.mean(np.abs(x)),
    "abs_max": lambda x: np.abs(x).max(),
    "min": np.min,
    "max": np.max,
    "zero_share": lambda x: np.mean(x == 0),
    "kurtosis": lambda x: np.mean((x - x.mean()) ** 4) / np.var(x) ** 2,
}


@pytest.mark.feature("T1")
@pytest.mark.parametrize("stat", STATISTICS)
def test_a_statistic_is_that_of_the_tensor(stat: str, watched: Watched) -> None:
    rows = watched.run.stats(stat=stat).pandas()
    assert len(rows) == len(watched.truth)
    for row in rows.itertuples():
        truth = watched.truth[row.site, row.kind, row.step]
        expected = STATISTICS[stat](truth.ravel())  # type: ignore[operator]  # each takes one array
        assert getattr(row, stat) == pytest.approx(expected, rel=1e-5, abs=1e-9), row


def test_rows_come_in_order_of_appearance_and_step(watched: Watched) -> None:
    rows = watched.run.stats(kind="output", stat="rms")
    assert rows["site"] == [site for site in ("0", "1", "2") for _ in range(STEPS)]
    assert rows["step"] == list(range(STEPS)) * 3


def test_sites_kinds_and_steps_are_chosen_by_name_glob_and_range(watched: Watched) -> None:
    rows = watched.run.stats(["0.*", "2.bias"], kind="weight*", stat=["rms", "count"], steps=(3, 5))
    assert set(rows["site"]) == {"0.weight", "0.bias", "2.bias"}
    assert set(rows["kind"]) == {"weight", "weight_grad"}
    assert set(rows["step"]) == {3, 4, 5}
    assert rows.columns[-2:] == ["count", "rms"]
    assert set(watched.run.stats("0.bias", stat="rms", steps=np.array([1, 7]))["step"]) == {1, 7}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sites": "layers.0"}, "No site matches 'layers.0'"),
        ({"kind": "activation"}, "No kind matches 'activation'"),
        ({"stat": "variance"}, "No statistic matches 'variance'"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(words: dict[str, str], message: str, watched: Watched) -> None:
    with pytest.raises(SelectError, match=message):
        watched.run.stats(words.get("sites", "*"), kind=words.get("kind"), stat=words.get("stat"))


def test_histograms_hold_every_finite_element_near_its_bin(watched: Watched) -> None:
    rows = watched.run.histograms("2", kind="output", bins=16).pandas()
    assert len(rows) == STEPS
    for row in rows.itertuples():
        truth = watched.truth["2", "output", row.step].ravel()
        expected, _ = np.histogram(truth, row.edges)
        assert sum(row.counts) == pytest.approx(len(truth))
        assert np.abs(np.cumsum(row.counts) - np.cumsum(expected)).max() <= 0.25 * len(truth)
    assert len({tuple(edges) for edges in rows["edges"]}) == 1


def test_zeros_are_in_the_bin_that_holds_zero(watched: Watched) -> None:
    row = watched.run.histograms("1", kind="output", bins=8, steps=(0, 0)).pandas().iloc[0]
    truth = watched.truth["1", "output", 0]
    assert row.edges[0] == 0.0
    assert row.counts[0] >= np.sum(truth == 0)


def test_exponents_are_exact(watched: Watched) -> None:
    rows = watched.run.exponents("0.weight", kind="weight", steps=(4, 4)).pandas()
    truth = watched.truth["0.weight", "weight", 4].ravel()
    exponent, count = np.unique(np.floor(np.log2(np.abs(truth[truth != 0]))), return_counts=True)
    assert dict(zip(rows["exponent"], rows["count"], strict=True)) == dict(zip(exponent, count, strict=True))


def test_a_metric_that_a_step_lacked_is_null_and_one_that_was_nan_is_nan(tmp_path: Path) -> None:
    with ls.watch(nn.Linear(1, 1), to=tmp_path / "run") as recorder:
        recorder.step(loss=float("nan"))
        recorder.step(other=1.0)
    metrics = ls.open(tmp_path / "run").metrics()
    assert np.isnan(metrics["loss"][0])
    assert metrics["loss"][1] is None
    assert metrics["other"] == [None, 1.0]


def test_metrics_are_one_row_per_step(watched: Watched) -> None:
    metrics = watched.run.metrics()
    assert metrics.columns == ["step", "time_s", "type", "loss", "lr"]
    assert metrics["step"] == list(range(STEPS))
    assert metrics["lr"][:2] == [None, 0.05]
    assert watched.run.metrics("loss").columns == ["step", "time_s", "type", "loss"]


def test_sql_sees_the_views_and_nothing_else(watched: Watched, tmp_path: Path) -> None:
    answer = watched.run.sql(
        "select site, max(rms) as top from stats where kind = 'output' group by site order by site"
    )
    assert answer["site"] == ["0", "1", "2"]
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(SelectError, match="The query failed"):
        watched.run.sql(f"select * from '{tmp_path / 'secret.csv'}'")
    with pytest.raises(SelectError, match="The views are: stats"):
        watched.run.sql("select * from nowhere")


def test_a_table_becomes_any_data_frame(watched: Watched) -> None:
    table = watched.run.stats("0", stat="rms")
    assert table.shape == (STEPS, 11)
    assert isinstance(table.arrow(), pa.Table)
    assert table.pandas().shape == table.polars().shape == table.shape
    assert "<td>0</td>" in table._repr_html_()
    assert repr(table).splitlines()[0].split()[:2] == ["step", "site"]


def test_a_history_has_statistics_and_bit_counts_of_every_step(watched: Watched) -> None:
    series = watched.run.series()
    (number,) = [
        n for n, s, k in zip(series["series"], series["site"], series["kind"], strict=True) if (s, k) == ("2", "output")
    ]
    history = watched.run.history(number)
    assert history.steps.tolist() == list(range(STEPS))
    bits = history.bits.decoded()
    assert np.bincount(bits.row, bits.counts).tolist() == [64.0] * STEPS
    assert history.stat("count").tolist() == [64.0] * STEPS


def test_an_empty_run_gives_empty_tables(tmp_path: Path) -> None:
    with ls.watch(nn.Linear(1, 1), to=tmp_path / "run"):
        pass
    run = ls.open(tmp_path / "run")
    assert [len(t) for t in (run.stats(), run.metrics(), run.histograms(), run.exponents(), run.events())] == [0] * 5


@pytest.mark.feature("E8")
def test_a_resumed_run_has_one_history(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for first in (0, 3):
        with ls.watch(model, to=tmp_path / "run", every=1, resume=True) as recorder:
            assert recorder.current_step == first
            for step in range(3):
                model(torch.randn(1, 2))
                recorder.step(loss=first + step)
    run = ls.open(tmp_path / "run")
    assert run.metrics()["loss"] == [0, 1, 2, 3, 4, 5]
    assert run.stats("(model)", stat="rms")["step"] == [0, 1, 2, 3, 4, 5]


@pytest.mark.feature("T1")
def test_quantiles_are_those_of_the_tensor_to_within_a_bucket(watched: Watched) -> None:
    shares = (0, 0.1, 0.5, 0.9, 1)
    table = watched.run.quantiles("0", kind="output", shares=shares).pandas()
    assert len(table) == STEPS
    for _, row in table.iterrows():
        values = watched.truth["0", "output", row["step"]]
        for share in shares:
            truth = np.quantile(values, share, method="nearest")
            assert row[f"q{share:g}"] == pytest.approx(truth, rel=0.13, abs=0.02)
    assert table["q0"].tolist() == pytest.approx([watched.truth["0", "output", s].min() for s in table["step"]])


def test_a_share_that_is_none_is_refused(watched: Watched) -> None:
    with pytest.raises(ArgumentError, match="50 is no share"):
        watched.run.quantiles(shares=[50])


def test_a_mean_is_read_back_where_its_sum_has_left_float64(tmp_path: Path) -> None:
    values = torch.tensor([1e308, 1.5e308, -4e307], dtype=torch.float64)
    with ls.watch(None, to=tmp_path / "run", every=1) as recorder:
        for factor in (1.0, 1e-308):
            recorder.record("x", values * factor, batch_dim=None)
            recorder.step()
    run = ls.open(tmp_path / "run")
    means = [float((values / 3).sum()), 0.7]
    assert run.stats("x", stat="mean")["mean"] == pytest.approx(means, rel=1e-12)
    assert run.stats("x", stat=["rms", "mean"])["mean"] == pytest.approx(means, rel=1e-12)
    assert run.named().statistics(0, "x")["mean"] == pytest.approx(means[0], rel=1e-12)
    shown = matrix(Reader(tmp_path / "run"), Question("tensor", "mean")).values  # in float32, and no further
    assert shown[:, 0] == pytest.approx([np.finfo(np.float32).max, 0.7])
