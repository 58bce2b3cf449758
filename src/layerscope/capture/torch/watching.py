"""A recorder on a PyTorch model."""

from __future__ import annotations

import time

from layerscope.capture.collector import Collector
from layerscope.capture.recorder import Recorder, When
from layerscope.capture.torch.intake import Extent
from layerscope.capture.torch.listener import TorchListener
from layerscope.capture.torch.named import Settings
from layerscope.capture.torch.targets import Selection, module_nodes
from layerscope.records import Event, Graph, Sink

_ALL_OF_IT = Extent()


def record(selection: Selection, when: When, sink: Sink, first_step: int = 0, extent: Extent = _ALL_OF_IT) -> Recorder:
    """A recorder that reads the selection into the sink."""

    def report(level: str, text: str) -> None:
        sink.put(Event(recorder.current_step, level, text, time.time()))

    if not selection.is_bare:
        sink.put(Graph(module_nodes(selection.model)))
    settings = Settings(when.depth, when.ring > 0)
    listener = TorchListener(selection, Collector(sink), report, extent, settings)
    recorder = Recorder(sink, listener, when, first_step)
    return recorder
