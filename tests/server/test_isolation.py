"""One run that cannot be read, whatever the reason, is one line of the list; few runs are kept open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from layerscope.errors import FormatError, SelectError
from layerscope.server import catalogue as catalogue_module
from layerscope.server.catalogue import Catalogue
from layerscope.store.reader import Reader
from layerscope.views.run_overview import LONGEST_PROBLEM, run_entry
from tests.server.runs import write_run


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (RecursionError("deep"), "RecursionError: deep"),
        (MemoryError(), "MemoryError"),
        (OverflowError("x" * 5000), "OverflowError"),
        (FormatError("\ud800" * 5000), r"\ud800"),
    ],
    ids=["nesting", "memory", "long text", "no text"],
)
def test_an_unforeseen_error_of_one_run_is_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, word: str
) -> None:
    for name in ("bad", "good"):
        write_run(tmp_path / name, steps=1)
    status = Reader.status

    def failing(reader: Reader) -> str:
        if reader.folder.name == "bad":
            raise error
        return status(reader)

    monkeypatch.setattr(Reader, "status", failing)
    catalogue = Catalogue(tmp_path)
    bad, good = catalogue.entries()
    assert (bad.status, good.status) == ("unreadable", "finished")
    assert bad.problem is not None
    assert word in bad.problem
    assert len(bad.problem.encode()) <= LONGEST_PROBLEM + 10
    assert catalogue.look()["bad"].status == "unreadable"
    catalogue.close()


def test_few_runs_are_kept_open_and_their_lines_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_run(tmp_path / "model", steps=1)
    for number in range(20):
        shutil.copytree(model, tmp_path / "project" / f"run-{number}")
    made: list[str] = []

    def counted(name: str, status: str, reader: Reader) -> object:
        made.append(name)
        return run_entry(name, status, reader)

    monkeypatch.setattr(catalogue_module, "run_entry", counted)
    catalogue = Catalogue(tmp_path / "project")
    for _ in range(2):
        names = [entry.name for entry in catalogue.entries()]
        for name in names:
            assert catalogue.open(name).reader.last_step == 0
    assert sorted(made) == sorted(names)
    assert len(catalogue._opened) == catalogue_module.KEPT_RUNS
    catalogue.close()


def test_a_problem_that_a_request_meets_appears_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", steps=1)
    catalogue = Catalogue(tmp_path)
    (before,) = catalogue.entries()
    looked = catalogue.look()
    opened = catalogue.open("run")
    opened.reader.left_out["rows of unknown series"] = 3
    (after,) = catalogue.entries()
    assert (before.problem, after.problem) == (None, "3 rows of unknown series were left out.")
    catalogue._looked = (0.0, {})
    assert catalogue.look() != looked
    catalogue._opened.discard("run")  # another reader, which has met nothing yet
    assert catalogue.entries()[0].problem == after.problem
    catalogue.close()


def test_a_folder_that_became_a_link_is_no_run_any_more(tmp_path: Path) -> None:
    write_run(tmp_path / "project" / "group" / "run", steps=1)
    write_run(tmp_path / "outside" / "run", steps=1)
    catalogue = Catalogue(tmp_path / "project")
    assert catalogue.open("group/run").reader.last_step == 0
    shutil.rmtree(tmp_path / "project" / "group")
    (tmp_path / "project" / "group").symlink_to(tmp_path / "outside")
    with pytest.raises(SelectError, match="No run here"):
        catalogue.open("group/run")
    catalogue.close()
