"""Messages as the page sees them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from layerscope.server.wire import ALIGNMENT


def decode(message: bytes) -> Any:  # Any: JSON's own shapes, with arrays in them
    """The plain content of an encoded record, as the page sees it."""
    size = int.from_bytes(message[:4], "little")
    start = -(-(4 + size) // ALIGNMENT) * ALIGNMENT

    def revived(plain: dict[str, Any]) -> Any:
        return columns[plain["column"]] if set(plain) == {"column"} else plain

    head = json.loads(message[4 : 4 + size])
    columns = [np.frombuffer(message, f"<{kind}", length, start + at) for kind, at, length in head["columns"]]
    return json.loads(json.dumps(head["record"]), object_hook=revived)
