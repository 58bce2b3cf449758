"""Loops: what repeats is one layer with passes, and no feed-forward model is called recurrent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import layerscope as ls
import tests.trace.zoo_exotic
import tests.trace.zoo_forms
import tests.trace.zoo_layers
import tests.trace.zoo_models
import tests.trace.zoo_vision
import tests.trace.zoo_writes  # noqa: F401
from layerscope.capture.torch.tensor_tree import tensors_in
from layerscope.graph.layers import Recurrence, flow, name_layers
from tests.trace.examine import trace
from tests.trace.zoo import ZOO, Calls, Case

pytestmark = [pytest.mark.feature("L6"), pytest.mark.filterwarnings("ignore")]

#: Models that compute a layer with parameters from an earlier pass of it, and why. Stated by hand.
RECURRENT = {
    "autocast_inside": "one linear after itself",
    "cache_in_a_buffer": "token by token, with a cache",
    "grad_mode_switched": "one linear after itself",
    "optimizer_inside": "trains its own weights",
    "output_written_by_setitem_loop": "a recurrent cell",
    "recurrence_without_a_module": "a recurrent cell",
    "running_statistics": "one batch norm after itself",
    "same_module_many_times": "one linear after itself",
    "text.albert": "one layer for all depths",
    "text.gpt2_with_cache": "token by token, with a cache",
    "timm.coat_lite_tiny": "position encodings shared by the blocks of a stage",
    "torchvision.raft_small": "a GRU that refines the flow",
}
#: Models with a loop that carries a value from one iteration to the next, and no parameters inside.
LOOPS = {
    "control_flow": "halves until it is small",
    "iteration_over_a_tensor": "adds up rows",
    "text.falcon_mamba": "scan over time",
    "text.mamba": "scan over time",
    "text.recurrent_gemma": "scan over time",
    "text.rwkv": "scan over time",
    "timm.hiera_tiny_224": "reshapes once for each stage",
    "timm.hrnet_w18_small": "adds up branches",
    "torchvision.fasterrcnn_mobilenet_v3_large_320_fpn": "adds up pyramid levels and images",
    "torchvision.fcos_resnet50_fpn": "adds up pyramid levels and images",
    "torchvision.maskrcnn_resnet50_fpn": "adds up pyramid levels and images",
    "torchvision.retinanet_resnet50_fpn": "adds up pyramid levels and images",
}


class ParameterUses(TorchFunctionMode):
    """Counts how often each function takes each parameter, independently of the tracer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.counts: Counter[tuple[str, str]] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            found = {id(tensor) for _, tensor in tensors_in((args, kwargs or {}), "")}
        gives = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if isinstance(gives, (Tensor, tuple, list)) and name not in ("__get__", "size"):
            self.counts.update((name, self._names[each]) for each in found if each in self._names)
        return gives


def reuses_parameters(case: Case) -> bool:
    """Whether some function takes a parameter twice."""
    if not isinstance(case.call, nn.Module):
        return False
    with ParameterUses(case.call) as uses:
        case.call(*case.args, **case.kwargs)
    return any(count > 1 for count in uses.counts.values())


@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_flow_of_a_model_of_the_zoo_is_what_it_is_known_to_be(name: str) -> None:
    case = evaluated(name)
    record = trace(case, gradients=False).record
    naming = name_layers(record)
    expected = (
        Recurrence.RECURRENT if name in RECURRENT else Recurrence.LOOP if name in LOOPS else Recurrence.FEEDFORWARD
    )
    assert flow(record.operations, naming.layer, naming.members) is expected
    repeated = [each for each in naming.members if len(each) > 1 and record.operations[each[0]].parameters]
    if repeated and isinstance(case.call, nn.Module):
        assert reuses_parameters(evaluated(name))


def evaluated(name: str) -> Case:
    torch.manual_seed(0)
    case = ZOO[name]()
    if isinstance(case.call, nn.Module):
        case.call.eval()
    return case


def labels(forward: Callable[..., Any], **children: nn.Module) -> tuple[list[str], str]:
    made = ls.trace(Calls(forward, **children), torch.randn(3, 4))
    return made.labels[1:-1], repr(made).split("\n")[1]


def three() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(4, 4) for _ in range(3))


def test_a_loop_over_different_linears_is_purely_feedforward() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = torch.relu(layer(x)) + x
        return x

    found, text = labels(forward, layers=three())
    assert found == [
        f"{kind}_{n + 1}_{3 * n + at}" for n in range(3) for at, kind in enumerate(("linear", "relu", "add"), 1)
    ]
    assert "purely feedforward" in text


def test_one_activation_module_after_different_linears_is_several_layers() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = m.act(layer(x))
        return x

    found, text = labels(forward, layers=three(), act=nn.ReLU())
    assert [label for label in found if "relu" in label] == ["relu_1_2", "relu_2_4", "relu_3_6"]
    assert "purely feedforward" in text


