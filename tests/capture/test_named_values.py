"""What is kept of a named tensor: values as they were, statistics as float64 gives them, gradients of each loss."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import layerscope as ls
from layerscope.capture.core.named_tensors import Detail
from layerscope.model.records import BATCH_STATISTICS, Kind, Mode, Overhead, SampleStats, call_site
from tests.capture.naming import per_sample, recording
from tests.capture.sinks import Value

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
        run.record("x", x, detail="all")
        run.step()
    wide = x.to(torch.complex64) if dtype.is_complex else x.double()
    assert np.array_equal(sink.value(0, "x").array.astype(wide.numpy().dtype), wide.numpy())
    assert sink.custom_statistics(0, "x")["mean_of_sample_abs_max"] == pytest.approx(
        float(wide.abs().amax(1).double().mean())
    )
    assert not sink.warnings()


@pytest.mark.parametrize("dtype", [torch.float32, *KINDS], ids=str)
@pytest.mark.parametrize("level", ["summary", "statistics", "samples", "all"])
def test_the_same_is_recorded_of_a_tensor_in_one_piece_and_of_one_with_gaps(dtype: torch.dtype, level: str) -> None:
    spread = torch.zeros(9, 6, dtype=dtype)
    spread[:, ::2] = (torch.randn(9, 3) * 10).to(dtype)
    found = []
    for x in (spread[:, ::2].contiguous(), spread[:, ::2]):
        with recording(detail=Detail(level, samples=4)) as (sink, run):
            run.record("x", x)
            run.record("one", x[0], batch_dim=None)
            run.step()
        kept = [(value.series, value.samples, value.array) for value in sink.of(Value)]
        kept += [(stats.series, stats.samples, stats.numbers) for stats in sink.of(SampleStats)]
        extras = np.array([*sink.custom_statistics(0, "x").values()])
        found.append([part for row in kept for part in row] + [extras, sink.moments("x", Kind.TENSOR)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_values_of_a_step_stay_what_they_are_while_further_steps_are_recorded() -> None:
    tensors = [torch.randn(8, size) for size in (3, 40, 7, 40, 3, 90)]
    with recording() as (sink, run):
        for x in tensors:
            for name in ("a", "b"):
                run.record(name, x if name == "a" else -x)
            run.step()
    for step, x in enumerate(tensors):
        assert np.array_equal(sink.value(step, "a").array, x[:5])
        assert np.array_equal(sink.value(step, "b").array, -x[:5])


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
    with recording(detail=Detail(samples=3)) as (sink, run):
        run.record("x", x, batch_dim=batch_dim)
        run.step()
    first = x.movedim(batch_dim, 0).numpy()
    assert np.array_equal(sink.value(0, "x").array, first[:3])
    expected = per_sample(first)
    found = sink.custom_statistics(0, "x")
    over = {"mean": expected.mean(0), "std": expected.std(0), "abs_max": np.abs(expected).max(0)}
    for column, statistic in enumerate(("mean", "mean_abs", "std", "abs_max")):
        for name, numbers in over.items():
            assert found[f"{name}_of_sample_{statistic}"] == pytest.approx(numbers[column], rel=1e-9, abs=1e-12)
    assert set(found) == set(BATCH_STATISTICS)
    assert sink.infos()[0].batch == x.shape[batch_dim]


def test_a_single_number_and_a_tensor_without_a_batch_are_kept_whole() -> None:
    matrix = torch.randn(300, 40)
    with recording() as (sink, run):
        run.record("loss", torch.tensor(3.5), type="loss")
        run.record("matrix", matrix, batch_dim=None)
        run.step()
    loss = sink.value(0, "loss")
    assert (loss.array.shape, float(loss.array), len(loss.samples)) == ((), 3.5, 0)
    assert np.array_equal(sink.value(0, "matrix").array, matrix)
    largest = float(torch.linalg.svdvals(matrix.double())[0])
    assert sink.custom_statistics(0, "matrix") == {"singular_max": pytest.approx(largest, rel=1e-12)}
    assert sink.infos()[0].batch == 0


@pytest.mark.parametrize("shape", [(400, 700), (600, 300), (5, 2), (1, 1)])
def test_the_largest_singular_value_is_that_of_float64(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape) * torch.logspace(0, -6, shape[1])
    with recording() as (sink, run):
        run.record("matrix", matrix, batch_dim=None)
        run.record("odd", torch.tensor([[1.0, float("nan")]]), batch_dim=None)
        run.step()
    largest = float(torch.linalg.svdvals(matrix.double())[0])
    assert sink.custom_statistics(0, "matrix")["singular_max"] == pytest.approx(largest, rel=1e-9)
    assert np.isnan(sink.custom_statistics(0, "odd")["singular_max"])


def test_each_depth_keeps_what_it_says() -> None:
    x = torch.randn(8, 3) + 100
    with recording(detail=Detail(samples=2)) as (sink, run):
        for level in ("summary", "statistics", "samples", "all"):
            run.record(level, x, detail=level)
        run.step()
    kept = {sink.series[value.series].site: value.array.shape for value in sink.of(Value)}
    assert kept == {"samples": (2, 3), "all": (8, 3)}
    (stats,) = sink.of(SampleStats)
    assert sink.series[stats.series].site == "statistics"
    assert np.allclose(stats.numbers, per_sample(x[:2].numpy()), rtol=1e-12)
    assert len(sink.of(Value)) == 2


def test_statistics_of_samples_hold_where_the_mean_is_far_from_zero_and_where_there_is_a_nan() -> None:
    x = torch.randn(4, 10_000) * 1e-3 + 1e4
    x[3, 5], x[3, 0] = float("nan"), float("-inf")
    with recording(detail=Detail("statistics")) as (sink, run):
        run.record("x", x)
        run.step()
    stats = sink.sample_stats(0, "x")
    assert stats is not None
    assert np.allclose(stats.numbers[:3], per_sample(x[:3].numpy()), rtol=1e-9)
    assert np.allclose(stats.numbers[3], per_sample(x[3:, x[3].isfinite()].numpy()), rtol=1e-9)


def test_the_bytes_of_a_step_are_bounded_and_what_does_not_fit_is_said() -> None:
    with recording(detail=Detail("all", samples=2, bytes_per_step=1000)) as (sink, run):
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
    assert "'only samples', 'only statistics' are kept at a lower detail" in event.text
    assert "bytes_per_step" in event.text
    assert all(cost.bytes >= 480 for cost in sink.of(Overhead))


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


def test_a_loss_that_is_named_before_its_backward_is_warned_of_and_meant() -> None:
    with recording() as (sink, run):
        for _ in range(2):
            h = run.record("h", torch.ones(2, 2, requires_grad=True) * 2)
            run.gradients("loss")
            h.sum().backward()
            run.step()
    assert [info.losses for info in sink.infos()] == [("loss",)] * 2
    assert sink.named(Kind.TENSOR_GRAD) == {("h", "tensor@loss")}
    (event,) = sink.warnings()
    assert "gradients('loss') came when no gradient" in event.text
    assert "Call it after backward()" in event.text


def test_of_several_losses_named_too_early_none_is_taken_for_another() -> None:
    with recording() as (sink, run):
        h = run.record("h", torch.ones(2, 2, requires_grad=True) * 2)
        run.gradients("a")
        run.gradients("b")
        h.sum().backward(retain_graph=True)
        h.square().sum().backward()
        run.step()
    assert sink.infos()[0].losses == ("backward_1", "backward_2")
    assert len(sink.warnings()) == 1


def test_a_loss_without_gradients_before_one_with_them_is_nothing_to_warn_of() -> None:
    with recording() as (sink, run):
        h = run.record("h", torch.ones(2, 2, requires_grad=True) * 2)
        torch.ones(1, requires_grad=True).sum().backward()
        run.gradients("elsewhere")
        h.sum().backward()
        run.gradients("here")
        run.step()
    assert sink.infos()[0].losses == ("here",)
    assert sink.named(Kind.TENSOR_GRAD) == {("h", "tensor@here")}
    assert not sink.warnings()


def test_a_loss_of_tensors_that_need_no_gradient_is_warned_of_once() -> None:
    with recording() as (sink, run):
        for _ in range(2):
            run.record("h", torch.ones(2, 2))
            run.gradients("loss")
            run.step()
    assert [info.losses for info in sink.infos()] == [()] * 2
    (event,) = sink.warnings()
    assert "require grad" in event.text


def test_a_gradient_is_of_the_backward_that_computed_it_whichever_tensor_it_reaches_first() -> None:
    with recording() as (sink, run):
        a = run.record("a", torch.ones(2, 2, requires_grad=True) * 2)
        b = run.record("b", a * 3)
        a.sum().backward(retain_graph=True)
        (5 * b).sum().backward()
        run.step()
    assert sink.named(Kind.TENSOR_GRAD) == {("a", "tensor"), ("a", "tensor@backward_2"), ("b", "tensor@backward_2")}
    assert float(sink.value(0, "a", port="tensor@backward_2").array.max()) == 15


@pytest.mark.parametrize("after", [True, False])  # whether something is reached before what checkpointing computes
def test_a_backward_that_checkpointing_begins_in_another_is_part_of_it(after: bool) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(4)]
    with recording() as (sink, run):

        def block(number: int, x: Tensor) -> Tensor:
            inside: Tensor = run.record(f"inside {number}", x * weights[number])
            return inside.tanh()

        for number in range(4):
            run.record(f"weight {number}", weights[number], batch_dim=None)
        for number in (0, 2):
            x = run.record(f"before {number}", torch.ones(4, 3, requires_grad=True) * 1)
            for part in (number, number + 1):
                x = checkpoint(partial(block, part), x, use_reentrant=True)
            x = run.record(f"after {number}", x * 2) if after else x * 2
            x.sum().backward()
        run.step()
    first, second = (
        {"before 0", "weight 0", "weight 1", "inside 0", "inside 1"} | ({"after 0"} if after else set()),
        {"before 2", "weight 2", "weight 3", "inside 2", "inside 3"} | ({"after 2"} if after else set()),
    )
    expected = {(name, "tensor") for name in first} | {(name, "tensor@backward_2") for name in second}
    assert sink.named(Kind.TENSOR_GRAD) == expected
    assert sink.infos()[0].losses == ("", "backward_2")


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
    assert sink.custom_statistics(0, "h", kind=Kind.TENSOR_GRAD)["mean_of_sample_mean"] == 1
    assert sink.stat("max", "h", Kind.TENSOR_GRAD) == 1


def test_gradients_of_float16_are_kept_under_any_scale_of_amp(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1) as run:
        for _ in range(2):
            h = run.record("h", model(torch.randn(4, 3)).half())
            scaler.scale((h.float() * 2.0**-30).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            run.step()
    named = ls.open(tmp_path / "run").named()
    gradient = named.values(step=0, name="h", loss="")
    assert gradient is not None
    assert np.array_equal(gradient.array, np.full((4, 2), 2.0**-30))
    assert named.statistics(step=0, name="h", loss="")["mean"] == 2.0**-30
    assert named.history("h", "mean", loss="", sample=3)[1].tolist() == [2.0**-30] * 2


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e5m2, torch.complex32, torch.float16, torch.bool], ids=str
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_the_bytes_of_a_step_are_those_of_what_is_kept(dtype: torch.dtype) -> None:
    x = torch.ones(10, 10).to(dtype)
    with recording() as (sink, run):
        run.record("x", x, detail="all")
        run.step()
    size = sink.value(0, "x").array.nbytes
    for room in (size, size - 1):
        with recording(detail=Detail("all", samples=1, bytes_per_step=room)) as (sink, run):
            run.record("x", x)
            run.step()
        assert len(sink.value(0, "x").samples) == (10 if room == size else 1)


def test_a_buffer_that_numpy_fills_anew_has_the_statistics_of_each_iteration() -> None:
    buffer = np.zeros((2, 2), np.float32)
    x = torch.from_numpy(buffer)
    with recording() as (sink, run):
        for number in (1, 2, 3):
            buffer[:] = number
            with run.iteration():
                run.record("x", x)
        run.step()
    for number in (1, 2, 3):
        assert sink.stat("mean", call_site("x", number), Kind.TENSOR) == number
        assert float(sink.value(0, "x", number).array.max()) == number


@pytest.mark.parametrize("shape", [(4, 3), (1, 1), (2, 5, 3)])
@pytest.mark.parametrize("batch_dim", [0, 1])
def test_a_sign_that_is_still_to_be_changed_is_changed(shape: tuple[int, ...], batch_dim: int) -> None:
    with recording(detail=Detail("statistics")) as (sink, run):
        run.record("x", torch._neg_view(torch.ones(shape)), batch_dim=batch_dim)
        run.record("y", torch.full(shape, 1 + 2j).conj().imag, batch_dim=batch_dim)
        run.step()
    for name, number in (("x", -1), ("y", -2)):
        stats = sink.sample_stats(0, name)
        assert stats is not None
        assert set(stats.numbers[:, 0]) == {number}
        assert sink.stat("mean", name, Kind.TENSOR) == number


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_reported_and_the_rest_recorded(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    with recording(nn.Identity()) as (sink, run):
        for _ in range(2):
            run.record("nested", nested)
            run.record("x", torch.ones(2))
            run.step()
    assert sink.steps() == [0, 1]
    assert sink.named() == {("x", "tensor")}
    assert ["'nested' is not recorded: A nested tensor" in event.text for event in sink.warnings()] == [True]


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


def test_what_is_named_in_a_backward_is_left_out_with_a_word() -> None:
    with recording() as (sink, run):
        for _ in range(2):
            h = run.record("h", torch.ones(2, 2, requires_grad=True) * 2)
            h.register_hook(lambda gradient: run.record("gradient", gradient))
            h.sum().backward()
            run.step()
    assert sink.named() == {("h", "tensor")}
    (event,) = sink.warnings()
    assert "'gradient' is named while a backward runs" in event.text
    assert "Record tensors in the forward" in event.text


def test_what_is_named_in_a_compiled_forward_is_said_to_be_unread() -> None:
    layer = nn.Linear(3, 3)
    with recording() as (sink, run):

        def forward(x: Tensor) -> Tensor:
            with run.iteration():
                inside: Tensor = run.record("inside", layer(x))
                return inside.relu()

        compiled = torch.compile(forward, backend="eager", fullgraph=True)
        for _ in range(2):
            run.record("out", compiled(torch.ones(2, 3)))
            run.step()
    assert sink.steps() == [0, 1]
    assert sink.named() == {("out", "tensor")}
    (event,) = sink.warnings()
    assert "'inside'" in event.text
    assert "Record what comes out" in event.text


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
