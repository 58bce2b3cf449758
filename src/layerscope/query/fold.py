"""Where a tall stack of layers is broken into columns, so that a deep network fits on a screen and not on a strip."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

TALL, TALL_FOR_ITS_WIDTH = 1300.0, 2.0  # a stack is folded when it is higher than this, and so many times its width
ASPECT = 1.2  # height by width that is aimed at
WORTH_IT = 0.75  # the tallest column, as a share of the whole
MOST_LINES = 8  # that go on in the next column
REACH = 0.4  # of a column: how far from its ideal place a break may be
LINE_COST = 60.0  # how far a break moves to cut one line less


def breaks(
    bands: Sequence[tuple[float, float]], width: float, crossing: Sequence[int], forbidden: Collection[int]
) -> list[int]:
    """The layers after which a new column begins.

    `bands` are tops and bottoms of the layers in one stack, `crossing` the lines below each layer; a stack may not be
    broken below a `forbidden` layer.
    """
    if not bands:
        return []
    height = bands[-1][1] - bands[0][0]
    allowed = [at for at in range(len(bands) - 1) if at not in forbidden and crossing[at] <= MOST_LINES]
    if height < TALL or height < TALL_FOR_ITS_WIDTH * width or not allowed:
        return []
    columns = max(2, round(math.sqrt(height / (ASPECT * (width + 40.0)))))
    found: list[int] = []
    for number in range(1, columns):
        ideal = bands[0][0] + height * number / columns
        reach = REACH * height / columns
        left = [at for at in allowed if abs(bands[at][1] - ideal) < reach and at not in found]
        if left:
            found.append(min(left, key=lambda at: abs(bands[at][1] - ideal) + LINE_COST * crossing[at]))
    starts = [0, *(at + 1 for at in found)]
    tallest = max(bands[end][1] - bands[start][0] for start, end in zip(starts, [*found, len(bands) - 1], strict=True))
    return found if tallest < WORTH_IT * height else []
