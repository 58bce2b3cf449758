"""Text as a run stores it: UTF-8, which has no place for a lone surrogate."""

from __future__ import annotations

import json
import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # Python holds a pair as one character


def storable(text: str) -> str:
    r"""The text with each lone surrogate escaped: U+DC80 becomes the six characters `\udc80`."""
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json_text(content: object, indent: int | None = None) -> str:
    """JSON of which every text is storable."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(content, indent=indent, ensure_ascii=False, separators=separators)
    return _LONE_SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)
