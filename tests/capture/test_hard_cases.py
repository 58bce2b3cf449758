"""What makes watching hard: in each case the training stays the same bit for bit, and the numbers are right."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import T5Config, T5ForConditionalGeneration

import layerscope as ls
from layerscope.model.records import Kind, Mode
from tests.capture.models import Answer, InPlaceCnn, Mlp, Recurrent, gpt2
from tests.capture.sinks import ListSink
from tests.capture.test_reading_points import watching
from tests.capture.training import checked, mistakes, recorded, referenced, same_bits, sgd, sites, steps, vectors

pytestmark = pytest.mark.feature("E7")
OF_OUTPUT = (Kind.OUTPUT_GRAD, Kind.OUTPUT_GRAD_NORM)


def ports(sink: ListSink, site: str, kind: Kind) -> set[str]:
    return {series.port for series in sink.series if (series.site, series.kind) == (site, kind)}


class Wrapped(nn.Module):
    """One layer in front of whatever is tried."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(self.first(x))
        return result


def test_in_place_activations_and_additions_keep_the_values_before_them() -> None:
    checked(lambda: InPlaceCnn().double(), steps)


def test_an_in_place_module_has_its_input_of_before_and_its_output_of_after() -> None:
    sink = checked(lambda: Wrapped(nn.ReLU(inplace=True)).double(), steps)
    rows = recorded(sink, 0)
    assert rows["inner", "input.0", Kind.INPUT, Mode.TRAIN]["min"] < 0
    assert rows["inner", "output.0", Kind.OUTPUT, Mode.TRAIN]["min"] == 0
    assert rows["first", "output.0", Kind.OUTPUT, Mode.TRAIN]["min"] < 0


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor, *, mask: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = self.inner(input=x) * mask
        return result if bias is None else result + bias


class Masking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 3)
        self.masked = Masked()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.masked(x, mask=x[:, :3] > 0, bias=self.first(x))
        return result


def test_tensors_given_by_keyword_are_inputs_with_gradients() -> None:
    sink = checked(lambda: Masking().double(), steps)
    assert ports(sink, "masked", Kind.INPUT) == {"input.0", "input.mask", "input.bias"}
    assert ports(sink, "masked", Kind.INPUT_GRAD) == {"input.bias"}
    assert ports(sink, "masked.inner", Kind.INPUT) == {"input.input"}


@dataclass
class Batch:
    values: Tensor
    nothing: Tensor | None = None


