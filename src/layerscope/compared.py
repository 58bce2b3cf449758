"""Two traces side by side: which operations differ, and by how much."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.errors import SelectError
from layerscope.query.table import Table
from layerscope.traced import Trace, as_array


def compare(first: Trace, second: Trace) -> Table:
    """One row for each operation that both traces kept a value of: the largest and the relative difference.

    Operations are matched by label: the passes must have the same structure, as those of `Trace.rerun` have.
    `relative` is the norm of the difference as a share of the norm of the first; NaN counts as equal to NaN. All three
    are null where there are no values, as on the meta device.
    """
    others = {label: index for index, label in enumerate(second.labels)}
    pairs = [(label, i, others[label]) for i, label in enumerate(first.labels) if label in others]
    shared = [(label, i, j) for label, i, j in pairs if i in first.values and j in second.values]
    if not shared:
        raise SelectError("The two traces share no operation whose value both kept. Trace both with save='all'.")
    found = [_difference(as_array(first.values[i]), as_array(second.values[j])) for _, i, j in shared]
    columns = {
        "label": [label for label, _, _ in shared],
        "function": [first.record.operations[i].function for _, i, _ in shared],
        "equal": [equal for equal, _, _ in found],
        "largest": [largest for _, largest, _ in found],
        "relative": [relative for _, _, relative in found],
    }
    return Table(pa.table(columns))


def _difference(
    one: npt.NDArray[np.generic] | None, other: npt.NDArray[np.generic] | None
) -> tuple[bool | None, float | None, float | None]:
    if one is None or other is None:  # meta and fake tensors have nothing to compare
        return None, None, None
    if one.shape != other.shape:
        return False, None, None
    wide = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
    a, b = one.astype(wide), other.astype(wide)
    equal = np.array_equal(a, b, equal_nan=True)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, a - b)
    size = float(np.linalg.norm(np.nan_to_num(a.ravel())))
    distance = float(np.linalg.norm(apart.ravel()))
    return equal, float(np.abs(apart).max(initial=0.0)), distance / size if size else distance
