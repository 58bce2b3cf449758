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


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "layerscope.cli", *map(str, words)]
    environment = {**os.environ, "COLUMNS": "200"}
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
    assert run.kpis()["step"] == list(range(20))
    assert "corrupt" in run.events()["text"][0]


def test_show_gives_an_overview_a_table_and_answers_to_sql(recorded: Path) -> None:
    assert "blocks.0.up" in command("show", "runs", cwd=recorded).stdout
    table = command("show", "runs/demo", "blocks.*.up", "--stat", "rms", cwd=recorded).stdout
    assert "blocks.3.up" in table
    assert "rms" in table
    answer = command("show", "runs/demo", "--sql", "select count(*) as rows from kpis", cwd=recorded).stdout
    assert re.search(r"\b40\b|\b20\b", answer)


def test_compact_says_what_it_did(recorded: Path) -> None:
    done = command("compact", "runs/demo", cwd=recorded)
    assert done.returncode == 0
    assert "runs/demo" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "nowhere"], "There is no folder 'nowhere'"),
        (["show", "runs/demo", "blok"], "No site matches 'blok'"),
        (["show", "runs/demo", "--sql", "select nothing"], "The query failed"),
        (["ui", "nowhere"], "There is no folder 'nowhere'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words: list[str], message: str, recorded: Path) -> None:
    done = command(*words, cwd=recorded)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_help_teaches_by_example(tmp_path: Path) -> None:
    done = command("--help", cwd=tmp_path)
    assert "layerscope show runs/first" in done.stdout


@pytest.mark.slow
def test_the_demo_prints_the_address_of_a_page_and_ends_when_interrupted(tmp_path: Path) -> None:
    line = [sys.executable, "-u", "-m", "layerscope.cli", "demo", "--steps", "5", "--port", "0", "--no-browser"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            assert found is not None
            while "The run is in" not in process.stdout.readline():
                assert process.poll() is None
            with urllib.request.urlopen(f"{found[0]}api/runs") as answer:
                assert answer.status == 200
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
