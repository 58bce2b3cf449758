"""Killed writers and killed compactions: nothing flushed is lost, nothing is doubled, every number is right."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest

from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.format import TABLES
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from tests.store.runs import check_named, check_numbers, put_named, put_steps, start

ENDLESS = 10**9
FOLDERS, KILLS = 5, 10  # fifty kills; a folder is continued after each


def record_and_kill(folder: Path, first: int, pause_s: float) -> list[int]:
    """Steps that a writer said are safe before it was killed."""
    with start("writing", folder, first, 100_000, ENDLESS) as writer:
        assert writer.stdout is not None
        safe = [int(writer.stdout.readline())]
        time.sleep(pause_s)
        writer.kill()
        safe += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    return safe


@pytest.mark.slow
@pytest.mark.parametrize("folder_number", range(FOLDERS))
def test_a_writer_killed_at_random_moments_keeps_every_flushed_row(tmp_path: Path, folder_number: int) -> None:
    chance = random.Random(folder_number)
    folder, first = tmp_path / "run", 1
    safe: set[tuple[int, int]] = set()  # session and step
    for session in range(1, KILLS + 1):
        steps = record_and_kill(folder, first, chance.uniform(0.0, 0.06))
        safe |= {(session, step) for step in steps}
        reader = Reader(folder)
        assert reader.status() == "stopped"
        keys = check_numbers(reader)
        assert safe <= {(session, step) for _, session, step, _ in keys}
        widths = {step: 20 + (step - first) % 40 for step in steps}
        for step, width in widths.items():
            assert sum(key[1:3] == (session, step) for key in keys) == width
        assert {key[3] for key in keys} <= set(reader.series()["series"].to_pylist())
        assert safe <= check_named(reader)
        assert set(reader.left_out.values()) == {0}
        first = steps[-1] + 1
        if chance.random() < 0.3:
            compact(folder)
    before = check_numbers(Reader(folder)), check_named(Reader(folder))
    compact(folder)
    assert (check_numbers(Reader(folder)), check_named(Reader(folder))) == before


def a_run_with_parts_and_segments(folder: Path) -> list[tuple[int, int, int, int]]:
    for session in range(3):
        sink = FolderSink(create(folder, resume=True), compact=session == 0)
        put_steps(sink, range(10 * session, 10 * session + 5 + session))
        put_named(sink, range(10 * session, 10 * session + 5 + session))
        sink.close()
    return check_numbers(Reader(folder))


@pytest.mark.slow
def test_a_compaction_killed_before_any_of_its_acts_loses_and_doubles_nothing(tmp_path: Path) -> None:
    acts = 0
    while True:
        acts += 1
        folder = tmp_path / str(acts)
        before = a_run_with_parts_and_segments(folder)
        open_reader = Reader(folder)
        assert check_numbers(open_reader) == before
        with start("compacting", folder, acts) as process:
            code = process.wait()
        assert check_numbers(open_reader) == before
        assert check_numbers(Reader(folder)) == before
        assert compact(folder).done
        assert check_numbers(open_reader) == check_numbers(Reader(folder)) == before
        assert len(check_named(open_reader)) == 18
        listed = {entry.file for table in TABLES for entry in Reader(folder)._files.live().of(table).parts}
        assert {path.name for path in (folder / "tables").rglob("*") if path.is_file()} <= listed
        assert not list((folder / "segments").rglob("*.arrow"))
        if code == 0:
            break
    assert acts > 15  # it was indeed killed at many moments


def test_a_reader_beside_a_writer_and_a_compactor_sees_every_row_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = threading.Event()
    reports = []

    def compact_on() -> None:
        while not ended.is_set():
            reports.append(compact(folder))

    with start("writing", folder, 1, 40_000, 60) as writer:
        assert writer.stdout is not None
        safe = int(writer.stdout.readline())
        compactor = threading.Thread(target=compact_on)
        compactor.start()
        reader = Reader(folder)
        try:
            for line in writer.stdout:
                check_named(reader)
                steps = {key[2] for key in check_numbers(reader)}
                assert steps >= set(range(1, safe + 1))
                assert steps == set(range(1, max(steps) + 1))
                safe = int(line)
        finally:
            ended.set()
            compactor.join()
    assert {key[2] for key in check_numbers(reader)} == set(range(1, 61))
    assert sum(report.segments for report in reports) > 10
