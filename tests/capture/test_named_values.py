"""What is kept of a named tensor: values as they were, statistics as float64 gives them, gradients of each loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerscope.capture.named import Depth
from layerscope.records import BATCH_STATISTICS, Cost, Kind, Mode, SampleStats, Value
from tests.capture.naming import per_sample, recording

KINDS = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64]


def test_a_value_is_that_of_the_moment_it_was_recorded() -> None:
    with recording() as (sink, run):
        x = torch.randn(8, 3)
        before = x.clone()
        assert run.record("x", x) is x
        x.mul_(2)
        run.record("later", x)
        x.zero_()
        run.step()
    assert np.array_equal(sink.value(0, "x").array, before[:5])
    assert np.array_equal(sink.value(0, "later").array, 2 * before[:5])
    assert sink.value(0, "x").samples.tolist() == [0, 1, 2, 3, 4]
    assert sink.stat("max", "later", Kind.TENSOR) == pytest.approx(float(2 * before.max()))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_tensors_of_every_type_are_welcome(dtype: torch.dtype) -> None:
    x = (torch.randn(6, 4) * 10).to(dtype)
    with recording() as (sink, run):
        run.record("x", x, depth="all")
        run.step()
    wide = x.to(torch.complex64) if dtype.is_complex else x.double()
    assert np.array_equal(sink.value(0, "x").array.astype(wide.numpy().dtype), wide.numpy())
    assert sink.extras(0, "x")["mean_of_sample_abs_max"] == pytest.approx(float(wide.abs().amax(1).double().mean()))
    assert not sink.warnings()


def test_bool_and_whole_numbers_stay_what_they_are() -> None:
    with recording() as (sink, run):
        run.record("mask", torch.tensor([True, False]))
        run.record("ids", torch.arange(4))
        run.step()
    assert sink.value(0, "mask").array.dtype == np.bool_
    assert sink.value(0, "ids").array.dtype == np.int64


@pytest.mark.parametrize(("shape", "batch_dim"), [((4, 3, 5, 2), 0), ((3, 7, 2), 1), ((3, 2, 7), -1), ((9,), 0)])
def test_samples_come_first_wherever_the_batch_is(shape: tuple[int, ...], batch_dim: int) -> None:
    x = torch.randn(shape)
    with recording(depth=Depth(samples=3)) as (sink, run):
        run.record("x", x, batch_dim=batch_dim)
        run.step()
    first = x.movedim(batch_dim, 0).numpy()
    assert np.array_equal(sink.value(0, "x").array, first[:3])
    expected = per_sample(first)
    found = sink.extras(0, "x")
    over = {"mean": expected.mean(0), "std": expected.std(0), "abs_max": np.abs(expected).max(0)}
    for column, statistic in enumerate(("mean", "mean_abs", "std", "abs_max")):
        for name, numbers in over.items():
            assert found[f"{name}_of_sample_{statistic}"] == pytest.approx(numbers[column], rel=1e-9, abs=1e-12)
    assert set(found) == set(BATCH_STATISTICS)
    assert sink.infos()[0].batch == x.shape[batch_dim]


def test_a_single_number_and_a_tensor_without_a_batch_are_kept_whole() -> None:
    matrix = torch.randn(300, 40)
    with recording() as (sink, run):
        run.record("loss", torch.tensor(3.5), part="loss")
        run.record("matrix", matrix, batch_dim=None)
        run.step()
    loss = sink.value(0, "loss")
    assert (loss.array.shape, float(loss.array), len(loss.samples)) == ((), 3.5, 0)
    assert np.array_equal(sink.value(0, "matrix").array, matrix)
    largest = float(torch.linalg.svdvals(matrix.double())[0])
    assert sink.extras(0, "matrix") == {"singular_max": pytest.approx(largest, rel=1e-12)}
    assert sink.infos()[0].batch == 0


@pytest.mark.parametrize("shape", [(400, 700), (600, 300), (5, 2), (1, 1)])
def test_the_largest_singular_value_is_that_of_float64(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape) * torch.logspace(0, -6, shape[1])
    with recording() as (sink, run):
        run.record("matrix", matrix, batch_dim=None)
        run.record("odd", torch.tensor([[1.0, float("nan")]]), batch_dim=None)
        run.step()
    largest = float(torch.linalg.svdvals(matrix.double())[0])
    assert sink.extras(0, "matrix")["singular_max"] == pytest.approx(largest, rel=1e-9)
    assert np.isnan(sink.extras(0, "odd")["singular_max"])


def test_each_depth_keeps_what_it_says() -> None:
    x = torch.randn(8, 3) + 100
    with recording(depth=Depth(samples=2)) as (sink, run):
        for level in ("summary", "statistics", "samples", "all"):
            run.record(level, x, depth=level)
        run.step()
    kept = {sink.series[value.series].site: value.array.shape for value in sink.of(Value)}
    assert kept == {"samples": (2, 3), "all": (8, 3)}
    (stats,) = sink.of(SampleStats)
    assert sink.series[stats.series].site == "statistics"
    assert np.allclose(stats.numbers, per_sample(x[:2].numpy()), rtol=1e-12)
    assert len(sink.of(Value)) == 2


def test_statistics_of_samples_hold_where_the_mean_is_far_from_zero_and_where_there_is_a_nan() -> None:
    x = torch.randn(4, 10_000) * 1e-3 + 1e4
    x[3, 5] = float("nan")
    with recording(depth=Depth("statistics")) as (sink, run):
        run.record("x", x)
        run.step()
    stats = sink.sample_stats(0, "x")
    assert stats is not None
    assert np.allclose(stats.numbers[:3], per_sample(x[:3].numpy()), rtol=1e-9)
    assert np.isnan(stats.numbers[3]).all()


def test_the_bytes_of_a_step_are_bounded_and_what_does_not_fit_is_said() -> None:
    with recording(depth=Depth("all", samples=2, bytes_per_step=1000)) as (sink, run):
        for _ in range(3):
            run.record("fits", torch.zeros(10, 10))
            run.record("only samples", torch.zeros(100, 10))
            run.record("only statistics", torch.zeros(2, 200))
            run.step()
    kept = [sum(value.array.nbytes for value in sink.of(Value, step)) for step in range(3)]
    assert kept == [480] * 3
    assert sink.value(0, "only samples").array.shape == (2, 10)
    stats = sink.sample_stats(0, "only statistics")
    assert stats is not None
    assert stats.samples.tolist() == [0, 1]
    (event,) = sink.warnings()
    assert "'only samples', 'only statistics' are kept at a lower depth" in event.text
    assert "bytes_per_step" in event.text
    assert all(cost.bytes >= 480 for cost in sink.of(Cost))


def test_gradients_are_told_apart_by_loss() -> None:
    w = torch.randn(3, 2, requires_grad=True)
    x = torch.randn(4, 3)
    with recording() as (sink, run):
        h = run.record("h", x @ w)
        a, b = h.sum(), h.square().sum()
        a.backward(retain_graph=True)
        run.gradients("a")
        b.backward()
        run.gradients("b")
        run.step()
    assert np.array_equal(sink.value(0, "h", port="tensor@a").array, np.ones((4, 2), np.float32))
    assert np.allclose(sink.value(0, "h", port="tensor@b").array, 2 * h.detach())
    assert sink.named(Kind.TENSOR_GRAD) == {("h", "tensor@a"), ("h", "tensor@b")}
    assert sink.infos()[0].losses == ("a", "b")
    assert w.requires_grad
    assert not x.requires_grad


def test_gradients_nobody_named_are_kept_apart_by_backward() -> None:
    with recording() as (sink, run):
        x = torch.ones(2, 2, requires_grad=True)
        h = run.record("h", x * 2)
        h.sum().backward(retain_graph=True)
        (3 * h).sum().backward()
        run.step()
    assert sink.infos()[0].losses == ("", "backward_2")
    assert float(sink.value(0, "h", port="grad:tensor").array.max()) == 1
    assert float(sink.value(0, "h", port="tensor@backward_2").array.max()) == 3


def test_the_scale_of_amp_is_not_in_gradients() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with recording(model) as (sink, run):
        h = run.record("h", model(torch.randn(4, 3)))
        scaler.scale(h.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        run.step()
    assert np.array_equal(sink.value(0, "h", port="grad:tensor").array, np.ones((4, 2), np.float32))
    assert sink.extras(0, "h", kind=Kind.TENSOR_GRAD)["mean_of_sample_mean"] == 1
    assert sink.stat("max", "h", Kind.TENSOR_GRAD) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointing_computes_again_is_recorded_once_with_its_gradient(reentrant: bool) -> None:
    layer = nn.Linear(3, 3)
    with recording() as (sink, run):
        x = torch.randn(4, 3, requires_grad=True)

        def block(x: Tensor) -> Tensor:
            with run.iteration():
                inside: Tensor = run.record("inside", layer(x))
                return inside.tanh()

        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        run.step()
    assert sink.named() == {("inside", "tensor")}
    assert sink.named(Kind.TENSOR_GRAD) == {("inside", "tensor")}
    assert sink.infos()[0].iterations == 1


def test_evaluation_is_kept_apart_from_training() -> None:
    model = nn.Dropout()
    with recording(model) as (sink, run):
        for mode in (True, False):
            model.train(mode)
            run.record("h", model(torch.ones(2, 2)))
            run.step()
    assert {series.mode for series in sink.series if series.site == "h"} == {Mode.TRAIN, Mode.EVAL}


def test_a_tensor_that_cannot_be_read_is_reported_and_the_rest_recorded() -> None:
    with recording() as (sink, run):
        run.record("sparse", torch.eye(3).to_sparse())
        run.record("meta", torch.empty(2, 2, device="meta"))
        run.record("x", torch.ones(2))
        run.step()
    assert sink.named() == {("x", "tensor")}
    assert {"sparse" in event.text or "meta" in event.text for event in sink.warnings()} == {True}
