"""A look at many runs costs as much per run as a look at few."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from layerscope.server.catalogue import Catalogue
from layerscope.views.open_run import SeriesNumber
from tests.server.runs import write_run


def listings_of_a_look(project: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many folders the second look at a project lists; the first one opens the runs."""
    catalogue, listed = Catalogue(project), 0
    catalogue.look()

    def counted(function: object) -> object:
        def count(*arguments: object) -> object:
            nonlocal listed
            listed += 1
            return function(*arguments)  # type: ignore[operator]

        return count

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", counted(os.scandir))
        patched.setattr(os, "listdir", counted(os.listdir))
        patched.setattr(catalogue, "_looked", (0.0, {}))
        assert catalogue.look()
    catalogue.close()
    return listed


def test_a_look_lists_as_many_folders_per_run_whatever_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "model", steps=1)
    for number in range(20):
        shutil.copytree(run, tmp_path / "project" / f"run-{number}")
    few = listings_of_a_look(tmp_path / "project", monkeypatch)
    for number in range(20, 40):
        shutil.copytree(run, tmp_path / "project" / f"run-{number}")
    assert listings_of_a_look(tmp_path / "project", monkeypatch) <= 2 * few


def test_a_run_that_vanished_is_not_kept_open(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", steps=1)
    catalogue = Catalogue(tmp_path)
    before = catalogue.open("first")
    assert list(catalogue.look()) == ["first"]
    shutil.move(run, tmp_path / "second")
    catalogue._looked = (0.0, {})
    assert list(catalogue.look()) == ["second"]
    shutil.move(tmp_path / "second", run)
    assert catalogue.open("first") is not before
    catalogue.close()


def test_a_catalogue_that_was_warmed_up_has_the_first_history_at_hand(tmp_path: Path) -> None:
    write_run(tmp_path / "first", steps=2)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    catalogue = Catalogue(tmp_path)
    catalogue.warm_up().result(timeout=60)
    opened = catalogue.open("first")
    kept = opened._histories.peek(SeriesNumber(0, 0))
    assert kept is not None
    assert opened.history(SeriesNumber(0, 0)) is kept
    catalogue.close()


def test_a_folder_without_runs_is_nothing_to_warm_up(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        catalogue = Catalogue(folder)
        assert catalogue.warm_up().result(timeout=60) is None
        catalogue.close()
