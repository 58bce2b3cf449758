"""A recorder on a PyTorch model."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch

from layerscope.capture.collector import Collector
from layerscope.capture.recorder import Opened, Recorder, When
from layerscope.capture.torch.intake import Extent
from layerscope.capture.torch.listener import TorchListener
from layerscope.capture.torch.named import Settings
from layerscope.capture.torch.targets import Selection, module_nodes
from layerscope.records import Event, Graph, Sink

_ALL_OF_IT = Extent()

#: The number of autograd's next node on this thread: another one once a forward has run.
progress: Callable[[], int] = torch._C._autograd._get_sequence_nr


def record(selection: Selection, when: When, sink: Sink, first_step: int = 0, extent: Extent = _ALL_OF_IT) -> Recorder:
    """A recorder that reads the selection into the sink."""

    def open(recorder: weakref.ref[Recorder]) -> Opened:
        return Opened(sink, listener(selection, when, sink, extent, recorder), first_step, models=selection.models)

    return Recorder(open, when, progress, first_step)


def listener(
    selection: Selection, when: When, sink: Sink, extent: Extent, recorder: weakref.ref[Recorder]
) -> TorchListener:
    """A listener that reads the selection into the sink, for a recorder that it does not keep alive."""

    def report(level: str, text: str) -> None:
        live = recorder()
        if live is not None:
            sink.put(Event(live.current_step, level, text, time.time()))

    if not selection.is_bare:
        sink.put(Graph(module_nodes(selection.model)))
    extent = replace(extent, evaluation=when.evaluation)
    return TorchListener(selection, Collector(sink), report, extent, Settings(when.depth, when.ring > 0))
