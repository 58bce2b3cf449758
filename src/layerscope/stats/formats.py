"""The formats that are read as they lie in memory, and what each byte of the one-byte ones means."""

from __future__ import annotations

import numpy as np

from layerscope.records import Floats

#: Formats of whole words, in the order of the kernel's numbers.
WORDS = ("float32", "float64", "bfloat16", "float16", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def _floats(mantissa_bits: int, bias: int, size: int = 256) -> Floats:
    """What `size` patterns of sign, exponent and mantissa mean, as if all were finite."""
    pattern = np.arange(size)
    sign, rest = 1 - 2 * (pattern // (size // 2)), pattern % (size // 2)
    field, mantissa = rest >> mantissa_bits, rest & ((1 << mantissa_bits) - 1)
    whole = np.where(field == 0, mantissa, mantissa + (1 << mantissa_bits))
    return np.asarray(np.ldexp(sign.astype(np.float64) * whole, np.maximum(field, 1) - bias - mantissa_bits))


def _with(values: Floats, special: dict[int, float]) -> Floats:
    values[list(special)] = list(special.values())
    return values


_NAN, _INF = float("nan"), float("inf")

#: Value of each byte, by format, in the order of the kernel's numbers; the last has two elements in a byte, and
#: here the value of each half.
BYTES: dict[str, Floats] = {
    "int8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float64),
    "uint8": np.arange(256, dtype=np.float64),
    "bool": np.minimum(np.arange(256, dtype=np.float64), 1.0),
    "float8_e4m3fn": _with(_floats(3, 7), {0x7F: _NAN, 0xFF: _NAN}),
    "float8_e4m3fnuz": _with(_floats(3, 8), {0x80: _NAN}),
    "float8_e5m2": _with(
        _floats(2, 15),
        {0x7C: _INF, 0xFC: -_INF, **{sign | low: _NAN for sign in (0, 0x80) for low in (0x7D, 0x7E, 0x7F)}},
    ),
    "float8_e5m2fnuz": _with(_floats(2, 16), {0x80: _NAN}),
    "float8_e8m0fnu": _with(np.ldexp(1.0, np.arange(256) - 127), {0xFF: _NAN}),
    "float4_e2m1fn_x2": np.pad(_floats(1, 1, 16), (0, 240)),
}

#: All of them; a format's place is its number.
STORED = (*WORDS, *BYTES)
