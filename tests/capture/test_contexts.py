"""Forwards of one step that mean different things are series of their own, and several models are watched together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import layerscope as ls
from layerscope.capture.torch.targets import Models, choose
from layerscope.errors import ArgumentError
from layerscope.model.records import CallGraph, Event, Kind, Mode
from tests.capture.models import Mlp
from tests.capture.naming import record, recording
from tests.capture.sinks import ListSink
from tests.capture.test_hard_loops import Checkpointed
from tests.capture.test_reading_points import watching
from tests.capture.training import checked, context, recorded, sgd, vectors

pytestmark = pytest.mark.feature("E6")


class Gan(nn.ModuleDict):
    """A container whose own forward is never called."""

    def __init__(self) -> None:
        generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
        discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        super().__init__({"generator": generator, "discriminator": discriminator})


def two_optimizers(model: nn.Module) -> list[Optimizer]:
    return [torch.optim.Adam(part.parameters(), lr=0.01) for part in model.children()]


def loss_of(verdict: Tensor, label: float) -> Tensor:
    return binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, label))


def gan_loop(model: nn.Module, of_generator: Optimizer, of_discriminator: Optimizer) -> Iterator[object]:
    """The discriminator sees real and fake samples, and fake ones once more to train the generator."""
    generator, discriminator = model.children()
    for _ in range(3):
        fake = generator(torch.randn(5, 3, dtype=torch.float64))
        with context("real"):
            loss = loss_of(discriminator(vectors(7) + 2), 1)
        with context("fake"):
            loss = loss + loss_of(discriminator(fake.detach()), 0)
        loss.backward()
        of_discriminator.step()
        with context("for_generator"):
            fooled = loss_of(discriminator(fake), 1)
        fooled.backward()
        of_generator.step()
        of_generator.zero_grad()
        of_discriminator.zero_grad()
        yield [loss, fooled]


def dictionary() -> Models:
    gan = Gan()
    models = Models(dict(gan))
    models.__dict__["kept"] = gan  # which `Models` does not do
    return models


@pytest.mark.parametrize("make", [Gan, dictionary], ids=["container", "dictionary"])
def test_every_context_of_a_gan_has_its_own_numbers_and_the_training_its_own_bits(
    make: Callable[[], nn.Module],
) -> None:
    sink = checked(lambda: make().double(), gan_loop, two_optimizers)
    rows = recorded(sink, 2)
    counts = {name: rows[f"discriminator@{name}", "output.0", Kind.OUTPUT, Mode.TRAIN]["count"] for name in CONTEXTS}
    assert counts == {"real": 7, "fake": 5, "for_generator": 5}
    assert {series.context for series in sink.series if series.site.startswith("generator")} == {""}
    of_weights = {Kind.WEIGHT, Kind.WEIGHT_GRAD, Kind.UPDATE, Kind.OPTIMIZER, Kind.BUFFER}
    assert {series.context for series in sink.series if series.kind in of_weights} == {""}
    assert not [record for record in sink.records if isinstance(record, Event) and "run.context" in record.text]


CONTEXTS = ("real", "fake", "for_generator")


def test_a_dictionary_of_models_is_watched_under_their_names(tmp_path: Path) -> None:
    gan = Gan()
    generator, discriminator = gan.children()
    optimizers = two_optimizers(gan)
    models = {"generator": generator, "discriminator": discriminator}
    with ls.watch(models, optimizers, to=tmp_path / "run", every=1, kinds="all") as run:
        for _ in range(2):
            fake = generator(torch.randn(5, 3))
            with run.context("fake"):
                discriminator(fake).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            run.step()
    opened = ls.open(tmp_path / "run")
    table = opened.stats("discriminator*", kind="output", stat="count", context="fake")
    assert set(table["site"]) == {"discriminator", *(f"discriminator.{place}" for place in range(3))}
    updates = opened.stats(kind="update", stat="rms")
    assert set(updates["site"]) == {f"{name}.{p}" for name, m in models.items() for p, _ in m.named_parameters()}
    assert set(updates["context"]) == {""}
    graph = opened.graph()
    assert graph is not None
    assert {call.site for call in graph.calls if not call.parent} == set(models)
    assert ("generator", "discriminator") in {(edge.source, edge.target) for edge in graph.edges}


def test_sites_of_several_models_are_chosen_by_pattern_and_class() -> None:
    models = dict(Gan())
    sink = ListSink()
    selection = choose(models, None, "output", ["generator.*", nn.LeakyReLU])
    with record(selection, 1, sink) as run:
        models["discriminator"](models["generator"](torch.randn(2, 3)))
        run.step()
    assert {series.site for series in sink.series} == {"generator.0", "generator.1", "generator.2", "discriminator.1"}


def test_models_that_share_parameters_are_watched_together() -> None:
    first = nn.Linear(3, 3)
    models = {"one": nn.Sequential(first, nn.ReLU()), "other": nn.Sequential(first, nn.Tanh())}
    sink, run = watching(models, kinds=("output", "weight"))
    with run:
        models["one"](torch.randn(2, 3))
        models["other"](torch.randn(2, 3))
        run.step()
    shared = {f"{model}.0.{name}" for model in models for name in ("weight", "bias")}
    assert {series.site for series in sink.series if series.kind is Kind.WEIGHT} == shared
    assert {"one", "other", "one.0", "one.1", "other.1"} == {s.site for s in sink.series if s.kind is Kind.OUTPUT}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, r"empty dictionary of models.*at least one"),
        ({"a": [nn.ReLU()]}, r"got list as 'a'\. Give a torch\.nn\.Module for each name"),
        ({"a.b": nn.ReLU()}, r"cannot call a model 'a\.b': .* without '\.', '#' and '@'"),
        ({"a#2": nn.ReLU()}, r"cannot call a model 'a#2'"),
        ({"": nn.ReLU()}, r"cannot call a model ''"),
        ({3: nn.ReLU()}, r"cannot call a model 3"),
        (dict.fromkeys(("a", "b"), nn.ReLU()), r"one model under two names, 'a' and 'b'"),
    ],
)
def test_a_bad_dictionary_of_models_is_refused(models: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        ls.watch(models, to=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def in_contexts(model: nn.Module, optimizer: Optimizer, *, apart: bool) -> Iterator[object]:
    """Two forwards in contexts, one of them inside another, and their backward outside of all."""
    for _ in range(3):
        optimizer.zero_grad()
        losses = []
        with context("outer"):
            with context("inner"):
                losses.append(model(vectors(2)).square().mean())
                if apart:
                    losses.pop().backward()
            losses.append(model(vectors(3) * 3).square().mean())
            if apart:
                losses.pop().backward()
        if not apart:
            (losses[0] + losses[1]).backward()
        optimizer.step()
        yield None


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_checkpointing_computes_again_keeps_its_context(reentrant: bool) -> None:
    sink = checked(
        lambda: Checkpointed(reentrant=reentrant).double(),
        lambda model, optimizer: in_contexts(model, optimizer, apart=False),
        sgd,
        reference_loop=lambda model, optimizer: in_contexts(model, optimizer, apart=True),
    )
    found = {series.context for series in sink.series if series.kind is Kind.OUTPUT_GRAD and series.site == "inner.0"}
    assert found == {"outer", "outer/inner"}


class OwnContext(nn.Module):
    """Names a context inside its forward, part of which is checkpointed, twice over."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.run: Any = None

    def forward(self, x: Tensor) -> Tensor:
        def twice(x: Tensor) -> Tensor:
            with self.run.context("deep"):
                result: Tensor = checkpoint(self.b, self.a(x), use_reentrant=True)
                return result

        result: Tensor = checkpoint(twice, x, use_reentrant=True)
        return result


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the inner one's first forward
def test_a_context_inside_a_checkpointed_function_joins_the_one_of_its_forward() -> None:
    model = OwnContext()
    sink, model.run = watching(model, kinds="all")
    with model.run as run:
        for name in ("one", "other"):
            with run.context(name):
                y = model(torch.randn(2, 3, requires_grad=True))
            with run.context("elsewhere"):
                y.sum().backward()
        run.step()
    of = {site: {s.context for s in sink.series if (s.site, s.kind) == (site, Kind.OUTPUT_GRAD)} for site in ("a", "b")}
    assert of == {"a": {"one/deep", "other/deep"}, "b": {"one/deep", "other/deep"}}
    assert {s.context for s in sink.series if s.site == "a" and s.kind is Kind.OUTPUT} == {"one/deep", "other/deep"}


