"""Runs are found wherever they lie in a folder, and nothing in it breaks the search."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from layerscope.errors import FormatError, StoreError
from layerscope.query.discover import find_runs
from layerscope.runs import Run


def run_at(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    return folder


def closed_to_us(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make the folder unreadable, for an administrator too, whom no permission stops."""
    listed = os.scandir

    def refuse(path: Path | int) -> object:
        if not isinstance(path, int) and Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)


def test_runs_are_found_at_any_depth_of_a_project_and_sorted(tmp_path: Path) -> None:
    expected = [run_at(tmp_path / name) for name in ("a", "b/one", "b/two", "c/d/e")]
    run_at(tmp_path / "too/deep/for/a-project")
    run_at(tmp_path / ".hidden")
    assert find_runs(tmp_path).runs == expected
    assert find_runs(tmp_path / "a").runs == [tmp_path / "a"]


def test_links_below_the_folder_are_not_followed_but_the_folder_may_be_one(tmp_path: Path) -> None:
    outside = run_at(tmp_path / "outside/run")
    inside = run_at(tmp_path / "project/run")
    (tmp_path / "project/link").symlink_to(outside)
    (tmp_path / "project/up").symlink_to(tmp_path)
    assert find_runs(tmp_path / "project").runs == [inside]
    (tmp_path / "entry").symlink_to(tmp_path / "project")
    assert find_runs(tmp_path / "entry").runs == [tmp_path / "entry/run"]


def test_a_run_whose_manifest_is_a_link_or_a_pipe_is_found_and_refused(tmp_path: Path) -> None:
    outside = run_at(tmp_path / "outside/run")
    for name in ("link", "pipe", "folder"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "project/link/run.json").symlink_to(outside / "run.json")
    os.mkfifo(tmp_path / "project/pipe/run.json")
    (tmp_path / "project/folder/run.json").mkdir()
    found = find_runs(tmp_path / "project").runs
    assert [path.name for path in found] == ["link", "pipe"]
    for path in found:
        with pytest.raises(FormatError, match="is a link or no regular file"):
            Run(path)


def test_an_unreadable_folder_is_skipped_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = run_at(tmp_path / "sound")
    (tmp_path / "closed").mkdir()
    closed_to_us(monkeypatch, tmp_path / "closed")
    found = find_runs(tmp_path)
    assert found.runs == [sound]
    (word,) = found.skipped
    assert "closed' cannot be read: Permission denied" in word


def test_a_project_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_to_us(monkeypatch, tmp_path)
    with pytest.raises(StoreError, match=r"cannot be read: Permission denied\. Check its permissions"):
        find_runs(tmp_path)


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="file systems there hold no such names")
def test_a_name_that_is_no_utf8_is_skipped_with_a_word(tmp_path: Path) -> None:
    sound = run_at(tmp_path / "sound")
    odd = run_at(Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff")))
    found = find_runs(tmp_path)
    assert found.runs == [sound]
    (word,) = found.skipped
    assert "not UTF-8" in word
    word.encode()
    with pytest.raises(StoreError, match="not UTF-8"):
        find_runs(odd)


@pytest.mark.parametrize(("name", "message"), [("nowhere", "There is no folder"), ("file", "is not a folder")])
def test_what_is_no_folder_is_said_so(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=message):
        find_runs(tmp_path / name)