class Taking(nn.Module):
    """Takes a dict, a list, None and a dataclass; gives a dataclass with a dict with None."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, one: dict[str, Tensor], two: list[Tensor], three: None, four: Batch) -> Answer:
        hidden = one["x"] + two[0] * two[1] + four.values
        return Answer(self.layer(hidden), {"positive": hidden.relu().mean(), "nothing": three})


class Giving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.taking = Taking()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        answer = self.taking({"x": y}, [y * 2, x], None, Batch(y - 1))
        result: Tensor = answer.logits + answer.extra["positive"]
        return result


def test_tensors_in_dicts_lists_and_dataclasses_are_found_and_none_is_passed_over() -> None:
    sink = checked(lambda: Giving().double(), steps)
    assert ports(sink, "taking", Kind.INPUT) == {"input.0.x", "input.1.0", "input.1.1", "input.3.values"}
    assert ports(sink, "taking", Kind.INPUT_GRAD) == {"input.0.x", "input.1.0", "input.3.values"}
    assert ports(sink, "taking", Kind.OUTPUT_GRAD) == {"output.logits", "output.extra.positive"}


def test_a_module_that_gives_nothing_is_passed_over() -> None:
    class Silent(nn.Module):
        def forward(self, x: Tensor) -> None:
            return None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.silent, self.last = Silent(), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.silent(x)
            result: Tensor = self.last(x)
            return result

    sink = checked(lambda: Model().double(), steps)
    assert ports(sink, "silent", Kind.OUTPUT) == set()


def test_an_lstm_and_a_cell_called_in_a_loop_are_recorded() -> None:
    sink = checked(lambda: Recurrent().double(), steps)
    assert {"lstm", "cell", "cell#2", "cell#3"} <= sites(sink, Kind.OUTPUT_GRAD) & sites(sink, Kind.INPUT)


def test_a_bidirectional_lstm_of_two_layers_with_its_own_start_is_recorded() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.zeros(4, 4, 3))
            self.lstm = nn.LSTM(2, 3, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            out, (hidden, cell) = self.lstm(x.view(4, 3, 2), (self.start * 1, self.start * 2))
            result: Tensor = out.sum() + hidden.square().sum() + cell.sum()
            return result

    sink = checked(lambda: Model().double(), steps)
    assert ports(sink, "lstm", Kind.INPUT_GRAD) == {"input.1.0", "input.1.1"}
    assert ports(sink, "lstm", Kind.OUTPUT_GRAD) == {"output.0", "output.1.0", "output.1.1"}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of transformers' own code
def test_hugging_faces_gpt2_is_recorded_with_labels_and_a_cache() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            ids = torch.randint(0, 40, (3, 7))
            result = model.get_submodule("model")(input_ids=ids, labels=ids, use_cache=True)
            result.loss.backward()
            optimizer.step()
            yield [result.loss, result.logits]

    sink = same_bits(lambda: gpt2().double(), loop)
    for step, parts in enumerate(referenced(lambda: gpt2().double(), loop)):
        found = recorded(sink, step)
        logits = [found.pop(("model", "output.logits", kind, Mode.TRAIN)) for kind in OF_OUTPUT]
        head = [found["model.lm_head", "output.0", kind, Mode.TRAIN] for kind in OF_OUTPUT]
        assert [row["norm"] for row in logits] == [row["norm"] for row in head]  # the loss is made of them inside
        lines = mistakes(found, parts)
        assert [line for line in lines if "output.past_key_values" not in line] == []  # a cache has a form of its own
        assert ("model", "output.loss", Kind.OUTPUT_GRAD, Mode.TRAIN) in found


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of transformers' own code
def test_tied_weights_of_hugging_faces_t5_are_recorded_under_every_name_and_no_module_is_missed() -> None:
    small = T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    small.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(small)
    sink, run = watching(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with run:
        ids = torch.randint(0, 30, (2, 5))
        model(input_ids=ids, labels=ids).loss.backward()
        run.step()
    tied = {f"{name}.weight" for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")}
    for kind in (Kind.WEIGHT, Kind.WEIGHT_GRAD):
        assert tied <= sites(sink, kind)
        assert len({sink.stat("rms", name, kind) for name in tied}) == 1
    (summaries,) = sink.summaries()
    names = {sink.series[number].site for number in summaries.series[summaries.alias >= 0]}
    assert len(names & tied) == 3
    assert not sink.warnings()


class Words(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, sparse=sparse)
        self.last = nn.Linear(6, 2)

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.last(self.embed(words).mean(1))
        return result


def words_loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
    for _ in range(3):
        optimizer.zero_grad()
        output = model(torch.randint(0, 11, (4, 5)))
        output.square().mean().backward()
        optimizer.step()
        yield output


def test_integer_inputs_are_recorded_and_so_are_the_gradients_of_the_parameters() -> None:
    sink = checked(lambda: Words().double(), words_loop)
    assert {s.dtype for s in sink.series if (s.site, s.kind) == ("embed", Kind.INPUT)} == {"int64"}
    assert "embed.weight" in sites(sink, Kind.WEIGHT_GRAD)
    assert "embed" not in sites(sink, Kind.INPUT_GRAD)


def test_a_sparse_gradient_is_recorded_or_named_in_a_warning() -> None:
    sink = same_bits(lambda: Words(sparse=True).double(), words_loop, sgd)
    warned = [event.text for event in sink.warnings() if "embed.weight" in event.text]
    assert "embed.weight" in sites(sink, Kind.WEIGHT_GRAD) or len(warned) == 1
    assert "last.weight" in sites(sink, Kind.WEIGHT_GRAD)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e20, 1e-42])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_strange_value_at_the_first_step_is_recorded_as_it_is(value: float, dtype: torch.dtype) -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, 6, dtype=dtype)
            x[1, 2] = value
            output = model(x)
            output.mean().backward()
            optimizer.step()
            yield output

    sink = checked(lambda: Mlp().to(dtype), loop)
    row = recorded(sink, 0)["(model)", "input.0", Kind.INPUT, Mode.TRAIN]
    assert row["nan"] + row["pos_inf"] + row["neg_inf"] == (0 if abs(value) < 1e30 else 1)
    assert row["count"] == 24


def test_a_batch_of_no_samples_is_recorded_as_empty() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for samples in (0, 3, 0):
            optimizer.zero_grad()
            output = model(vectors(samples))
            output.sum().backward()
            optimizer.step()
            yield output

    sink = checked(lambda: Mlp().double(), loop)
    assert recorded(sink, 0)["layers.3", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]["count"] == 0


def test_complex_tensors_are_recorded_by_their_magnitude() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4, dtype=torch.complex128), nn.Linear(4, 2, dtype=torch.complex128))

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            optimizer.zero_grad()
            output = model(torch.randn(4, 6, dtype=torch.complex128))
            output.abs().square().mean().backward()
            optimizer.step()
            yield output

    checked(make, loop)


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        x = self.layer(x).tanh()
        result: Tensor = self(x, depth=depth - 1) if depth else x
        return result * 2


def test_a_module_that_calls_itself_has_a_site_for_each_call() -> None:
    sink = checked(lambda: Recursive().double(), steps)
    assert sites(sink, Kind.OUTPUT_GRAD) == {"(model)", "(model)#2", "(model)#3", "layer", "layer#2", "layer#3"}


class Changing(nn.Module):
    """Another branch, and another number of rounds, at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.round = nn.Linear(6, 6)
        self.called = 0

    def forward(self, x: Tensor) -> Tensor:
        self.called += 1
        x = self.branches[self.called % 2](x)
        for _ in range(self.called):
            x = self.round(x).tanh()
        return x


