"""A recorder with any framework's listener, into any sink."""

from __future__ import annotations

import weakref
from typing import Any

from layerscope.capture.core.listener import ModelListener
from layerscope.capture.core.named_tensors import Detail
from layerscope.capture.core.recorder import Opened, Recorder
from layerscope.capture.core.schedule import Every, schedule_of
from layerscope.capture.core.summarizer import SummaryOptions
from layerscope.model.records import Sink

ALL = SummaryOptions()


def record_with(
    listener: type[ModelListener],
    selection: Any,
    every: Every,
    sink: Sink,
    detail: Detail | None = None,
    options: SummaryOptions = ALL,
) -> Recorder:
    """A recorder that reads the selection into the sink."""
    schedule, kept = schedule_of(every), detail or Detail()

    def open(recorder: weakref.ref[Recorder]) -> Opened:
        opened = listener.open(selection, schedule, kept, sink, options, recorder)
        return Opened(sink, opened, models=selection.models)

    return Recorder(open, schedule, kept, listener.framework.next_node)