def test_named_tensors_belong_to_their_context_in_series_and_dependencies() -> None:
    model = Mlp()
    with recording(model) as (sink, run):
        run.begin()
        shared = run.record("shared", torch.randn(4, 6))
        for name in ("one", "other"):
            with run.context(name):
                x = run.record("x", shared * 2)
                run.record("y", model(x)).sum().backward()
                run.link("x", "y")
        run.step()
    assert {(s.site, s.kind, s.context) for s in sink.series if s.site in "xy"} == {
        *(("x", Kind.TENSOR, name) for name in ("one", "other")),
        *(("y", kind, name) for name in ("one", "other") for kind in (Kind.TENSOR, Kind.TENSOR_GRAD)),
    }
    links = {link for link in sink.links(0) if "layers" not in link[0]}
    assert links == {
        *(("shared", f"x@{name}") for name in ("one", "other")),
        *((f"x@{name}", f"y@{name}") for name in ("one", "other")),
    }


class Attaching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ls.attach("doubled", x * 2) + 1


def test_attached_tensors_carry_the_context_of_their_forward() -> None:
    model = Attaching()
    sink, run = watching(model, kinds="all")
    with run:
        with run.context("a"):
            y = model(torch.ones(3, requires_grad=True))
        y.sum().backward()
        run.step()
    assert {(s.kind, s.context) for s in sink.series if s.site == "doubled"} == {
        (Kind.TENSOR, "a"),
        (Kind.TENSOR_GRAD, "a"),
    }


