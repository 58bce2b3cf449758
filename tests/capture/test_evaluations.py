"""Evaluations are recorded whenever they come, and say how many of their forwards they hold."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.optim import Optimizer

import layerscope as ls
from layerscope.capture.core.recorder import Recorder
from layerscope.capture.core.schedule import Schedule, schedule_of
from layerscope.capture.torch.targets import choose
from layerscope.errors import ArgumentError
from layerscope.model import summary_spec
from layerscope.model.records import CallGraph, Event, Kind, Mode, Series
from tests.capture.models import MODELS, Mlp
from tests.capture.naming import record
from tests.capture.sinks import ListSink
from tests.capture.test_truth import hooks_of
from tests.capture.training import differences, trained, unwatched

pytestmark = pytest.mark.feature("E7")

AFTER = (24, 49, 74, 99)
BATCHES = 20


def evaluated(model: nn.Module, batches: int = BATCHES, around: Callable[[], Any] = torch.no_grad) -> list[Tensor]:
    model.eval()
    with around():
        outputs = [model(torch.randn(3, 6)) for _ in range(batches)]
    model.train()
    return outputs


def train(model: nn.Module, optimizer: Optimizer) -> None:
    model(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def rows(sink: ListSink, site: str = "(model)", kind: Kind = Kind.OUTPUT, **where: object) -> dict[int, Any]:
    """Moments of a series by step, each once; aliases are followed."""
    numbers = [n for n, s in enumerate(sink.series) if (s.site, s.kind) == (site, kind) and is_like(s, where)]
    found: dict[int, Any] = {}
    for summaries in sink.summaries():
        place = {int(number): row for row, number in enumerate(summaries.series)}
        for row in (place[number] for number in numbers if number in place):
            assert summaries.step not in found, f"step {summaries.step} was recorded twice"
            alias = int(summaries.alias[row])
            found[summaries.step] = summaries.moments[place[alias] if alias >= 0 else row]
    return found


def is_like(series: Series, where: dict[str, object]) -> bool:
    return all(getattr(series, name) == value for name, value in where.items())


def in_evaluation(sink: ListSink, site: str = "(model)") -> dict[int, Any]:
    return rows(sink, site, mode=Mode.EVAL)


def events(sink: ListSink) -> list[tuple[int, str]]:
    return [(e.step, e.text) for e in sink.records if isinstance(e, Event) and e.level == "evaluation"]


def watching(model: Any, every: Any = 10, kinds: Any = "all", **when: Any) -> tuple[ListSink, Recorder]:
    sink = ListSink()
    return sink, record(choose(model, None, kinds, "*"), replace(schedule_of(every), **when), sink)


def trained_and_evaluated(
    run: Recorder,
    model: nn.Module,
    *,
    inside: bool = False,
    around: Callable[[], AbstractContextManager[Any]] = torch.no_grad,
    after: tuple[int, ...] = AFTER,
    steps: int = 100,
) -> dict[int, list[Tensor]]:
    """What the model gave in the evaluations of a training, by step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: dict[int, list[Tensor]] = {}
    with run:
        for step in range(steps):
            train(model, optimizer)
            if inside and step in after:
                seen[step] = evaluated(model, around=around)
            run.step(loss=float(step))
            if not inside and step in after:
                seen[step] = evaluated(model, around=around)
    return seen


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, nullcontext])
@pytest.mark.parametrize("inside", [False, True], ids=["after_step", "before_step"])
def test_an_evaluation_between_recorded_steps_is_recorded_with_its_step(
    inside: bool, around: Callable[[], Any]
) -> None:
    model = Mlp()
    sink, run = watching(model)
    seen = trained_and_evaluated(run, model, inside=inside, around=around)
    found = in_evaluation(sink)
    assert tuple(found) == AFTER
    for step, outputs in seen.items():
        read = torch.cat(outputs[:16]).detach().double().numpy()
        moments = dict(zip(summary_spec.MOMENTS, found[step], strict=True))
        assert moments["count"] == read.size
        np.testing.assert_allclose(
            [moments[name] for name in ("sum", "sum_abs", "sum2", "sum4", "min", "max")],
            [read.sum(), abs(read).sum(), (read**2).sum(), (read**4).sum(), read.min(), read.max()],
            rtol=1e-9,
        )
    assert events(sink) == [(step, "16 of 20 forwards of (model)") for step in AFTER]


def test_an_evaluation_reads_no_weights_and_says_how_many_tensors_a_row_holds() -> None:
    model = Mlp()
    sink, run = watching(model)
    trained_and_evaluated(run, model)
    assert list(rows(sink, "layers.0.weight", Kind.WEIGHT)) == list(range(0, 100, 10))
    of_evaluation = [summaries for summaries in sink.summaries() if summaries.step in AFTER]
    assert len(of_evaluation) == len(AFTER)
    for summaries in of_evaluation:
        assert {sink.series[int(number)].kind for number in summaries.series} == {Kind.INPUT, Kind.OUTPUT}
        assert {sink.series[int(number)].mode for number in summaries.series} == {Mode.EVAL}
        assert set(summaries.merged.tolist()) == {16}


