"""Each number is compared with what plain PyTorch gives at the same point, in float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from layerscope.capture.core.recorder import Recorder
from layerscope.capture.torch.targets import Choices, choose
from layerscope.model import summary_spec
from layerscope.model.records import Kind, Metric, Mode, Phase
from tests.capture.models import Hooked, Mlp, Recurrent, Structured
from tests.capture.naming import record
from tests.capture.sinks import ListSink


def watching(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    kinds: Choices = ("output", "weight", "weight_grad"),
    every: int = 1,
) -> tuple[ListSink, Recorder]:
    sink = ListSink()
    return sink, record(choose(model, optimizer, kinds, "*"), every, sink)


def rms(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().mean().sqrt())


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-6)


def test_outputs_are_those_of_the_forward() -> None:
    model = Mlp()
    sink, run = watching(model)
    seen = {}
    for path, module in model.named_modules():
        module.register_forward_hook(lambda m, a, output, path=path: seen.update({path or "(model)": output.clone()}))
    with run:
        model(torch.randn(5, 6))
        run.step()
    assert set(seen) == {s.site for s in sink.series if s.kind is Kind.OUTPUT}
    for site, output in seen.items():
        assert sink.stat("rms", site, Kind.OUTPUT) == near(rms(output))


def test_a_replaced_output_is_read_after_the_hook_that_replaced_it() -> None:
    model = Hooked()
    sink, run = watching(model)
    x = torch.randn(5, 6)
    with run:
        model(x)
        run.step()
    assert sink.stat("rms", "layers.0", Kind.OUTPUT) == near(rms(nn.Linear.forward(model.layers[0], x) * 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("clear", ["before", "after"])
@pytest.mark.parametrize("given", [True, False])
def test_weight_gradients_are_read_as_the_optimizer_applied_them(given: bool, clear: str) -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sink, run = watching(model, optimizer if given else None)
    with run:
        for _ in range(3):
            if clear == "before":
                optimizer.zero_grad()
            for _ in range(2):
                (model(torch.randn(5, 6)) * 50).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            applied = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
            if clear == "after":
                optimizer.zero_grad()
            run.step()
    for name, gradient in applied.items():
        assert sink.stat("rms", name, Kind.WEIGHT_GRAD, step=2) == near(rms(gradient))
    assert {s.phase for s in sink.series if s.kind is Kind.WEIGHT_GRAD} == {Phase.OPTIMIZER}


def test_gradients_without_an_optimizer_step_are_read_when_the_step_ends() -> None:
    model = Mlp()
    sink, run = watching(model)
    with run:
        model(torch.randn(5, 6)).sum().backward()
        run.step()
    (gradient,) = [p.grad for name, p in model.named_parameters() if name == "layers.0.weight"]
    assert gradient is not None
    assert sink.stat("rms", "layers.0.weight", Kind.WEIGHT_GRAD) == near(rms(gradient))
    assert {s.phase for s in sink.series if s.kind is Kind.WEIGHT_GRAD} == {Phase.STEP}


def test_weights_are_read_after_the_update() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sink, run = watching(model, optimizer)
    with run:
        model(torch.randn(5, 6)).square().mean().backward()
        optimizer.step()
        run.step()
    for name, parameter in model.named_parameters():
        assert sink.stat("rms", name, Kind.WEIGHT) == near(rms(parameter))


def test_forwards_of_one_step_are_added_up() -> None:
    model = Mlp().eval()
    sink, run = watching(model)
    parts = [torch.randn(size, 6) for size in (5, 3)]
    with run:
        outputs = [model(x) for x in parts]
        run.step()
    both = torch.cat(outputs)
    assert sink.stat("count", "layers.3", Kind.OUTPUT, mode=Mode.EVAL) == both.numel()
    assert sink.stat("rms", "layers.3", Kind.OUTPUT, mode=Mode.EVAL) == near(rms(both))
    (summaries,) = sink.summaries()
    outputs_of = [i for i, s in enumerate(sink.series) if s.kind is Kind.OUTPUT]
    assert all(summaries.merged[summaries.series == i] == 2 for i in outputs_of)


def test_each_call_in_a_forward_is_a_site_of_its_own() -> None:
    model = Recurrent()
    sink, run = watching(model)
    with run:
        model(torch.randn(4, 6))
        model(torch.randn(4, 6))
        run.step()
    assert [s.site for s in sink.series if s.site.startswith("cell") and s.kind is Kind.OUTPUT] == [
        "cell",
        "cell#2",
        "cell#3",
    ]
    assert {s.port for s in sink.series if s.site == "lstm"} == {"output.0", "output.1.0", "output.1.1"}


def test_tensors_are_found_in_dataclasses_and_dicts() -> None:
    model = Structured()
    sink, run = watching(model)
    with run:
        model(torch.randn(4, 6))
        run.step()
    assert {s.port for s in sink.series if s.site == "(model)"} == {"output.logits", "output.extra.positive"}


def test_one_tensor_at_two_sites_is_summarized_once() -> None:
    model = Mlp()
    sink, run = watching(model)
    with run:
        model(torch.randn(4, 6))
        run.step()
    (summaries,) = sink.summaries()
    by_site = {s.site: i for i, s in enumerate(sink.series) if s.kind is Kind.OUTPUT}
    alias = {site: int(summaries.alias[summaries.series == number][0]) for site, number in by_site.items()}
    assert alias["layers"] == alias["(model)"] == by_site["layers.3"]
    assert alias["layers.3"] == -1


def test_a_tensor_changed_in_place_is_summarized_again() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.first(x * 1.0).mul_(3.0)
            return result

    model = InPlace()
    sink, run = watching(model)
    x = torch.randn(4, 6)
    with run:
        model(x)
        run.step()
    assert sink.stat("rms", "first", Kind.OUTPUT) == near(rms(x))
    assert sink.stat("rms", "(model)", Kind.OUTPUT) == near(rms(x * 3))


def test_evaluation_is_kept_apart_from_training() -> None:
    model = Mlp()
    sink, run = watching(model)
    with run:
        model.train()(torch.randn(4, 6))
        with torch.no_grad():
            model.eval()(torch.randn(9, 6))
        run.step()
    assert sink.stat("count", "layers.3", Kind.OUTPUT, mode=Mode.TRAIN) == 4 * 3
    assert sink.stat("count", "layers.3", Kind.OUTPUT, mode=Mode.EVAL) == 9 * 3


def test_a_forward_computed_again_by_checkpointing_counts_once() -> None:
    class Checkpointed(Mlp):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = checkpoint(self.layers, x, use_reentrant=False)
            return result

    model = Checkpointed()
    sink, run = watching(model)
    with run:
        model(torch.randn(4, 6, requires_grad=True)).sum().backward()
        run.step()
    assert sink.stat("count", "layers.0", Kind.OUTPUT) == 4 * 16


def test_nan_and_inf_are_counted_and_do_not_hide_the_rest() -> None:
    model = nn.Identity()
    sink, run = watching(model)
    with run:
        model(torch.tensor([float("nan"), float("inf"), -float("inf"), 3.0]))
        run.step()
    stats = {name: sink.stat(name, "(model)", Kind.OUTPUT) for name in ("nan", "pos_inf", "neg_inf", "rms")}
    assert stats == {"nan": 1, "pos_inf": 1, "neg_inf": 1, "rms": 3.0}


def test_a_tensor_that_cannot_be_read_is_named_once_and_left_out() -> None:
    model = nn.Identity()
    sink, run = watching(model)
    with run:
        for _ in range(3):
            model(torch.eye(3).to_sparse())
        run.step(loss=1.0)
    assert len(sink.warnings()) == 1
    assert "(model)" in sink.warnings()[0].text


def test_a_bug_in_a_listener_is_reported_once_and_does_not_reach_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Mlp()
    sink, run = watching(model)
    monkeypatch.setattr("layerscope.capture.core.framework.tensors_in", lambda *a: 1 / 0)
    with run:
        with pytest.warns(UserWarning, match="ZeroDivisionError"):
            model(torch.randn(4, 6))
        run.step(loss=1.0)
        model(torch.randn(4, 6))
        run.step(loss=2.0)
    assert sink.summaries() == []
    assert [r.value for r in sink.records if isinstance(r, Metric)] == [1.0, 2.0]
    assert len(sink.warnings()) == 1


def test_forwards_in_threads_keep_their_own_numbers() -> None:
    class Constant(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, x: Tensor) -> Tensor:
            return x * 0 + self.value

    model = nn.ModuleList(Constant(float(i + 1)) for i in range(6))
    sink, run = watching(model)
    x = torch.randn(2000)
    with run, ThreadPoolExecutor(6) as pool:
        for _ in range(20):
            list(pool.map(lambda module: [module(x) for _ in range(3)], model))
            run.step()
    assert sink.warnings() == []
    for summaries in sink.summaries():
        for number, peak in zip(summaries.series, summaries.moments[:, summary_spec.COLUMN["max"]], strict=True):
            assert peak == float(sink.series[number].site.split("#")[0]) + 1


def test_calls_are_numbered_within_one_outermost_call() -> None:
    model = nn.ModuleDict({"generator": Mlp(), "critic": Mlp()})
    sink, run = watching(model)
    with run:
        for _ in range(3):  # the container itself is never called
            model["critic"](torch.randn(4, 6))
            model["generator"](torch.randn(4, 6))
        with pytest.raises(RuntimeError):
            model["critic"](torch.randn(4, 7))  # fails inside, and is tried again
        model["critic"](torch.randn(4, 6))
        run.step()
    assert not [s.site for s in sink.series if "#" in s.site]
    assert sink.stat("count", "critic.layers.3", Kind.OUTPUT) == 4 * 4 * 3


def test_replaced_parameters_and_added_modules_are_read_from_the_next_step_on() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    sink, run = watching(model)
    with run:
        run.step()
        model.load_state_dict({"0.weight": torch.full((2, 2), 7.0), "0.bias": torch.zeros(2)}, assign=True)
        model.append(nn.Linear(2, 3))
        run.step()
        model(torch.randn(1, 2))
        run.step()
    assert sink.stat("max", "0.weight", Kind.WEIGHT, step=2) == 7.0
    assert sink.stat("count", "1", Kind.OUTPUT, step=2) == 3


def test_a_weight_written_through_data_is_read_as_it_is() -> None:
    class Itself(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            return self.weight

    model = Itself()
    sink, run = watching(model)
    with run:
        model()
        model.weight.data.add_(4.0)
        run.step()
    assert sink.stat("max", "weight", Kind.WEIGHT) == 5.0


def test_an_unset_field_of_a_dataclass_is_passed_over() -> None:
    @dataclass
    class Partial:
        logits: Tensor
        cache: Tensor = field(init=False)

    class Gives(nn.Module):
        def forward(self, x: Tensor) -> Partial:
            return Partial(x)

    model = Gives()
    sink, run = watching(model)
    with run:
        model(torch.randn(2))
        run.step()
    assert [s.port for s in sink.series] == ["output.logits"]


def test_a_lazy_module_is_read_once_it_has_its_parameters() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    sink, run = watching(model)
    with run:
        run.step()
        model(torch.randn(2, 5))
        run.step()
    assert sink.stat("count", "0.weight", Kind.WEIGHT, step=1) == 15
