"""Records cross the wire unchanged, and the page's types say what crosses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from layerscope.model.records import Ints
from layerscope.server import wire
from layerscope.views.run_overview import Timeline
from layerscope.views.scalar import Screen, scalar_view
from tests.server.decoding import decode

GENERATED = Path(__file__).parents[2] / "web" / "src" / "wire.gen.ts"


def test_the_pages_types_are_those_of_the_records() -> None:
    assert GENERATED.read_text(encoding="utf-8") == wire.typescript(), (
        "Run `python -m layerscope.server.wire`, and change the page to fit."
    )


def test_a_record_comes_back_with_every_number_and_name() -> None:
    steps = np.arange(3)
    values = np.array([1.5, np.nan, -np.inf])
    view = scalar_view('lo"ss </script>é', steps, values, Screen())
    plain = decode(wire.encode(Timeline("run", 0, None, (view,), ())))
    assert plain["run"] == "run"
    assert plain["last_step"] is None
    assert plain["metrics"][0]["name"] == 'lo"ss </script>é'
    np.testing.assert_array_equal(plain["metrics"][0]["last"], [1.5, np.nan, -np.inf])
    assert plain["metrics"][0]["not_finite"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["", "a", "ab", "abcdefg", "ä" * 5])
def test_columns_are_aligned_whatever_the_length_of_the_head(name: str) -> None:
    message = wire.encode(scalar_view(name, np.arange(2), np.ones(2), Screen()))
    head = int.from_bytes(message[:4], "little")
    start = -(-(4 + head) // 8) * 8
    assert (len(message) - start) % 8 == 0
    assert message[4 + head : start].strip(b"\0") == b""
    assert decode(message)["last"].tolist() == [1.0, 1.0]


@dataclass(frozen=True)
class Odd:
    """A record with something that has no type on the wire."""

    steps: Ints
    anything: dict[str, int]


def test_a_field_that_has_no_type_on_the_wire_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MESSAGES", (Odd,))
    with pytest.raises(TypeError, match="no type on the wire"):
        wire.typescript()