@pytest.mark.parametrize(
    ("when", "inside", "expected"),
    [
        ({"every": 1}, False, AFTER),
        ({"every": 1}, True, AFTER),
        ({"every": 25}, False, AFTER),  # the next step is a recorded one
        ({"every": 25}, True, AFTER),
        ({"every": 40}, False, (24, 49, 99)),  # no step was recorded between 49 and 74
        ({"every": Schedule(every=10, start=30, stop=60)}, False, (24, 49, 74)),
        ({"every": Schedule(steps=[60])}, True, (24, 74)),
        ({"every": 1000, "keep_if": lambda step: step.step % 20 == 0}, False, AFTER),
        ({"every": 1000, "keep_if": lambda step: step.step % 20 == 0}, True, AFTER),
        ({"every": 1000, "keep_last": 3}, True, (24,)),
        ({"every": 10, "keep_last": 3}, False, AFTER),
    ],
)
def test_an_evaluation_is_recorded_when_a_step_was_since_the_last_one(
    when: dict[str, Any], inside: bool, expected: tuple[int, ...]
) -> None:
    model = Mlp()
    sink, run = watching(model, **when)
    trained_and_evaluated(run, model, inside=inside)
    assert tuple(in_evaluation(sink)) == expected
    assert tuple(step for step, _ in events(sink)) == expected


