"""A recorder on a PyTorch model."""

from __future__ import annotations

import time

from layerscope.capture.collector import Collector
from layerscope.capture.recorder import Recorder
from layerscope.capture.schedule import Schedule
from layerscope.capture.torch.modules import TorchListener
from layerscope.capture.torch.targets import Selection, module_graph
from layerscope.records import Event, Sink
from layerscope.stats.torch import add


def record(selection: Selection, schedule: Schedule, sink: Sink, first_step: int) -> Recorder:
    """A recorder that reads the selection into the sink."""

    def report(text: str) -> None:
        sink.put(Event(recorder.current_step, "warning", text, time.time()))

    sink.put(module_graph(selection.model))
    listener = TorchListener(selection, Collector(sink, add), report)
    recorder = Recorder(sink, listener, schedule, first_step)
    return recorder
