"""Each printed example of TorchLens' README, label by label."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import layerscope as ls
from layerscope.query.trace_tables import Selector
from layerscope.traces import Layer, Op
from tests.traced import models
from tests.traced.models import AlexNet, SimpleRecurrent

LABELS = """input_1_0 conv2d_1_1 relu_1_2 maxpool2d_1_3 conv2d_2_4 relu_2_5 maxpool2d_2_6 conv2d_3_7 relu_3_8 conv2d_4_9
relu_4_10 conv2d_5_11 relu_5_12 maxpool2d_3_13 adaptiveavgpool2d_1_14 flatten_1_15 dropout_1_16 linear_1_17 relu_6_18
dropout_2_19 linear_2_20 relu_7_21 linear_3_22 output_1_23"""


@pytest.fixture(scope="module")
def alexnet() -> ls.Trace:
    torch.manual_seed(0)
    return ls.trace(AlexNet(), torch.rand(1, 3, 224, 224))


def one(trace: ls.Trace, key: str | int) -> Op:
    found = trace[key]
    assert isinstance(found, Op)
    return found


@pytest.mark.feature("L2")
def test_the_operations_of_alexnet_have_the_names_of_the_readme(alexnet: ls.Trace) -> None:
    assert alexnet.labels == LABELS.split()


@pytest.mark.feature("L3")
def test_the_overview_says_all_that_the_readme_prints(alexnet: ls.Trace) -> None:
    text = str(alexnet)
    for said in (
        "Trace of AlexNet",
        "purely feedforward, without branching; 23 modules in total",
        "24 tensors (5.04 MB) computed; 24 tensors (5.04 MB) saved",
        "16 parameters (61,100,840 elements",
        "Random seed:",
        "Time elapsed:",
        "features:",
        "features.0, features.1, features.2",
        "classifier.5, classifier.6",
        "avgpool",
    ):
        assert said in text
    for index, label in enumerate(LABELS.split()):
        assert f"{index}: {label}" in text


@pytest.mark.feature("L2")
@pytest.mark.parametrize("key", ["conv2d_3_7", "conv2d_3", "conv2d_3_7:1", "features.6", "features.6:1", 7, -17])
def test_every_key_of_the_readme_finds_the_convolution(key: str | int, alexnet: ls.Trace) -> None:
    assert one(alexnet, key).label == "conv2d_3_7"


@pytest.mark.feature("L3")
def test_an_operation_says_all_that_the_readme_prints(alexnet: ls.Trace) -> None:
    text = str(alexnet["conv2d_3_7"])
    for said in (
        "conv2d_3_7, 8/24",
        "shape=(1, 384, 13, 13), dtype=float32",
        "size=260 kB",
        "tensor([[",
        "features.6.weight (384, 192, 3, 3), features.6.bias (384,); 663,936 elements (2.66 MB)",
        "Parents: maxpool2d_2_6",
        "Children: relu_3_8",
        "Function: conv2d (grad_fn=ConvolutionBackward0)",
        "Computed inside module: features.6",
        "Time elapsed:",
        "Output of modules: features.6",
        "Output of bottom-level module: features.6",
        "Lookup keys: -17, 7, conv2d_3_7, conv2d_3_7:1, features.6, features.6:1",
    ):
        assert said in text


@pytest.mark.feature("L4")
def test_the_selection_of_the_readme_saves_what_it_says(alexnet: ls.Trace) -> None:
    wanted: list[Selector] = ["conv2d_3_7", "features", -5, "linear"]
    labels = ["conv2d_3_7", "maxpool2d_3_13", "linear_1_17", "dropout_2_19", "linear_2_20", "linear_3_22"]
    assert [op.label for op in alexnet.find(*wanted)] == labels
    saved = ls.trace(AlexNet(), torch.rand(1, 3, 64, 64), save=wanted)
    assert [saved.labels[index] for index in sorted(saved.values)] == labels
    with pytest.raises(ls.LayerscopeError, match=r"The value of relu_1_2 was not kept.*save='all'"):
        one(saved, "relu_1").value  # noqa: B018  the property raises


@pytest.mark.feature("L6")
def test_the_passes_of_the_recurrent_model_are_those_of_the_readme() -> None:
    model, x = SimpleRecurrent(), torch.randn(6, 5)
    trace = ls.trace(model, x)
    layer = trace["linear_1_1"]
    assert isinstance(layer, Layer)
    assert [op.label for op in layer] == [f"linear_1_1:{number}" for number in (1, 2, 3, 4)]
    expected = model.fc((model.fc(x) + 1) * 2)
    assert torch.equal(one(trace, "linear_1_1:2").value, expected)
    assert torch.equal(layer[2].value, expected)
    assert len(trace.naming.labels) == 5  # input, linear, add, mul, output


@pytest.mark.feature("L5")
def test_the_call_stack_leads_to_the_lines_of_the_model(alexnet: ls.Trace) -> None:
    source = Path(models.__file__)
    (line,) = [frame.line for frame in one(alexnet, "conv2d_3").stack if frame.file == str(source)]
    assert "x = self.features(x)" in source.read_text().splitlines()[line - 1]
