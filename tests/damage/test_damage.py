"""Whatever happens to a byte or a file of a run: no crash, no hang, no traceback, no number silently another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.damage.examine import examine
from tests.damage.flaws import CUTS, FLIPS, FORGERIES, MOVES, by_kind
from tests.damage.runs import make_runs

FULL = os.environ.get("LAYERSCOPE_FULL") == "1"
COUNTS = (FLIPS, CUTS, MOVES, FORGERIES) if FULL else (140, 40, 30, 60)
SHARES = 8 if FULL else 1  # tests that processes can share
SEED = 16
PEAK_MB = 400  # of a process that has read all flaws: the libraries alone take 150


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_runs(tmp_path_factory.mktemp("runs"))


def test_the_runs_hold_every_kind_of_file(runs: dict[str, Path]) -> None:
    segments, parts = by_kind(runs["uncompacted"]), by_kind(runs["compacted"])
    assert sum(kind.startswith("segments/") for kind in segments) == 11
    assert sum(kind.startswith("tables/") for kind in parts) == 11
    assert {"run.json", "live.json", "graph.json", "sessions"} <= {*segments} & {*parts}
    assert sum(kind.startswith("traces/") for kind in parts) == 4


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_flaw_crashes_hangs_or_changes_a_number_in_silence(runs: dict[str, Path], share: int) -> None:
    folder = next(iter(runs.values())).parent
    first, last = (sum(COUNTS) * at // SHARES for at in (share, share + 1))
    result = examine(folder, SEED, COUNTS, range(first, last))
    assert result.faults == []
    assert result.seen == last - first
    assert result.peak_mb < PEAK_MB
