"""An oscilloscope for neural networks: watch a training, read what was recorded, see it in a page.

Importing layerscope does nothing and loads no framework: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from layerscope.version import __version__

if TYPE_CHECKING:
    from layerscope.api import open, ui, watch
    from layerscope.capture.schedule import Schedule
    from layerscope.errors import LayerscopeError
    from layerscope.query.run import Run

__all__ = ["LayerscopeError", "Run", "Schedule", "__version__", "open", "ui", "watch"]

_HOME = {
    "LayerscopeError": "layerscope.errors",
    "Run": "layerscope.query.run",
    "Schedule": "layerscope.capture.schedule",
    "open": "layerscope.api",
    "ui": "layerscope.api",
    "watch": "layerscope.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'layerscope' has no attribute {name!r}; it has: {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
