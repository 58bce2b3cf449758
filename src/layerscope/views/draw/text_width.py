"""How wide a text will be, without asking a browser.

Widths are the larger of Helvetica's and DejaVu Sans', so that a text fits whichever sans font the reader has.
"""

from __future__ import annotations

from functools import lru_cache

# Hundredths of the font size → the characters of that width.
_CLASSES = {
    29: "'ijl", 31: "I", 33: " ,.·", 36: "/:;\\|f", 42: "()[]!-rt", 47: '"', 50: "*`J", 57: "sz?c_L–", 60: "k",
    61: "vxy", 65: "Taeo$0123456789bdghnpqu{}FP", 70: "YKESZABVX", 73: "CR", 79: "UNH&DGOQ", 85: "#+<=>^~×w", 92: "M",
    104: "W%@m…→",
}  # fmt: skip
_WIDTHS = {character: width / 100 for width, characters in _CLASSES.items() for character in characters}
_OTHER = 1.0  # what is not in the table may be as wide as high
_BOLD = 0.085


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of a text in pixels; at most this in any common sans font.

    >>> text_width("conv2d", 10.0) < text_width("conv2d", 10.0, bold=True)
    True
    """
    return size * sum(_WIDTHS.get(character, _OTHER) + (_BOLD if bold else 0.0) for character in text)


def shortened(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """The text, or as much of its beginning and end as fits with an ellipsis between; empty where nothing fits.

    The end of a module path tells more than its middle.

    >>> shortened("encoder.layers.11.attention", 10.0, 80.0)
    'encode…ntion'
    """
    if text_width(text, size, bold=bold) <= room:
        return text
    for kept in range(len(text) - 1, 1, -1):
        short = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
        if text_width(short, size, bold=bold) <= room:
            return short
    return ""
