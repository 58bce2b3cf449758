"""How fast summaries are made, against `sum()` over the same memory in the same run: one thread, interleaved, medians.

python benchmarks/kernel.py [--json PATH] [--elements 10000000] [--repeat 9]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from layerscope.stats import derived, kernel
from layerscope.stats.torch import add, add_many, dtype_name

CALLS = 200  # of a small tensor, per timing
Row = dict[str, str]


def interleaved(
    tasks: Mapping[str, Callable[[], object]], repeat: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds of each task; each round runs all of them, so that a slow moment hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeat + 1):
        for name, task in tasks.items():
            began = clock()
            task()
            taken[name].append(clock() - began)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def summarized(arena: kernel.Arena, tensor: torch.Tensor, calls: int = 1) -> Callable[[], object]:
    def run() -> None:
        for _ in range(calls):
            add(arena, tensor)
        if len(arena) >= CALLS:
            arena.drain()

    return run


def tensors(elements: int) -> dict[str, torch.Tensor]:
    normal = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    strewn = normal.clone()
    strewn[::5000] = torch.nan
    return {
        "float32": normal,
        "float32 after ReLU": normal.relu(),
        "float32 constant": torch.ones(elements),
        "float32 around 100, counted finely": 100 + normal * 0.01,
        "float32 with NaN in 2 of 5 blocks": strewn,
        "float64": normal.double(),
        "bfloat16": normal.bfloat16(),
        "float16": normal.half(),
        "int64": (normal * 1000).long(),
        "uint8": (normal * 40).abs().to(torch.uint8),
        "float8_e4m3fn": normal.to(torch.float8_e4m3fn),
    }


def large(elements: int, repeat: int) -> list[Row]:
    given, arena = tensors(elements), kernel.Arena()
    plain = given["float32"]
    tasks: dict[str, Callable[[], object]] = {
        "numpy sum()": plain.numpy().sum,
        "torch sum()": plain.sum,
        **{name: summarized(arena, tensor) for name, tensor in given.items()},
    }
    taken = interleaved(tasks, repeat)
    rows = [
        {
            "what": f"full summary, float32, {elements:,} elements, as a share of {of}",
            "measured": f"1/{taken['float32'] / taken[of]:.2f}",
            "limit": "1/5",
        }
        for of in ("numpy sum()", "torch sum()")
    ]
    for name, time_s in taken.items():
        tensor = given.get(name, plain)
        rate = tensor.nbytes / time_s / 1e9
        rows.append(
            {"what": name, "measured": f"{rate:.2f} GB/s, {time_s / elements * 1e9:.2f} ns per element", "limit": ""}
        )
    return rows


def by_threads(elements: int, repeat: int) -> list[Row]:
    """Two threads against one. Their processor time shows what two free cores would give where others use them."""
    given, arena, rows = tensors(elements), kernel.Arena(), []
    for name in ("float32", "float32 around 100, counted finely", "bfloat16", "float8_e4m3fn"):
        tensor = given[name]
        place = tensor.data_ptr(), tensor.numel(), kernel.format_number(dtype_name(tensor))
        tasks = {str(threads): partial(arena.add, *place, threads) for threads in (1, 2)}
        wall = interleaved(tasks, 3 * repeat)
        spent = interleaved(tasks, repeat, time.process_time)
        arena.drain()
        measured = f"{wall['1'] / wall['2']:.2f} × one (by processor time {2 * spent['1'] / spent['2']:.2f})"
        rows.append({"what": f"{name}, {elements:,} elements, two threads", "measured": measured, "limit": "1.7 ×"})
    return rows


def without_compiler(elements: int) -> list[Row]:
    arena, tensor = kernel.Arena(), torch.randn(elements)
    arena._summarize = kernel._summarize_by_numpy
    taken = interleaved({"numpy": summarized(arena, tensor)}, 3)["numpy"]
    return [{"what": "float32 without a compiler", "measured": f"{tensor.nbytes / taken / 1e9:.3f} GB/s", "limit": ""}]


def batched(arena: kernel.Arena, size: int) -> Callable[[], object]:
    many = [torch.randn(size) for _ in range(CALLS)]

    def run() -> None:
        add_many(arena, many)
        arena.drain()

    return run


def small(repeat: int) -> list[Row]:
    arena = kernel.Arena()
    sizes = {1: "", 10: "", 64: "4 µs", 1000: "8 µs", 10_000: ""}
    tasks = {str(size): summarized(arena, torch.randn(size), CALLS) for size in sizes}
    tasks |= {f"{size} in a batch": batched(arena, size) for size in sizes}
    taken = interleaved(tasks, 5 * repeat)
    return [
        {
            "what": f"float32, {size} elements, with the call from Python",
            "measured": f"{taken[str(size)] / CALLS * 1e6:.2f} µs, "
            f"{taken[f'{size} in a batch'] / CALLS * 1e6:.2f} µs in a batch of {CALLS}",
            "limit": limit,
        }
        for size, limit in sizes.items()
    ]


def derivation(repeat: int) -> list[Row]:
    """Reading a heat map's worth of histograms off encoded summaries."""
    arena, scale = kernel.Arena(), np.geomspace(1e-3, 1, 1000)
    normal = torch.randn(20_000)
    for factor in scale:
        add(arena, normal * factor)
    moments, m, offsets, bits = arena.drain()
    edges = np.linspace(-1, 1, 65)

    def histograms() -> None:
        decoded = derived.decode_bits(m, offsets, bits)
        derived.histogram(derived.clip(decoded, moments[:, 13], moments[:, 14]), edges)

    taken = interleaved({"histograms": histograms}, repeat)["histograms"]
    count = len(derived.decode_bits(m, offsets, bits).row)
    what = f"64-bin histograms of 1,000 summaries, {count:,} buckets"
    return [{"what": what, "measured": f"{taken * 1e3:.1f} ms", "limit": "15 ms"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = large(options.elements, options.repeat) + by_threads(options.elements, options.repeat)
    rows += small(options.repeat)
    rows += without_compiler(min(options.elements, 1_000_000)) + derivation(options.repeat)
    print(f"compiled kernel: {kernel.COMPILED}")
    for row in rows:
        print(f"{row['what']:72} {row['measured']:34} {row['limit']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
