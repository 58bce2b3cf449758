"""An oscilloscope for neural networks: watch a training, read what was recorded, see it in a page.

Importing layerscope does nothing and loads no framework: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from layerscope.version import __version__

if TYPE_CHECKING:
    from layerscope.api import attach, draw, open, summary, trace, tracing, ui, watch
    from layerscope.capture.core.named_tensors import Detail
    from layerscope.capture.core.schedule import Schedule
    from layerscope.errors import LayerscopeError
    from layerscope.runs import Run
    from layerscope.traces import Trace, compare

__all__ = [
    "Detail",
    "LayerscopeError",
    "Run",
    "Schedule",
    "Trace",
    "__version__",
    "attach",
    "compare",
    "draw",
    "open",
    "summary",
    "trace",
    "tracing",
    "ui",
    "watch",
]

_HOME = {
    **dict.fromkeys(("attach", "draw", "open", "summary", "trace", "tracing", "ui", "watch"), "api"),
    **dict.fromkeys(("Trace", "compare"), "traces"),
    "Detail": "capture.core.named_tensors",
    "LayerscopeError": "errors",
    "Run": "runs",
    "Schedule": "capture.core.schedule",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'layerscope' has no attribute {name!r}; it has: {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(f"layerscope.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
