"""Every model of the zoo: traced, the result is that of the plain call, and the record can be proven."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tests.trace.zoo_exotic
import tests.trace.zoo_forms
import tests.trace.zoo_layers
import tests.trace.zoo_models
import tests.trace.zoo_vision
import tests.trace.zoo_writes  # noqa: F401
from layerscope.capture.torch.trace.gaps import Repeat
from layerscope.capture.torch.trace.validate import validate
from layerscope.model.trace_record import Role, TraceRecord
from tests.trace.examine import ancestors, grad_mode, plain, same_everywhere, tensors, trace
from tests.trace.zoo import ZOO, Case

FULL = os.environ.get("LAYERSCOPE_FULL") == "1"
WAYS = [(False, True), (True, True), (False, False), (True, False)] if FULL else [(False, True)]  # training, grad

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what other people's models warn of is not our concern
    pytest.mark.feature("L1"),
    pytest.mark.feature("L9"),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small models gain nothing from threads, and lose much where several processes test at once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("training", "grad"), WAYS)
@pytest.mark.parametrize("name", sorted(ZOO))
def test_traced_call_gives_what_the_plain_call_gives_and_can_be_proven(name: str, training: bool, grad: bool) -> None:
    case = prepared(name, training=training)
    with grad_mode(grad):
        seed()
        expected = plain(case)
        state = torch.get_rng_state()
        seed()
        traced = trace(case)
        assert torch.equal(torch.get_rng_state(), state)
        assert same_everywhere(traced.output, expected)
    buffers = buffers_of(case)
    repeat = Repeat(case.call, case.args, case.kwargs)
    with grad_mode(grad):
        report = validate(traced.tracer, traced.record, repeat, rerun=True)
    assert bool(report) != case.gap, str(report)
    assert bool(report.gaps) == case.gap
    assert not report.faults
    assert report.resumed
    assert torch.equal(torch.get_rng_state(), state)
    assert same_everywhere(buffers_of(case), buffers)
    assert bool(traced.record.stale) == case.unproven
    check_graph(traced.record, case, outputs=len(tensors(expected)))


def test_the_zoo_has_a_hundred_and_fifty_models() -> None:
    assert len(ZOO) >= 150


def seed() -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # some models draw from it


def prepared(name: str, *, training: bool) -> Case:
    torch.manual_seed(0)
    case = ZOO[name]()
    if isinstance(case.call, nn.Module):
        case.call.train(training and not case.only_eval)
    return case


def buffers_of(case: Case) -> list[Any]:
    return [buffer.clone() for buffer in case.call.buffers()] if isinstance(case.call, nn.Module) else []


def check_graph(record: TraceRecord, case: Case, *, outputs: int) -> None:
    """Every output is marked and comes from an input; nothing comes from nowhere."""
    found = [operation for operation in record.operations if operation.role is Role.OUTPUT]
    assert len(found) == outputs
    reached = {record.operations[index].role for output in found for index in ancestors(record, output.index)}
    assert case.unseen or Role.INPUT in reached
    for operation in record.operations:
        assert all(parent.operation < operation.index for parent in operation.parents)