def test_one_tensor_in_two_contexts_is_summarized_once() -> None:
    model = nn.Identity()
    sink, run = watching(model, kinds=("input", "output"))
    x = torch.randn(4, 3)
    with run:
        for name in ("a", "b"):
            with run.context(name):
                model(x)
        run.step()
    (summaries,) = sink.summaries()
    assert sorted(summaries.alias.tolist()) == [-1, 0, 0, 0]
    assert {sink.series[int(number)].context for number in summaries.series[summaries.alias >= 0]} == {"a", "b"}


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.swapped = False

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        result: Tensor = self.c(b if self.swapped else a)
        return result


def test_the_graph_has_the_edges_of_every_context() -> None:
    model = Branches()
    sink, run = watching(model)
    with run:
        for _ in range(2):
            for model.swapped in (False, True):
                with run.context("swapped" if model.swapped else "straight"):
                    model(torch.randn(2, 3))
            run.step()
    edges = {(e.source, e.target) for record in sink.records if isinstance(record, CallGraph) for e in record.edges}
    assert {("a", "c"), ("b", "c")} <= edges


def test_each_thread_has_a_context_of_its_own() -> None:
    model = Mlp()
    sink, run = watching(model)
    inside = threading.Barrier(2)

    def forward(name: str) -> None:
        with run.context(name):
            inside.wait()
            model(torch.randn(2, 6))

    with run:
        threads = [threading.Thread(target=forward, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model(torch.randn(2, 6))
        run.step()
    assert {series.context for series in sink.series if series.kind is Kind.OUTPUT} == {"a", "b", ""}


def test_a_context_may_span_steps_and_is_left_by_an_error() -> None:
    model = Mlp()
    sink, run = watching(model, every=2)
    with run:
        run.step()  # the next one is idle
        with pytest.raises(ZeroDivisionError), run.context("lost"):
            raise ZeroDivisionError
        with run.context("early"):
            run.step()
            model(torch.randn(2, 6))
        run.step()
    assert {series.context for series in sink.series if series.kind is Kind.OUTPUT} == {"early"}


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "a#2", None, 3, ["a"]])
def test_a_bad_name_of_a_context_is_refused_in_any_step(name: Any) -> None:
    _, run = watching(Mlp(), every=2)
    with run:
        for _ in range(2):  # recorded, then idle
            with pytest.raises(ArgumentError, match=r"A context cannot be called .*without '/', '@' and '#'"):
                run.context(name)
            run.step()


def test_a_disabled_recorder_has_contexts_that_do_nothing(tmp_path: Path) -> None:
    with ls.watch(Mlp(), to=tmp_path / "run", enabled=False) as run, run.context("real"):
        run.step()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("apart", [False, True])
def test_forwards_of_different_backwards_are_counted_and_a_context_is_suggested_once(apart: bool) -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink, run = watching(model, optimizer)

    def block(name: str) -> AbstractContextManager[None]:
        return run.context(name) if apart else nullcontext()

    x, other = torch.randn(4, 6), torch.randn(2, 6)
    with run:
        for _ in range(3):
            with block("x"):
                output = model(x)
            output.sum().backward()
            with block("other"):
                model(other).sum().backward()
            optimizer.step()
            run.step()
    told = [e for e in sink.records if isinstance(e, Event) and e.level == "info" and "run.context" in e.text]
    assert [e.step for e in told] == ([] if apart else [0])
    rows = recorded(sink, 0)
    if apart:
        assert rows["(model)@x", "output.0", Kind.OUTPUT, Mode.TRAIN]["merged"] == 1
    else:
        assert "'(model)'" in told[0].text
        assert rows["(model)", "output.0", Kind.OUTPUT, Mode.TRAIN]["merged"] == 2


def test_two_forwards_of_one_backward_and_two_backwards_of_one_forward_suggest_nothing() -> None:
    model = Mlp()
    sink, run = watching(model)
    with run:
        (model(torch.randn(4, 6)).sum() + model(torch.randn(2, 6)).sum()).backward()
        run.step()
        loss = model(torch.randn(4, 6)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        run.step()
    assert not [record for record in sink.records if isinstance(record, Event) and "run.context" in record.text]