def test_branches_and_loops_may_change_from_step_to_step() -> None:
    sink = checked(lambda: Changing().double(), steps)
    called = [{k[0] for k in recorded(sink, step) if k[2] is Kind.OUTPUT} - {"(model)"} for step in range(3)]
    assert called == [
        {"branches.1", "round"},
        {"branches.0", "round", "round#2"},
        {"branches.1", "round", "round#2", "round#3"},
    ]


def test_a_forward_without_gradients_may_come_first() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        with torch.no_grad():
            yield model(vectors())
        with torch.inference_mode():
            yield model(vectors())
        yield from steps(model, optimizer)

    sink = checked(lambda: Mlp().double(), loop)
    assert not [k for k in recorded(sink, 0) if "grad" in k[2].value]


def test_two_recorders_on_one_model_both_record_everything() -> None:
    def two(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        sink, run = watching(model, optimizer, kinds="all")
        with run:
            for result in steps(model, optimizer):
                yield result
                run.step()
        sinks.append(sink)

    sinks: list[ListSink] = []
    checked(lambda: InPlaceCnn().double(), two, reference_loop=steps)
    for step, parts in enumerate(referenced(lambda: InPlaceCnn().double(), steps)):
        assert [mistakes(recorded(sink, step), parts) for sink in sinks] == [[], []]


def test_copying_and_saving_a_watched_model_takes_nothing_of_the_recorder_along() -> None:
    sizes: list[int] = []

    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for output in steps(model, optimizer):
            twin = copy.deepcopy(model)
            other = twin(vectors(9))
            other.mean().backward()
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            sizes.append(len(file.getvalue()))
            yield [output, other, loaded(vectors(7))]

    sink = same_bits(lambda: Mlp().double(), loop)
    assert len(set(sizes)) == 1
    for step in range(3):
        assert recorded(sink, step)["layers.3", "output.0", Kind.OUTPUT, Mode.TRAIN]["count"] == 4 * 3
        assert recorded(sink, step)["layers.3", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]["count"] == 4 * 3


def test_a_forward_that_fails_and_is_tried_again_is_numbered_anew() -> None:
    def loop(model: nn.Module, optimizer: Optimizer) -> Iterator[object]:
        for _ in range(2):
            with pytest.raises(RuntimeError):
                model(torch.randn(4, 7, dtype=torch.float64))
            optimizer.zero_grad()
            output = model(vectors())
            output.sum().backward()
            optimizer.step()
            yield output

    sink = same_bits(lambda: Mlp().double(), loop)
    assert not [series.site for series in sink.series if "#" in series.site]
    assert recorded(sink, 1)["layers.0", "output.0", Kind.OUTPUT_GRAD, Mode.TRAIN]["count"] == 4 * 16


def test_a_module_whose_forward_is_called_directly_is_recorded_or_warned_about(tmp_path: Path) -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.inner.forward(x))
            return result

    model = Direct()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).mean().backward()
            optimizer.step()
            run.step()
    read = ls.open(tmp_path / "run")
    events = read.events()
    warned = [
        text
        for text, level in zip(events["text"], events["level"], strict=True)
        if level == "warning" and "inner" in text
    ]
    series = read.series()
    recorded_sites = {s for s, kind in zip(series["site"], series["kind"], strict=True) if kind == "output"}
    assert ("inner" in recorded_sites) != (len(warned) == 1)
