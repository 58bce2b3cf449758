"""Reads what the server sends, without the page."""

from __future__ import annotations

import json
from typing import Any


def decoded(message: bytes) -> dict[str, Any]:
    """The head of a message: the record, with columns as references."""
    length = int.from_bytes(message[:4], "little")
    record: dict[str, Any] = json.loads(message[4 : 4 + length])["record"]
    return record
