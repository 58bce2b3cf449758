"""A module graph as the page gets it, for the tests of its scene: `python -m tests.golden.nested` writes it anew."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from layerscope.views.module_graph import ModuleGraph
from tests.server.graphs import blocks_graph

FILE = Path(__file__).parent / "nested.json"


def text() -> str:
    """The content of the file."""
    return json.dumps(asdict(ModuleGraph(blocks_graph()).view), separators=(",", ":"), ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
