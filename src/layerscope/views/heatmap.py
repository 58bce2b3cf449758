"""All tensors of a kind over all steps, as one picture: a row per tensor, grouped by the modules' tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from layerscope.errors import SelectError
from layerscope.model.records import Ints
from layerscope.query.matrix import INF, MISSING, NAN, VALUE, Cells, Matrix, Question, States
from layerscope.views.open_run import OpenRun, Runs
from layerscope.views.scalar import Columns, Screen, columns

MOST_CELLS = 1_500_000  # of one picture: with more rows there are fewer columns
FEW_STEPS = 8  # of one column: looking at them side by side is quicker than column by column
ROBUST = 0.005  # share of the values at either end that the colors of a linear scale may leave out


@dataclass(frozen=True, slots=True)
class ColorScale:
    """From where to where colors go; all None where there is no finite value."""

    low: float | None  # true extremes
    high: float | None
    robust_low: float | None  # without the outermost values: for a linear scale
    robust_high: float | None
    abs_low: float | None  # magnitudes other than zero, without the outermost below: for a logarithmic scale
    abs_high: float | None


@dataclass(frozen=True, slots=True)
class HeatMapView:
    """One statistic of all tensors over the steps. Rows stand as the tree of modules is read from top to bottom.

    In `cells`, row after row, NaN says that the tensor has elements that are NaN, Inf that it has infinite ones and
    none that is NaN, −Inf that there is no value. A cell of several values shows what is gravest of these, else the
    value of the largest magnitude.
    """

    stat: str
    thinned: bool  # whether a column is several steps
    first_steps: Ints
    last_steps: Ints
    left: Cells  # where a column begins and ends on the axis of steps
    right: Cells
    labels: tuple[str, ...]  # of the rows: the last part of the path
    sites: tuple[str, ...]  # whole path
    ports: tuple[str, ...]  # "" of a row that is only a group
    depths: Ints
    inside: Ints  # how many of the following rows belong to the group
    own: Ints  # which row of cells is the tensor's own, -1 if none
    whole: Ints  # which row of cells sums up the group, -1 for a row that is none
    cells: Cells
    scale: ColorScale


@dataclass(slots=True)
class _Node:
    label: str
    site: str
    rows: list[int] = field(default_factory=list)  # of the matrix, one per port
    children: dict[str, _Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Listing:
    """The rows of the picture while the tree is walked."""

    labels: list[str] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)  # of the matrix, -1 if none

    def add(self, label: str, site: str, port: str, depth: int, row: int) -> int:
        self.labels.append(label)
        self.sites.append(site)
        self.ports.append(port)
        self.depths.append(depth)
        self.inside.append(0)
        self.row.append(row)
        return len(self.row) - 1


def heat_map(run: OpenRun, question: Question, screen: Screen) -> HeatMapView:
    """One statistic of all tensors of a run over the steps."""
    matrix = run.matrix(question)
    if not matrix.tensors:
        raise SelectError(f"{run.name!r} has no {question.kind!r} in {question.setting}. Choose what was recorded.")
    return heat_map_view(matrix.thinned(screen.every), screen)


def heat_map_view(matrix: Matrix, screen: Screen) -> HeatMapView:
    """The matrix cut to the screen, its rows in the order of the tree, with a row for each group."""
    listing = _listed(matrix.tensors)
    width = min(screen.width, max(1, MOST_CELLS // max(len(listing.row), 1)))
    shown = screen.shows(matrix.steps)
    grouped = columns(matrix.steps[shown], width)
    values, states = _cut(matrix.values[shown], matrix.states[shown], grouped)
    own_rows = np.array([row for row in listing.row if row >= 0], np.int64)
    values, states = values.T[own_rows], states.T[own_rows]
    own = np.where(np.array(listing.row) >= 0, np.cumsum(np.array(listing.row) >= 0) - 1, -1)
    cells, whole = _with_groups(values, states, listing, own)
    return HeatMapView(
        stat=matrix.question.stat,
        thinned=len(grouped) < len(grouped.of_row),
        first_steps=grouped.first_steps,
        last_steps=grouped.last_steps,
        left=grouped.left.astype(np.float32),
        right=grouped.right.astype(np.float32),
        labels=tuple(listing.labels),
        sites=tuple(listing.sites),
        ports=tuple(listing.ports),
        depths=np.array(listing.depths, np.int64),
        inside=np.array(listing.inside, np.int64),
        own=own,
        whole=whole,
        cells=cells.ravel(),
        scale=color_scale(values[states == VALUE]),
    )


def _listed(tensors: tuple[tuple[str, str], ...]) -> _Listing:
    root = _Node("", "")
    for row, (site, _) in enumerate(tensors):
        node = root
        for part in site.split("."):
            path = f"{node.site}.{part}" if node.site or node is not root else part
            node = node.children.setdefault(part, _Node(part, path))
        node.rows.append(row)
    listing = _Listing()
    for child in root.children.values():
        _list(child, 0, tensors, listing)
    return listing


def _list(node: _Node, depth: int, tensors: tuple[tuple[str, str], ...], listing: _Listing) -> None:
    """Put a node and what is below it on the list; a chain without branches and tensors of its own is one row."""
    label = node.label
    while not node.rows and len(node.children) == 1:
        (node,) = node.children.values()
        label = f"{label}.{node.label}"
    ports = [tensors[row][1] for row in node.rows]
    single = len(ports) == 1
    at = listing.add(label, node.site, ports[0] if single else "", depth, node.rows[0] if single else -1)
    if not single:
        for row, port in zip(node.rows, ports, strict=True):
            listing.add(port, node.site, port, depth + 1, row)
    for child in node.children.values():
        _list(child, depth + 1, tensors, listing)
    listing.inside[at] = len(listing.row) - 1 - at


def _cut(values: Cells, states: States, grouped: Columns) -> tuple[Cells, States]:
    """One value and state for each column of the screen."""
    if len(grouped) == len(values):
        return values, states
    starts, sizes = grouped.starts, np.diff(np.append(grouped.starts, len(values)))
    if sizes.max() <= FEW_STEPS:
        return _cut_side_by_side(values, states, starts, sizes)
    parts = [slice(first, first + size) for first, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    strongest = np.stack([_strongest(values[part]) for part in parts])
    return strongest, np.stack([states[part].max(axis=0) for part in parts])


def _cut_side_by_side(values: Cells, states: States, starts: Ints, sizes: Ints) -> tuple[Cells, States]:
    """The same for columns of few steps: the first steps of all columns at once, then the second ones, and so on."""
    high, low, worst = values[starts], values[starts], states[starts]
    for place in range(1, int(sizes.max())):
        wide = np.flatnonzero(sizes > place)
        step = starts[wide] + place
        high[wide] = np.fmax(high[wide], values[step])
        low[wide] = np.fmin(low[wide], values[step])
        worst[wide] = np.maximum(worst[wide], states[step])
    return _larger(low, high), worst


def _strongest(values: Cells) -> Cells:
    """The value of the largest magnitude in each column; NaN where there is none."""
    high: Cells = np.fmax.reduce(values)
    low: Cells = np.fmin.reduce(values)
    return _larger(low, high)


def _larger(low: Cells, high: Cells) -> Cells:
    return np.where(-low > high, low, high)


def _with_groups(values: Cells, states: States, listing: _Listing, own: Ints) -> tuple[Cells, Ints]:
    """The cells of the tensors, then those of the groups; and which row is that of which group."""
    groups = [at for at, inside in enumerate(listing.inside) if inside]
    whole = np.full(len(own), -1, np.int64)
    whole[groups] = len(values) + np.arange(len(groups))
    cells = np.empty((len(values) + len(groups), values.shape[1]), np.float32)
    worst = np.empty((len(groups), values.shape[1]), np.uint8)
    before = np.concatenate(([0], np.cumsum(np.array(listing.row) >= 0)))
    for number, at in enumerate(groups):
        inside = slice(before[at], before[at + listing.inside[at] + 1])
        cells[len(values) + number] = _strongest(values[inside])
        states[inside].max(axis=0, out=worst[number])
    cells[: len(values)] = values
    _code(cells[: len(values)], states)
    _code(cells[len(values) :], worst)
    return cells, whole


def _code(cells: Cells, states: States) -> None:
    """Put the marks of what is no value in place of it."""
    cells[np.isnan(cells)] = -np.inf
    if states.size and (states.min() < VALUE or states.max() > VALUE):
        cells[states == MISSING] = -np.inf
        cells[states == INF] = np.inf
        cells[states == NAN] = np.nan


def color_scale(values: Cells) -> ColorScale:
    """The scale of some finite values."""
    if len(values) == 0:
        return ColorScale(None, None, None, None, None, None)
    # Quantiles of a sample are near enough; the extremes are taken of all.
    sample = values[:: len(values) // 100_000] if len(values) > 200_000 else values
    near, far = np.quantile(sample, [ROBUST, 1 - ROBUST])
    magnitude = np.abs(sample[sample != 0])
    abs_low = float(np.quantile(magnitude, ROBUST)) if len(magnitude) else None
    low, high = float(values.min()), float(values.max())
    return ColorScale(low, high, float(near), float(far), abs_low, max(-low, high) if abs_low is not None else None)


@dataclass(frozen=True, slots=True)
class DifferenceView:
    """How two runs differ: `first` − `second`, or the base-2 logarithm of their ratio, where both have something."""

    first: str
    second: str
    ratio: bool
    steps_in_common: int
    steps_of_first: int
    steps_of_second: int
    only_in_first: tuple[str, ...]  # sites
    only_in_second: tuple[str, ...]
    view: HeatMapView


def difference(runs: Runs, question: Question, screen: Screen, *, ratio: bool) -> DifferenceView:
    """The heat map of the difference of two runs."""
    matrices: dict[str, Matrix] = {}
    for one in runs:
        if one.run is None:
            raise SelectError(one.problem)
        matrices[one.name] = one.run.matrix(question).thinned(screen.every)
    if len(matrices) != 2:
        raise SelectError(f"A difference is of two runs, not of {len(matrices)}.")
    (first, a), (second, b) = matrices.items()
    return difference_view((first, second), (a, b), screen, ratio=ratio)


def difference_view(
    names: tuple[str, str], pair: tuple[Matrix, Matrix], screen: Screen, *, ratio: bool
) -> DifferenceView:
    """The heat map of the difference of two runs, of their common tensors and steps."""
    first, second = pair
    common = [tensor for tensor in first.tensors if tensor in set(second.tensors)]
    steps = np.intersect1d(first.steps, second.steps)
    (a, a_states), (b, b_states) = (_part(matrix, common, steps) for matrix in pair)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        differences = np.log2(np.abs(a) / np.abs(b)) if ratio else a - b
    differences = np.where(a == b, np.float32(0.0), differences)
    states = np.maximum(a_states, b_states)
    states[(a_states == MISSING) | (b_states == MISSING) | (np.isinf(differences) & (states == VALUE))] = MISSING
    whole = replace(first, tensors=tuple(common), steps=steps, values=_finite(differences), states=states)
    sites = {tensor[0] for tensor in first.tensors}, {tensor[0] for tensor in second.tensors}
    return DifferenceView(
        *names,
        ratio=ratio,
        steps_in_common=len(steps),
        steps_of_first=len(first.steps),
        steps_of_second=len(second.steps),
        only_in_first=_only(first, sites[1]),
        only_in_second=_only(second, sites[0]),
        view=heat_map_view(whole, screen),
    )


def _only(matrix: Matrix, others: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(site for site, _ in matrix.tensors if site not in others))


def _part(matrix: Matrix, tensors: list[tuple[str, str]], steps: Ints) -> tuple[Cells, States]:
    place = {tensor: row for row, tensor in enumerate(matrix.tensors)}
    at = np.ix_(np.searchsorted(matrix.steps, steps), np.array([place[tensor] for tensor in tensors], np.int64))
    return matrix.values[at], matrix.states[at]


def _finite(values: Cells) -> Cells:
    return np.where(np.isfinite(values), values, np.float32(np.nan)).astype(np.float32)
