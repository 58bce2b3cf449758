"""The command, as a user runs it: a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import layerscope as ls
from layerscope.cli.main import compaction_text, main
from layerscope.store.compaction import CompactReport
from tests.query.test_discover import closed_to_us
from tests.server.runs import write_run


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "layerscope.cli", *map(str, words)]
    environment = {**os.environ, "COLUMNS": "40"}  # of a terminal: nothing that is piped is cut to it
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    done = command("demo", "--no-serve", "--steps", "20", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "layerscope ui runs" in done.stdout
    return folder


def test_the_demo_records_a_training(recorded: Path) -> None:
    run = ls.open(recorded / "runs/demo")
    assert run.status() == "finished"
    assert run.metrics()["step"] == list(range(20))
    assert "corrupt" in run.events()["text"][0]


def test_show_gives_an_overview_a_table_and_answers_to_sql(recorded: Path) -> None:
    assert "blocks.0.up" in command("show", "runs", cwd=recorded).stdout
    table = command("show", "runs/demo", "blocks.*.up", "--stat", "rms", cwd=recorded).stdout
    assert "blocks.3.up" in table
    assert "rms" in table
    answer = command("show", "runs/demo", "--sql", "select count(*) as rows from metrics", cwd=recorded).stdout
    assert re.search(r"\b40\b|\b20\b", answer)


def test_compact_says_what_it_did(recorded: Path) -> None:
    done = command("compact", "runs/demo", cwd=recorded)
    assert done.returncode == 0
    assert done.stdout == "runs/demo: nothing new to compact.\n"  # the recorder did it at the end
    report = CompactReport(done=True, rows={"moments": 1200, "metrics": 34}, bytes_before=2_500_000, bytes_after=98_765)
    assert compaction_text(report) == "1,234 rows compacted from 2.5 MB to 98.8 kB in 0.00 s."
    assert compaction_text(CompactReport(done=False)) == "another process is compacting it."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "nowhere"], "There is no folder 'nowhere'"),
        (["show", "runs/demo", "blok"], "No site matches 'blok'"),
        (["show", "runs/demo", "--sql", "select nothing"], "The query failed"),
        (["ui", "nowhere"], "There is no folder 'nowhere'"),
        (["show", "runs/demo/segments"], "There are no runs in 'runs/demo/segments'"),
        (["show", "runs/demo/run.json"], "'runs/demo/run.json' is not a folder"),
        (["compact", "runs/demo/run.json"], "'runs/demo/run.json' is not a folder"),
        (["compact", "runs/demo/segments"], "There are no runs in 'runs/demo/segments'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words: list[str], message: str, recorded: Path) -> None:
    done = command(*words, cwd=recorded)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_piped_is_not_cut_to_a_terminals_width(recorded: Path) -> None:
    table = command("show", "runs/demo", "blocks.0.up", "--kind", "output", cwd=recorded).stdout.splitlines()
    names = ["step", "site", "port", "kind", "mode", "dtype", "phase", "rank", "mean", "std", "rms"]
    assert table[1].split()[:11] == names
    assert len(table[3].split()) == len(table[1].split())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two sound runs, with a damaged one between them."""
    for name in ("a", "b", "c"):
        write_run(tmp_path / name, steps=2, site=f"site-of-{name}")
    (tmp_path / "b" / "run.json").write_text("{ no JSON")
    return tmp_path


def test_a_damaged_run_is_reported_and_the_others_are_shown(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(project)]) == 2
    shown = capfd.readouterr()
    assert "site-of-a" in shown.out
    assert "site-of-c" in shown.out
    assert shown.err.count("layerscope: ") == 1
    assert f"{project / 'b' / 'run.json'} is damaged" in shown.err


def test_a_damaged_run_is_reported_and_the_others_are_compacted(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", str(project)]) == 2
    shown = capfd.readouterr()
    assert [line.partition(":")[0] for line in shown.out.splitlines()] == [str(project / "a"), str(project / "c")]
    assert "run.json is damaged" in shown.err


def test_every_table_of_several_runs_stands_below_its_runs_name(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(project), "site-of-c", "--stat", "rms"]) == 2
    shown = capfd.readouterr()
    assert str(project / "c") in shown.out.splitlines()
    assert f"layerscope: {project / 'a'}: No site matches 'site-of-c'" in shown.err


def test_an_unreadable_folder_is_reported_and_the_runs_beside_it_are_shown(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "closed").mkdir()
    closed_to_us(monkeypatch, project / "closed")
    assert main(["show", str(project)]) == 2
    shown = capfd.readouterr()
    assert "site-of-c" in shown.out
    assert "closed' cannot be read: Permission denied" in shown.err


def test_help_teaches_by_example(tmp_path: Path) -> None:
    done = command("--help", cwd=tmp_path)
    assert "layerscope show runs/first" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spirals", "recurrent-bug"])
def test_the_demo_prints_the_address_of_a_page_and_ends_when_interrupted(name: str, tmp_path: Path) -> None:
    line = [sys.executable, "-u", "-m", "layerscope.cli", "demo", name, "--steps", "5", "--port", "0", "--no-browser"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            assert found is not None
            while "Look again with" not in process.stdout.readline():
                assert process.poll() is None
            with urllib.request.urlopen(f"{found[0]}api/runs") as answer:
                assert answer.status == 200
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
