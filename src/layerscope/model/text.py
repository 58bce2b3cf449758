"""Shapes, numbers and quantities as people read them: the same in tables, drawings, errors and on the page.

`tests/golden/text.json` holds examples that `web/src/format.ts` is tested with as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Sizes from which on a prefix is used.
_PREFIXES = {"s": ((1e-6, "µ"), (1e-3, "m"), (1.0, ""))}
_LARGE = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
PLAIN = (1e-3, 1e5)  # magnitudes that are written without a power of ten


def shape_text(shape: Sequence[int]) -> str:
    """A shape.

    >>> shape_text((2, 12, 32)), shape_text(())
    ('2×12×32', 'scalar')
    """
    return "×".join(map(str, shape)) or "scalar"


def number_text(x: float, digits: int = 4) -> str:
    """A number with some significant digits.

    >>> [number_text(x) for x in (0.25, -1.23456, 12345.6, 1.5e-7)]
    ['0.25', '−1.235', '12346', '1.5e−7']
    """
    if math.isnan(x):
        return "–"
    sign, size = "−" if x < 0 else "", abs(x)
    if math.isinf(x):
        return f"{sign}∞"
    if size and not PLAIN[0] <= size < PLAIN[1]:
        mantissa, _, exponent = f"{size:.{digits - 2}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{sign}{mantissa}e{int(exponent)}".replace("e-", "e−")
    rounded = math.floor(size + 0.5) if size >= 10**digits else float(f"{size:.{digits}g}")
    return f"{sign}{rounded:.15g}"


def quantity(x: float, unit: str) -> str:
    """A quantity in the unit that suits it.

    >>> quantity(259584, "B"), quantity(3.2e-5, "s")
    ('260 kB', '32 µs')
    """
    prefixes = _PREFIXES.get(unit, _LARGE)
    factor, prefix = prefixes[0]
    for least, larger in prefixes[1:]:
        if abs(x) >= least:
            factor, prefix = least, larger
    return f"{number_text(x / factor, 3)} {prefix}{unit}"