def test_results_of_different_linears_that_go_through_one_line_are_several_layers() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = [layer(x) for layer in m.layers]
        return torch.stack([torch.relu(each) for each in hidden])

    assert "relu_3_6" in labels(forward, layers=three())[0]


def test_weights_that_were_transposed_before_the_loop_are_still_different_weights() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for weight in [layer.weight.T for layer in m.layers]:
            x = torch.relu(x @ weight)
        return x

    assert "purely feedforward" in labels(forward, layers=three())[1]


def test_slices_of_one_stacked_parameter_are_different_weights() -> None:
    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            for at in range(3):
                x = torch.relu(nn.functional.linear(x, self.weight[at]))
            return x

    assert "purely feedforward" in repr(ls.trace(Stacked(), torch.randn(3, 4)))


def test_a_graph_attention_network_is_purely_feedforward() -> None:
    class Head(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.project, self.attend = nn.Linear(width, 4, bias=False), nn.Parameter(torch.randn(8, 1))

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            h: Tensor = self.project(x)
            n = len(h)
            pairs = torch.cat([h.repeat_interleave(n, 0), h.repeat(n, 1)], 1).view(n, n, 8)
            scores = nn.functional.leaky_relu((pairs @ self.attend).squeeze(-1), 0.2)
            weights = adjacency.masked_fill(adjacency == 0, -1e9).add(scores).softmax(1)
            return weights.matmul(h)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.ModuleList(Head(width) for _ in range(3)) for width in (4, 12))

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            for heads in (self.first, self.second):
                x = torch.cat([nn.functional.elu(head(x, adjacency)) for head in heads], 1)
            return x

    made = ls.trace(Attention(), torch.randn(5, 4), torch.eye(5))
    assert "purely feedforward" in repr(made)
    assert "elu_6" in {label.rpartition("_")[0] for label in made.labels}


def test_an_operation_before_the_shared_layer_repeats_from_the_first_iteration() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for _ in range(3):
            x = m.cell(torch.relu(x))
        return x

    found, text = labels(forward, first=nn.Linear(4, 4), cell=nn.Linear(4, 4))
    assert found[1::2] == ["relu_1_2:1", "relu_1_2:2", "relu_1_2:3"]
    assert "recurrent, 2 layers with several passes" in text


def test_different_layers_run_through_twice_have_two_passes_each() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            for layer in m.layers:
                x = layer(torch.relu(x))
        return x

    found, _ = labels(forward, layers=three())
    assert found[::2] == [f"relu_{n}_{2 * n - 1}:{number}" for number in (1, 2) for n in (1, 2, 3)]


def test_a_shared_layer_between_different_ones_repeats_and_they_do_not() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = torch.relu(m.shared(x)) + x
            x = torch.tanh(layer(x)) + x
        return x

    found, text = labels(forward, layers=three(), shared=nn.Linear(4, 4))
    assert [label for label in found if "relu" in label] == ["relu_1_2:1", "relu_1_2:2", "relu_1_2:3"]
    assert [label for label in found if "tanh" in label] == ["tanh_1_5", "tanh_2_8", "tanh_3_11"]
    assert "recurrent, 3 layers" in text


def test_loops_inside_loops_are_found() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            x = m.outer(x + 1)
            for _ in range(3):
                x = m.inner(torch.relu(x))
        return x

    found, _ = labels(forward, outer=nn.Linear(4, 4), inner=nn.Linear(4, 4))
    assert [label for label in found if "relu" in label] == [f"relu_1_3:{number}" for number in range(1, 7)]
    assert [label for label in found if "add" in label] == ["add_1_1:1", "add_1_1:2"]


def test_a_learned_first_state_does_not_make_the_first_step_another_layer() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.zeros(3, 4))
            self.step = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            state: Tensor = self.first
            for _ in range(3):
                state = torch.tanh(self.step(state) + x)
            return state

    made = ls.trace(Cell(), torch.randn(3, 4))
    assert len(made["linear_1"]) == len(made["tanh_1"]) == 3


def test_a_loop_without_parameters_is_one_layer_with_passes() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x / (1 + x.abs())
        return x

    found, text = labels(forward)
    assert found[::3] == ["abs_1_1:1", "abs_1_1:2", "abs_1_1:3"]
    assert "a loop without parameters, 3 layers with several passes" in text


def test_an_encoder_for_two_inputs_has_passes_and_is_not_recurrent() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return torch.relu(m.encoder(x)) - torch.relu(m.encoder(-x))

    assert "feedforward, 2 layers with several passes" in labels(forward, encoder=nn.Linear(4, 4))[1]


def test_a_saved_trace_has_the_same_layers(tmp_path: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = m.norm(torch.relu(layer(x)))
        return x

    made = ls.trace(Calls(forward, layers=three(), norm=nn.BatchNorm1d(4)), torch.randn(3, 4))
    made.save(tmp_path / "run")
    assert ls.open(tmp_path / "run").traces()[0].labels == made.labels
