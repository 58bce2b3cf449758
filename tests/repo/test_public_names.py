from __future__ import annotations

import json
import subprocess
import sys

import layerscope
from tests.repo.source import ROOT

HEAVY = ("torch", "pyarrow", "duckdb", "starlette", "uvicorn", "numpy", "rich")


def test_every_public_name_can_be_used() -> None:
    for name in layerscope.__all__:
        assert getattr(layerscope, name) is not None


def test_public_names_fit_on_one_screen_and_are_sorted() -> None:
    assert len(layerscope.__all__) <= 15
    assert list(layerscope.__all__) == sorted(layerscope.__all__)
    assert dir(layerscope) == sorted(layerscope.__all__)


def test_importing_loads_nothing_heavy() -> None:
    code = f"import layerscope, sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_every_public_name_is_in_the_reference() -> None:
    headings = [line for line in (ROOT / "docs/reference.md").read_text().splitlines() if line.startswith("#")]
    missing = [n for n in layerscope.__all__ if not any(f"`{n}" in heading for heading in headings)]
    assert missing == []
