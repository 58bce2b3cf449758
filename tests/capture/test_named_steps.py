"""Which steps and samples are recorded: by type, by rule, late; and what wrong use is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import layerscope as ls
from layerscope.capture.core.named_tensors import Detail
from layerscope.capture.core.recorder import Recorder
from layerscope.errors import ArgumentError, SelectError, StateError
from layerscope.model.records import Kind, Metric
from tests.capture.naming import Recording, recording
from tests.capture.training import differences, sgd, trained, unwatched


def test_each_type_of_step_has_its_own_distance() -> None:
    every: dict[str, int | ls.Schedule] = {
        "rare*": 1,
        "common": ls.Schedule(every=4, back_off=2),
        "never": ls.Schedule(steps=[999]),
    }
    with recording(every=every) as (sink, run):
        for step in range(60):
            kind = "rare one" if step % 20 == 7 else "never" if step % 20 == 8 else "common"
            run.begin(kind)
            run.record("x", torch.ones(2))
            run.step(loss=step)
    found = [(info.step, info.type) for info in sink.infos()]
    assert [step for step, kind in found if kind == "rare one"] == [7, 27, 47]
    assert [step for step, kind in found if kind == "common"] == [0, 4, 12, 29, 61][:4]
    assert {kind for _, kind in found} == {"rare one", "common"}
    kinds = {metric.step: metric.type for metric in sink.of(Metric)}
    assert (kinds[7], kinds[8], kinds[9]) == ("rare one", "never", "common")


def test_a_step_without_a_type_follows_the_schedule() -> None:
    with recording(every={"step": 5}) as (sink, run):
        for _ in range(12):
            run.record("x", torch.ones(2))
            run.step()
    assert sink.steps() == [0, 5, 10]
    assert {info.type for info in sink.infos()} == {"step"}


def test_fifty_iterations_are_fifty_sites() -> None:
    with recording() as (sink, run):
        h = run.record("h", torch.zeros(2, 2), initial=True)
        for number in range(1, 51):
            with run.iteration():
                h = run.record("h", h + number)
        run.step()
    assert {site for site, _ in sink.named()} == {"h"} | {f"h#{n}" for n in (0, *range(2, 51))}
    assert float(sink.value(0, "h", 50).array[0, 0]) == 50 * 51 / 2
    info = sink.infos()[0]
    assert (info.iterations, len(info.graphs)) == (50, 51)


def test_a_kept_step_has_the_samples_type_and_reason_that_were_said() -> None:
    x = torch.arange(20.0).reshape(10, 2)
    with recording(every=ls.Schedule(steps=[0]), keep_last=1) as (sink, run):
        for step in range(5):
            run.record("x", x + step)
            run.record("short", x[:4])
            if step == 3:
                run.keep(type="strange", samples=[7, 2], reason="sample 7 is odd")
            run.step(loss=1.0)
    assert sink.steps() == [0, 3]
    info = sink.infos()[1]
    assert (info.type, info.samples, info.reason) == ("strange", (7, 2), "sample 7 is odd")
    assert np.array_equal(sink.value(3, "x").array, (x + 3)[[7, 2]])
    assert sink.value(3, "short").samples.tolist() == [2]
    assert [metric.type for metric in sink.of(Metric, 3)] == ["strange"]
    assert [event.step for event in sink.events("kept")] == [3]


def test_the_steps_before_a_spike_are_kept_with_it() -> None:
    with recording(every=ls.Schedule(steps=[0]), keep_last=3) as (sink, run):
        for step in range(20):
            run.record("x", torch.full((2, 2), float(step)))
            if step == 10:
                run.keep(before=2, reason="spike")
            run.step()
    assert sink.steps() == [0, 8, 9, 10]
    assert [info.reason for info in sink.infos()] == ["schedule", "before step 10", "before step 10", "spike"]
    assert float(sink.value(8, "x").array[0, 0]) == 8


@pytest.mark.parametrize("as_written", [True, False])
def test_a_recorded_step_takes_none_of_those_before_it_out_of_the_ring(as_written: bool, tmp_path: Path) -> None:
    with ls.watch(None, to=tmp_path / "run", every=ls.Schedule(5, keep_last=3)) as run:
        for step in range(7):
            run.record("x", torch.full((2, 2), float(step)))
            if step == 6:
                run.keep(before=3)
            run.step()
        if as_written:
            run._sink.flush()  # type: ignore[attr-defined]  # a folder's
            check_order(tmp_path / "run")
    check_order(tmp_path / "run")


def check_order(folder: Path) -> None:
    opened, steps = ls.open(folder), [0, 3, 4, 5, 6]
    named = opened.named()
    assert opened.steps()["step"] == named.steps()["step"] == steps
    assert opened.sql("select step from steps")["step"] == steps
    assert opened.last_step == 6
    told, means = named.history("x", "mean")
    assert (told.tolist(), means.tolist()) == (steps, steps)
    told, means = named.history("x", "mean", sample=1)
    assert (told.tolist(), means.tolist()) == (steps, steps)
    assert [float(named.values(step, "x").array.max()) for step in steps] == steps  # type: ignore[union-attr]


def test_a_step_is_there_before_its_graph_is_known_and_only_once_when_it_is(tmp_path: Path) -> None:
    torch.set_num_threads(1)  # a forked child has no thread pool to wait for
    ends = {}
    for name, steps in (("unknown", 3), ("known", 7)):
        child = os.fork()
        if child == 0:
            try:
                layer = nn.Linear(2, 2)
                run = ls.watch(layer, to=tmp_path / name, every=5)
                for _ in range(steps):
                    run.record("h", layer(torch.ones(3, 2)))
                    run.step(loss=1.0)
                run._sink.flush()  # type: ignore[attr-defined]  # a folder's
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        opened = ls.open(tmp_path / name)
        graphs = [opened.named().graph(step, 1) for step in opened.steps()["step"]]
        ends[name] = [(len(graph.nodes), len(graph.links)) for graph in graphs if graph is not None]
        assert len(opened.named().graphs()) == 1
        assert opened.status() == "stopped"
    assert ends == {"unknown": [(1, 0)], "known": [(3, 2), (3, 2)]}
    with ls.watch(None, to=tmp_path / "known", every=1, resume=True) as again:
        again.record("x", torch.ones(2))
        again.step()
    assert ls.open(tmp_path / "known").steps()["step"] == [0, 5, 7]  # compacted


def test_keep_if_keeps_the_ring_too() -> None:
    with recording(
        every=ls.Schedule(steps=[0]), keep_last=2, keep_if=lambda step: step.step > 0 and step.loss > 3 * step.loss_ema
    ) as (sink, run):
        for step in range(9):
            run.record("x", torch.ones(2))
            run.step(loss=10.0 if step == 6 else 1.0)
    assert sink.steps() == [0, 4, 5, 6]
    assert sink.infos()[-1].reason == "keep_if"
    assert [s.step for s in sink.summaries()] == [0, 4, 5, 6]


def test_a_discarded_step_is_as_if_it_had_not_been_recorded() -> None:
    with recording(nn.Linear(2, 2)) as (sink, run):
        for step in range(4):
            run.begin("a")
            run.record("x", torch.ones(2, 2))
            if step % 2:
                run.discard()
                run.record("after", torch.ones(2, 2))
                with pytest.raises(StateError, match=r"keep\(\) came after discard\(\) in step"):
                    run.keep()
            run.step(loss=1.0)
    assert sink.steps() == [0, 2]
    assert [summaries.step for summaries in sink.summaries()] == [0, 2]
    assert len(sink.of(Metric)) == 4
    assert ("after", "tensor") not in sink.named()


def test_samples_are_balanced_over_categories_of_the_whole_run() -> None:
    with recording(detail=Detail(samples=2), keep_last=1) as (sink, run):
        for _ in range(10):
            run.record("x", torch.randn(8, 2))
            run.keep(categories=["common"] * 6 + ["rare", "odd"])
            run.step()
    kept = [category for info in sink.infos() for category in info.categories]
    assert {category: kept.count(category) for category in set(kept)} in (
        {"common": 6, "rare": 7, "odd": 7},
        {"common": 7, "rare": 6, "odd": 7},
        {"common": 7, "rare": 7, "odd": 6},
    )
    assert all(len(info.samples) == 2 for info in sink.infos())


@pytest.mark.parametrize("kind", [list, torch.tensor, np.array])
def test_categories_and_samples_come_as_lists_tensors_or_arrays(kind: Callable[[list[int]], Any]) -> None:
    with recording(keep_last=1) as (sink, run):
        run.record("x", torch.randn(4, 2))
        run.keep(categories=kind([7, 7, 8, 7]), samples=kind([2, 3]))
        run.step()
        run.record("x", torch.randn(4, 2))
        run.keep(categories=list(torch.tensor([7, 7, 8, 7])), samples=np.int64(2))  # type: ignore[arg-type]
        run.step()
    assert [(info.samples, info.categories) for info in sink.infos()] == [((2, 3), ("8", "7")), ((0, 2), ("7", "8"))]


def test_a_kept_step_begun_anew_after_discard_is_kept() -> None:
    with recording() as (sink, run):
        run.record("x", torch.ones(2))
        run.discard()
        run.begin("again")
        run.record("x", torch.ones(2))
        run.keep(reason="for good")
        run.step()
    assert [(info.type, info.reason) for info in sink.infos()] == [("again", "for good")]


def in_iteration(run: Recorder) -> None:
    with run.iteration(), run.iteration():
        pass


def twice(run: Recorder) -> None:
    run.record("x", torch.ones(1))
    run.record("x", torch.ones(1))


def begun_late(run: Recorder) -> None:
    run.record("x", torch.ones(1))
    run.begin("late")


def same_loss_twice(run: Recorder) -> None:
    x = run.record("x", torch.ones(1, requires_grad=True) * 2)
    for _ in range(2):
        x.sum().backward(retain_graph=True)
        run.gradients("loss")


def kept(**words: Any) -> Callable[[Recorder], None]:
    def use(run: Recorder) -> None:
        run.record("x", torch.ones(4, 2))
        run.keep(**words)

    return use


WRONG: list[tuple[Callable[[Recorder], object], str]] = [
    (in_iteration, r"inside iteration 1.*End that one first"),
    (twice, r"'x' is recorded twice in iteration 1.*another name or role"),
    (begun_late, r"begin\('late'\) came after tensors.*discard\(\)"),
    (same_loss_twice, r"'x' for 'loss' has arrived twice"),
    (lambda run: run.record("a@b", torch.ones(1)), "'a@b'.*without '@'"),
    (lambda run: run.record("a#2", torch.ones(1)), "'a#2'.*without '@'"),
    (lambda run: run.record("", torch.ones(1)), "A tensor cannot be called ''"),
    (lambda run: run.record("x", torch.ones(1), role="a@b"), "A role cannot be 'a@b'"),
    (lambda run: run.record("x", torch.ones(1), type="weight"), r"no type 'weight' \(of 'x'\).*input, target, loss"),
    (lambda run: run.record("x", torch.ones(1), detail="deep"), "no detail 'deep'.*summary, statistics, samples, all"),
    (lambda run: run.record("x", [1.0]), r"'x' must be a tensor, got list.*torch\.as_tensor"),
    (lambda run: run.record("x", torch.ones(2, 2), batch_dim=2), "batch_dim=2 is none of them"),
    (lambda run: run.link("nothing", torch.ones(1)), "knows no tensor 'nothing'"),
    (lambda run: run.gradients(""), "needs the name of a loss"),
    (lambda run: run.begin(""), "A step type is a string"),
    (kept(samples=[9]), "sample 9, but the batch has samples 0 to 3"),
    (kept(categories=["a"]), "1 categories for 4 samples"),
    (kept(type=5), "A step type is a string, not 5"),
    (kept(type=""), "A step type is a string, not ''"),
    (kept(before=2), r"before=2.*Schedule\(keep_last=2\)"),
]


@pytest.mark.parametrize(("use", "words"), WRONG)
def test_wrong_use_is_told_what_is_wrong_and_what_to_do(use: Callable[[Recorder], object], words: str) -> None:
    with recording(keep_last=1) as (sink, run):
        run.step()
        with pytest.raises((ArgumentError, SelectError, StateError), match=words):
            use(run)
        run.discard()
        run.step()
        run.record("fine", torch.ones(1))
        run.step()
    assert 2 in sink.steps()


def test_samples_that_are_not_held_cannot_be_kept() -> None:
    with recording(detail=Detail(samples=2)) as (_, run):
        run.record("x", torch.ones(6, 2))
        with pytest.raises(ArgumentError, match=r"only the first 2 are in memory.*keep_last=1"):
            run.keep(samples=[5])
        run.keep(samples=[1])
        run.step()


@pytest.mark.parametrize("words", [{"detail": "deep"}, {"every": "often"}, {"every": {"a": 0}}])
def test_words_of_watch_that_make_no_sense_are_refused(words: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=next(iter(words))):
        ls.watch(None, to=tmp_path / "run", **words)


def test_an_idle_step_and_a_closed_or_disabled_recorder_take_anything(tmp_path: Path) -> None:
    off = ls.watch(None, to=tmp_path / "off", enabled=False)
    for run in (off, ls.watch(None, to=tmp_path / "idle", every=ls.Schedule(steps=[99]))):
        with run:
            run.begin("a")
            x = torch.ones(2)
            with run.iteration():
                assert run.record("x", x, type="input") is x
            run.link("a", "b")
            run.gradients("loss")
            run.discard()
            run.step(loss=1.0)
    off.keep(samples=[3])
    assert off.current_step == 1
    assert not (tmp_path / "off").exists()
    assert run.record("x", x) is x
    with pytest.raises(StateError, match=r"begin\(\) came after the recorder was closed"):
        run.begin("a")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.cell, self.out = nn.Linear(3, 3), nn.LSTMCell(3, 4), nn.Linear(4, 2)
        self.frozen.requires_grad_(False)
        self.drop = nn.Dropout(0.3)


def loop(run: Recorder | None) -> Callable[..., Iterator[object]]:
    """A training that does what recorders stumble over; without a recorder it is the plain one."""

    def named(name: str, tensor: Tensor, **words: Any) -> Tensor:
        return tensor if run is None else run.record(name, tensor, **words)

    def steps(model: Net, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(4):
            optimizer.zero_grad()
            h, c = named("h", torch.zeros(5, 4), initial=True), torch.zeros(5, 4)
            for number in range(3):
                x = named("x", model.drop(model.frozen(torch.randn(5, 3))), role=str(number))
                h, c = model.cell(x, (h, c))
                h = named("h", h, role=str(number))
            out = named("out", model.out(h))
            with torch.no_grad():
                named("guess", out.argmax(1))
            a, b = out.square().mean(), (out * 1).relu_().sum()
            a.backward(retain_graph=True)
            b.backward()
            optimizer.step()
            yield out

    return steps


def test_recording_changes_no_bit_of_a_training_and_nothing_frozen() -> None:
    sinks: list[Recording] = []

    def around(model: nn.Module, optimizers: list[Optimizer]) -> Any:
        sink, run = blocks.enter_context(recording(model, keep_last=2))
        sinks.append(sink)
        loops.append(run)
        return run

    loops: list[Recorder] = []
    plain = trained(Net, loop(None), unwatched, sgd)

    def watched(model: Net, optimizer: Optimizer) -> Iterator[object]:
        yield from loop(loops[0])(model, optimizer)

    with ExitStack() as blocks:
        assert not differences(plain, trained(Net, watched, around, sgd))
    sink = sinks[0]
    assert sink.steps() == [0, 1, 2, 3]
    assert {link for link in sink.links(0) if link[1] == "out"} == {
        ("h:2", "out"),
        ("out.:weight", "out"),
        ("out.:bias", "out"),
    }
    assert ("out", "guess") in sink.links(0)


def test_watched_modules_and_named_tensors_lie_in_one_table(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1) as run:
        for _ in range(2):
            h = run.record("h", model(torch.randn(4, 3)))
            h.sum().backward()
            optimizer.step()
            run.step(loss=1.0)
    table = ls.open(tmp_path / "run").stats(stat="rms")
    assert {"h", "0", "0.weight"} <= set(table["site"])
    assert {"tensor", "tensor_grad", "output", "weight_grad"} <= set(table["kind"])


def test_gpt2_is_recorded_layer_by_layer() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16, "use_cache": False}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with recording(model) as (sink, run):
        for place, block in enumerate(model.transformer.h):

            def name(module: object, args: object, output: object, place: int = place) -> None:
                run.record(f"block {place}", output[0] if isinstance(output, tuple) else output)

            block.register_forward_hook(name)
        run.begin()
        ids = run.record("ids", torch.randint(0, 50, (3, 8)), type="input")
        out = model(ids, labels=ids)
        run.record("logits", out.logits)
        run.record("loss", out.loss, type="loss")
        out.loss.backward()
        run.gradients("loss")
        run.step()
    links = {link for link in sink.links(0) if ":" not in link[0]}
    assert links >= {
        ("ids", "block 0"),
        ("block 0", "block 1"),
        ("block 1", "logits"),
        ("logits", "loss"),
        ("ids", "loss"),
    }
    assert ("block 0", "logits") not in links
    assert ("block 0", "tensor@loss") in sink.named(Kind.TENSOR_GRAD)


def test_the_memory_of_a_recorder_does_not_grow_with_the_steps() -> None:
    import gc
    import tracemalloc

    with recording(every=1, keep_last=3) as (sink, run):

        def some(steps: int) -> int:
            for step in range(steps):
                run.begin(f"type {step % 3}")
                x = run.record("x", torch.ones(4, 4, requires_grad=True) * 2)
                with run.iteration():
                    run.record("y", x * 2, role=str(step % 5))
                x.sum().backward()
                run.step(loss=1.0)
                sink.records.clear()
            gc.collect()  # what waits for it is not held
            return tracemalloc.get_traced_memory()[0]

        some(200)
        tracemalloc.start()
        first = some(100)
        later = some(1500)
        for _ in range(10_000):
            run.gradients("of a step in which nothing is recorded")
            run.step()
            sink.records.clear()
        gc.collect()  # as before the other two
        idle = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert later - first < 300_000
    assert idle - later < 100_000
