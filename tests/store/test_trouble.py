"""Disks and folders that fail while a training runs: one warning, the training goes on, what can be kept is kept."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from layerscope.errors import LayerscopeWarning
from layerscope.model.records import TensorValues
from layerscope.store.compaction import compact
from layerscope.store.folder import create
from layerscope.store.reader import Reader
from layerscope.store.writer import FolderSink
from tests.store.runs import NO_SAMPLES, check_numbers, put_steps, start


def permitted(*command: object) -> str | None:
    """Runs a system command; None if it worked, else why not."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no {command[0]}"
    return done.stderr.strip() or "refused" if done.returncode else None


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    refused = permitted("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk)
    if refused:
        pytest.skip(f"no small disk can be mounted here: {refused}")
    yield disk
    permitted("umount", "-l", disk)


@contextmanager
def told_once(words: str) -> Iterator[None]:
    """Checks that exactly one warning of ours is given inside, and that it has the words."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    ours = [str(warning.message) for warning in told if warning.category is LayerscopeWarning]
    assert len(ours) == 1, ours
    assert words in ours[0]


def put_until(sink: FolderSink, wait_s: float, steps: range) -> None:
    """Puts steps and waits after each for the disk, but not for long."""
    for step in steps:
        put_steps(sink, [step], width=40)
        sink.flush(wait_s)


def test_a_full_disk_is_told_once_and_written_again_when_there_is_room(tiny_disk: Path) -> None:
    filler = tiny_disk / "filler"
    sink = FolderSink(create(tiny_disk / "run"), compact=False)
    put_until(sink, 5.0, range(5))
    with told_once("No space left on device"):
        filler.write_bytes(bytes(1_500_000))
        put_until(sink, 0.05, range(5, 60))
        assert not sink.flush(0.1)
        put_until(sink, 0.01, range(60, 70))
    filler.unlink()
    assert sink.flush(10.0)
    put_until(sink, 5.0, range(70, 72))
    sink.close()
    reader = Reader(tiny_disk / "run")
    assert {key[2] for key in check_numbers(reader)} == set(range(72))
    assert any("works again" in text for text in reader.events()["text"].to_pylist())
    assert sum(sink.dropped.values()) == 0


def test_a_disk_that_stays_full_costs_a_warning_and_what_did_not_fit(tiny_disk: Path) -> None:
    sink = FolderSink(create(tiny_disk / "run"), queue_bytes=400_000)
    (tiny_disk / "filler").write_bytes(bytes(1_400_000))
    with told_once("No space left on device"):
        put_until(sink, 0.05, range(150))
        sink.put(TensorValues.one(1, 0, NO_SAMPLES, np.zeros(100_000)))
    with told_once("could not be written to its end"):
        sink.close(5.0)
    assert sink.dropped["values"] == 1
    assert sink.dropped["bits"] > 0
    reader = Reader(tiny_disk / "run")
    assert reader.status() == "stopped"
    steps = {key[2] for key in check_numbers(reader)}
    assert set(range(10)) < steps < set(range(150))


def test_a_segment_that_may_not_grow_is_followed_by_a_fresh_one_without_loss_or_doubles(tmp_path: Path) -> None:
    with start("limited", tmp_path / "run", 60_000) as writer:
        assert writer.stdout is not None
        assert writer.stdout.read() == "1 warning: File too large\n"
    assert writer.returncode == 0
    assert len(list((tmp_path / "run/segments/moments").iterdir())) > 1
    assert {key[2] for key in check_numbers(Reader(tmp_path / "run"))} == set(range(20))


def test_a_folder_that_may_not_be_written_any_more_is_told_once(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    locked = list((tmp_path / "run/segments").iterdir())
    refused = [reason for path in locked if (reason := permitted("chattr", "+i", path))]
    if refused:
        sink.close()
        pytest.skip(f"no folder can be made unchangeable here: {refused[0]}")
    try:
        with told_once("Operation not permitted"):
            put_until(sink, 0.05, range(5))
    finally:
        for path in locked:
            permitted("chattr", "-i", path)
    assert sink.flush(10.0)
    sink.close()
    assert {key[2] for key in check_numbers(Reader(tmp_path / "run"))} == set(range(5))


def test_a_deleted_folder_is_told_once_and_not_made_again(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_until(sink, 5.0, range(3))
    shutil.rmtree(tmp_path / "run")
    with told_once("run was deleted or moved. Nothing more is recorded; the training goes on."):
        put_until(sink, 1.0, range(3, 20))
        sink.close()
    assert not (tmp_path / "run").exists()


def test_a_folder_deleted_and_made_anew_is_left_to_its_new_owner(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_until(sink, 5.0, range(3))
    shutil.rmtree(tmp_path / "run")
    other = FolderSink(create(tmp_path / "run"))
    put_until(other, 5.0, range(2))
    with told_once("deleted and created again"):
        put_until(sink, 1.0, range(100, 105))
        sink.close()
    other.close()
    assert {key[2] for key in check_numbers(Reader(tmp_path / "run"))} == {0, 1}


def test_a_run_that_cannot_be_compacted_at_the_end_is_whole_all_the_same(tmp_path: Path) -> None:
    sink = FolderSink(create(tmp_path / "run"))
    put_until(sink, 5.0, range(3))
    shutil.rmtree(tmp_path / "run/tables")
    (tmp_path / "run/tables").write_text("in the way")
    with told_once("could not be tidied up"):
        sink.close()
    (tmp_path / "run/tables").unlink()
    reader = Reader(tmp_path / "run")
    assert reader.status() == "finished"
    assert compact(tmp_path / "run").done
    assert {key[2] for key in check_numbers(reader)} == set(range(3))
