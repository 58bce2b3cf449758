"""Traces on the meta device and of fake tensors: there is a structure, and there are no values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import layerscope as ls
from layerscope.capture.torch.trace.validate import ValidationReport

pytestmark = [pytest.mark.feature("L9"), pytest.mark.feature("L11")]


def network() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.5))
    return nn.Sequential(*layers, nn.Linear(8 * 36, 4))


def on_meta() -> ls.Trace:
    with torch.device("meta"):
        return ls.trace(network(), torch.randn(2, 3, 8, 8))


def of_fakes() -> ls.Trace:
    with FakeTensorMode():
        return ls.trace(network(), torch.randn(2, 3, 8, 8))


def of_fakes_in_a_real_model() -> ls.Trace:
    model = network()
    with FakeTensorMode(allow_non_fake_inputs=True):
        return ls.trace(model, torch.randn(2, 3, 8, 8))


def proven(trace: ls.Trace) -> ValidationReport:
    report = trace.validate()
    assert isinstance(report, ValidationReport)
    return report


WITHOUT_VALUES = pytest.mark.parametrize("make", [on_meta, of_fakes, of_fakes_in_a_real_model])


@WITHOUT_VALUES
def test_validation_does_not_claim_what_it_cannot_see(make: Callable[[], ls.Trace]) -> None:
    report = proven(make())
    assert not report
    assert not report.faults
    assert not report.resumed
    assert report.without_values >= 6
    assert "not validated" in str(report)
    assert "meta or fake tensors" in str(report)


@WITHOUT_VALUES
def test_a_wrong_structure_is_still_a_fault(make: Callable[[], ls.Trace]) -> None:
    trace = make()
    index = next(op.record.index for op in trace if op.function == "flatten")
    assert isinstance(trace.values, dict)
    trace.values[index] = trace.values[index].reshape(-1)
    report = proven(trace)
    assert "flatten" in {fault.function for fault in report.faults}
    assert "WRONG" in str(report)


@WITHOUT_VALUES
def test_such_a_trace_is_printed_drawn_compared_and_saved(make: Callable[[], ls.Trace], tmp_path: Path) -> None:
    trace = make()
    assert "conv2d_1_1" in str(trace)
    assert "(2, 8, 6, 6)" in str(trace["conv2d_1"])
    assert "conv2d_1_1" in trace.draw()
    trace.save(tmp_path / "run")
    assert ls.open(tmp_path / "run").traces()[0].labels == trace.labels
    assert set(ls.compare(trace, make()).pandas()["equal"].isna()) >= {True}


def test_a_real_trace_is_proven_inside_a_fake_mode() -> None:
    trace = ls.trace(network(), torch.randn(2, 3, 8, 8))
    with FakeTensorMode():
        report = proven(trace)
    assert report, str(report)


def test_a_trace_without_kept_values_is_not_called_right() -> None:
    report = proven(ls.trace(network(), torch.randn(2, 3, 8, 8), save=None))
    assert not report
    assert "was not kept" in str(report)
