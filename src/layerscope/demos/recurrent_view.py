"""A custom view for `layerscope ui runs/recurrent-bug --view FILE`: how the five sums of a sample grow.

The page calls `view` when the selection changes, and shows what it returns: a matplotlib figure or, if matplotlib is
not installed, a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    import layerscope as ls
    from layerscope.model.records import Floats
    from layerscope.query.named_tensors import NamedTensors
    from layerscope.query.tensor_query import TensorSelection


def view(selection: TensorSelection, run: ls.Run) -> Figure | pa.Table | str:
    """The sums of the selected sample after each iteration of the selected step, and the answers of the network."""
    named, step = run.named(), selection.step
    passes = dict(zip(named.steps()["step"], named.steps()["iterations"], strict=True))[step]
    first = named.values(step, "helper_partial_sums", "so far")
    if first is None:
        return f"The partial sums of step {step} were not kept."
    sample = int(first.samples[0]) if selection.sample is None else selection.sample
    sums = [values_of(named, step, sample, "helper_partial_sums", "so far", each + 1) for each in range(passes)]
    answers = values_of(named, step, sample, "output", "", passes)
    title = f"{selection.run}, step {step}: the sums of sample {sample}"
    return draw_sums(title, np.stack(sums), answers)


def values_of(named: NamedTensors, step: int, sample: int, name: str, role: str, iteration: int) -> Floats:
    """The values of one sample of a named tensor; NaN if they were not kept."""
    kept = named.values(step, name, role, iteration)
    if kept is None or sample not in kept.samples:
        return np.full(5, np.nan)
    return np.asarray(kept.array[kept.samples.tolist().index(sample)], float)


def draw_sums(title: str, sums: Floats, answers: Floats) -> Figure | pa.Table:
    """A line per sequence; the legend shows the answer of the network and whether it is right."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        import pyarrow as pa

        return pa.table({f"sequence {number}": line for number, line in enumerate(sums.T)})
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="gray", linewidth=1)
    for number, (line, answer) in enumerate(zip(sums.T, answers, strict=True)):
        verdict = "right" if (answer > 0.5) == (line[-1] > 0) else "wrong"
        axes.plot(range(1, len(line) + 1), line, marker="o", label=f"{number}: answer {answer:.4f}, {verdict}")
    axes.set(title=title, xlabel="iteration", ylabel="sum so far", xticks=range(1, len(sums) + 1))
    axes.legend(title="sequence", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