@pytest.mark.parametrize("every", [1, 10, Schedule(every=10, start=5)])
def test_an_evaluation_before_the_first_step_carries_the_step_before_it(every: Any, tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", every=every) as run:
        evaluated(model)
        for _ in range(3):
            model(torch.randn(5, 6)).sum().backward()
            run.step(loss=1.0)
    opened = ls.open(tmp_path / "run")
    assert opened.stats("(model)", mode="eval", stat="count")["step"] == [-1]
    with ls.watch(model, to=tmp_path / "run", every=every, resume=True) as run:
        assert run.current_step == 3
        evaluated(model)
    assert ls.open(tmp_path / "run").stats("(model)", mode="eval", stat="count")["step"] == [-1, 2]


def test_two_evaluations_in_a_row_are_told_apart_by_their_contexts() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink, run = watching(model)
    with run:
        for step in range(12):
            train(model, optimizer)
            run.step()
            if step in (5, 11):
                for name, batches in (("valid", 18), ("test", 4), ("valid", 2)):
                    with run.context(name):
                        evaluated(model, batches)
    assert {name: list(rows(sink, context=name)) for name in ("valid", "test")} == {"valid": [5, 11], "test": [5, 11]}
    assert rows(sink, context="valid")[5][summary_spec.COLUMN["count"]] == 16 * 9
    assert rows(sink, context="test")[5][summary_spec.COLUMN["count"]] == 4 * 9
    assert events(sink)[:2] == [
        (5, "16 of 20 forwards of (model) in context valid"),
        (5, "4 of 4 forwards of (model) in context test"),
    ]


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_recording_evaluations_changes_no_bit_of_a_training(name: str, every: int, tmp_path: Path) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for step in range(6):
            outputs = []
            if step in (0, 2, 5):  # before the first step, after a recorded one and after an idle one
                model.eval()
                with torch.no_grad() if step else torch.inference_mode():
                    outputs += [model(torch.randn(4, 6)) for _ in range(3)]
                model.train()
            outputs.append(model(torch.randn(4, 6)))
            outputs[-1].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield outputs

    plain = trained(MODELS[name], loop, unwatched)
    watched = trained(MODELS[name], loop, lambda m, o: ls.watch(m, o, to=tmp_path / "run", every=every, kinds="all"))
    assert differences(plain, watched) == []
    steps = set(ls.open(tmp_path / "run").stats(kind="output", mode="eval", stat="count")["step"])
    assert {-1, 1} <= steps


class Gan(nn.ModuleDict):
    def __init__(self) -> None:
        super().__init__({"generator": Mlp(), "discriminator": nn.Linear(3, 1)})


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_models_that_are_watched_together_are_evaluated_each_by_itself(as_dictionary: bool) -> None:
    gan = Gan()
    generator, discriminator = gan["generator"], gan["discriminator"]
    optimizer = torch.optim.SGD(gan.parameters(), lr=0.01)
    sink, run = watching(dict(gan) if as_dictionary else gan)
    with run:
        for step in range(30):
            discriminator(generator(torch.randn(5, 6))).mean().backward()
            optimizer.step()
            run.step()
            if step in (4, 24):
                evaluated(generator, 18)
    assert list(in_evaluation(sink, "generator")) == [4, 24]
    assert in_evaluation(sink, "discriminator") == {}
    assert events(sink) == [(step, "16 of 18 forwards of generator") for step in (4, 24)]


def test_a_teacher_that_never_trains_belongs_to_the_steps_of_its_student() -> None:
    teacher, student = Mlp().eval(), Mlp()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    sink, run = watching({"teacher": teacher, "student": student})
    with run:
        for step in range(30):
            x = torch.randn(5, 6)
            with torch.no_grad():
                target = teacher(x)
            (student(x) - target).square().mean().backward()
            optimizer.step()
            run.step()
            if step == 14:
                evaluated(student)
    assert list(in_evaluation(sink, "teacher")) == [0, 10, 20]
    assert list(in_evaluation(sink, "student")) == [14]


@pytest.mark.parametrize("start", [0, 20])
def test_a_model_that_trains_in_evaluation_mode_has_steps_and_no_evaluations(start: int) -> None:
    model = Mlp().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink, run = watching(model, Schedule(every=10, start=start))
    with run:
        for _ in range(40):
            for _ in range(20):  # micro-batches, more than are read of an evaluation
                model(torch.randn(5, 6)).mean().backward()
            optimizer.step()
            run.step()
    found = in_evaluation(sink)
    assert list(found) == list(range(start, 40, 10))
    assert {moments[summary_spec.COLUMN["count"]] for moments in found.values()} == {20 * 15}
    assert events(sink) == []


def test_steps_without_a_training_are_recorded_as_steps() -> None:
    model = Mlp().eval()
    sink, run = watching(model, every=2)
    with run, torch.no_grad():
        for _ in range(6):
            model(torch.randn(5, 6))
            run.step()
    assert list(in_evaluation(sink)) == [0, 2, 4]
    assert events(sink) == []


def test_an_idle_step_has_one_hook_on_the_model_while_an_evaluation_is_due() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    _, run = watching(model, every=4)
    before = hooks_of(model)
    with run:
        for step in range(8):
            train(model, optimizer)
            run.step()
            is_waiting = step in (0, 1, 4, 5, 6)
            assert hooks_of(model) == ([1, *before[1:]] if is_waiting else before), step
            if step == 1:
                evaluated(model)
    assert hooks_of(model) == before


def test_a_model_can_be_copied_and_saved_in_an_idle_step() -> None:
    model = Mlp()
    sink, run = watching(model, every=4)
    with run:
        run.step()
        assert any(hooks_of(model))
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        evaluated(twin)  # a copy is not the watched model
        run.step()
    assert b"layerscope" not in file.getvalue()
    assert in_evaluation(sink) == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("every", [1, 10])
def test_a_fused_layer_keeps_its_fast_path_in_any_step(every: int) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        plain = model.eval()(x)
    global_before = len(global_hooks._global_forward_pre_hooks)
    sink, run = watching(model.train(), every)
    with run:
        for _ in range(2):
            model.train()(x)
            run.step()
        with torch.no_grad():
            for _ in range(5):
                assert torch.equal(model.eval()(x), plain)
    assert len(global_hooks._global_forward_pre_hooks) == global_before
    assert list(in_evaluation(sink)) == [1]


class Changing(nn.Module):
    """Takes another way in evaluation, names a tensor, and has a hook that changes what goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.other = nn.Linear(6, 3), nn.Linear(6, 3)
        self.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (self.usual if self.training else self.other)(x)
        return ls.attach("result", result)


def test_the_graph_has_the_calls_of_an_evaluation_and_inputs_are_those_behind_hooks() -> None:
    model = Changing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink, run = watching(model)
    with run:
        for _ in range(2):
            train(model, optimizer)
            run.step()
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(torch.ones(3, 6))
    calls = {call.site for graph in sink.records if isinstance(graph, CallGraph) for call in graph.calls}
    assert {"usual", "other"} <= calls
    assert rows(sink, kind=Kind.INPUT, mode=Mode.EVAL)[1][summary_spec.COLUMN["sum"]] == 2 * 36
    assert list(rows(sink, "result", Kind.TENSOR, mode=Mode.EVAL)) == [1]


class Failing(Mlp):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if self.fails:
            raise ZeroDivisionError
        return result


@pytest.mark.parametrize("every", [1, 10])
def test_an_evaluation_that_raises_keeps_what_came_before_and_disturbs_nothing(every: int) -> None:
    model = Failing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink, run = watching(model, every)
    with run:
        for step in range(12):
            train(model, optimizer)
            run.step()
            if step == 5:
                evaluated(model, 3)
                model.eval()
                model.fails = True
                with pytest.raises(ZeroDivisionError):
                    model(torch.randn(3, 6))
                model.fails = False
                model.train()
    assert in_evaluation(sink)[5][summary_spec.COLUMN["count"]] == 3 * 9
    assert list(rows(sink, mode=Mode.TRAIN)) == list(range(0, 12, every))
    assert [e for e in sink.records if isinstance(e, Event) and e.level == "warning"] == []


def test_what_the_loop_names_during_an_evaluation_between_steps_is_left_out() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink, run = watching(model)
    with run:
        for step in range(4):
            train(model, optimizer)
            run.step()
            if step == 2:
                for output in evaluated(model, 2):
                    run.record("output", output)
    assert not [series for series in sink.series if series.site == "output"]
    assert list(in_evaluation(sink)) == [2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_evaluations_of_a_compiled_model_are_recorded_between_steps() -> None:
    torch._dynamo.reset()
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    sink, run = watching(compiled, kinds=("output", "weight"))
    seen = []
    with run:
        for step in range(15):
            compiled(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()
            if step == 13:
                compiled.eval()
                with torch.no_grad():
                    seen = [compiled(torch.randn(3, 6)) for _ in range(18)]
                compiled.train()
    found = in_evaluation(sink)
    assert list(found) == [13]
    read = torch.cat(seen[:16]).double()
    assert found[13][summary_spec.COLUMN["sum"]] == pytest.approx(float(read.sum()), rel=1e-9)
    assert list(in_evaluation(sink, "layers.0")) == [13]
    assert events(sink) == [(13, "16 of 18 forwards of (model)")]
    assert list(rows(sink, mode=Mode.TRAIN)) == [0, 10]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_function_calls_a_watched_model_in_idle_steps_as_ever() -> None:
    torch._dynamo.reset()
    model = Mlp().eval()
    function = torch.compile(lambda x: model(x) * 2, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 6)
    with torch.no_grad():
        plain = model(x) * 2
    _, run = watching(model)
    with run, torch.no_grad():
        run.step()
        for _ in range(3):
            assert torch.equal(function(x), plain)
            run.step()


def test_without_evaluations_only_the_forwards_of_recorded_steps_are() -> None:
    model = Mlp()
    sink, run = watching(model, Schedule(every=10, evaluation=0))
    trained_and_evaluated(run, model)
    assert list(in_evaluation(sink)) == [50]  # it was called in evaluation mode between steps 49 and 50
    assert events(sink) == []


@pytest.mark.parametrize("evaluation", [-1, 1.5, None, "all"])
def test_a_wrong_number_of_forwards_is_refused(evaluation: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"evaluation={evaluation!r} is not"):
        Schedule(evaluation=evaluation)


def test_a_schedule_says_how_many_forwards_of_an_evaluation_are_recorded(tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", every=ls.Schedule(every=10, evaluation=2)) as run:
        for _ in range(3):
            model(torch.randn(5, 6)).sum().backward()
            run.step()
        evaluated(model, 5)
    opened = ls.open(tmp_path / "run")
    assert opened.stats("(model)", mode="eval", stat="count")["count"] == [2 * 9]
    told = opened.events().arrow().to_pylist()
    assert [(row["step"], row["text"]) for row in told if row["level"] == "evaluation"] == [
        (2, "2 of 5 forwards of (model)")
    ]


def test_a_paused_recorder_records_no_evaluation_and_a_resumed_one_does() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sink, run = watching(model)
    with run:
        for step in range(30):
            train(model, optimizer)
            run.step()
            if step in (4, 14, 24):
                run.enabled = step != 14
                assert any(hooks_of(model)) is run.enabled
                evaluated(model)
    assert list(in_evaluation(sink)) == [4, 24]


def test_an_evaluation_at_the_end_of_a_program_that_closes_nothing_is_kept(tmp_path: Path) -> None:
    script = """
import torch, layerscope as ls
model = torch.nn.Linear(6, 3)
run = ls.watch(model, to="run", every=EVERY)
for _ in range(13):
    model(torch.randn(5, 6)).sum().backward()
    run.step()
model.eval()
model(torch.randn(5, 6))
"""
    for every in (1, 10):
        folder = tmp_path / str(every)
        folder.mkdir()
        subprocess.run([sys.executable, "-c", script.replace("EVERY", str(every))], cwd=folder, check=True)
        assert ls.open(folder / "run").stats("(model)", mode="eval", stat="count")["step"] == [12]


def test_a_disabled_recorder_puts_no_hook_on_the_model(tmp_path: Path) -> None:
    model = Mlp()
    with ls.watch(model, to=tmp_path / "run", enabled=False) as run:
        run.step()
        assert not any(hooks_of(model))
        evaluated(model)
    assert not (tmp_path / "run").exists()
