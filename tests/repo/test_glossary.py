"""Retired words do not occur; docs/reference.md defines the words in use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.source import ROOT

#: Defines the words, and lists the retired ones.
GLOSSARY = ROOT / "docs/reference.md"
#: Word in use → retired identifiers, columns, wire fields and phrases.
RETIRED = {
    "metric": ("KPI", "KPIs", "kpi", "kpis", "Kpi", "Kpis", "KpiPanel"),
    "phase": ("Reading(", "Reading.", ": Reading", ".reading", "reading=", '"reading"', "`reading`"),
    "type of a named tensor": (": Part", "Part(", "Part.INPUT", "PartRole", "CallParts", "callparts"),
    "detail": ("Depth", "watch(…, depth=", "ls.Depth"),
    "keep_last": ("ring=", ".ring", "`ring`", "Ring"),
    "custom statistics": ("own statistics", "own_statistics", "OwnStatistics", "extras", "Extras"),
    "trace": (
        "PassRecord",
        "PassOptions",
        "PassHead",
        "PassOutline",
        "PassGraph",
        "PassPage",
        "PassOverview",
        "StoredPass",
        "pass_table",
        "pass_text",
        "pass_page",
        "passgraph",
        "pass_folders",
        "passes_revision",
        "pass_revision",
        "read_pass",
        "write_pass",
        "layerscope-pass",
    ),
    "run and its reader": ("RunTables", "RunInfo", "SmallTables", ".damage()", "extra_names"),
    "history": ("tensor_history", "TensorHistory", "with_extras"),
    "cache": ("lately", "_Held", "_HELD"),
    "overhead": ("Cost", ".cost(", ".costs(", '"costs"', "`costs`", "`cost`"),
    "page state and its steps": ("class Scope", "scope.svelte", "page.crossed", "page.reach", "page.now", "UNTOUCHED"),
    "address of the page": (
        '"tint"',
        '"measure"',
        '"by",',
        "selection.at",
        "selection.tint",
        "selection.by",
        "pane=own",
    ),
    "components of the page": (
        "LogSwitch",
        "Head.svelte",
        "Every.svelte",
        "Known.svelte",
        "Figure.svelte",
        "At.svelte",
        "Own.svelte",
        "Unrecorded.svelte",
        "../parts/",
        "./parts/",
        "Pill",
        "pillsOf",
        "drawHeatmap",
        "drawMatrix",
        "matrixTable",
    ),
    "export": ("keepTable", "keepPicture", "keepDrawing", "asKept", "charts/keep"),
    "request": ("./asking", "../asking", "askedOfGraph", "isDeaf"),
    "run": ("metric-trial", 'data-testid="trial"'),
    "schedule": ("keep_if=None, budget", "class When", "InLoop", "loop_api", "Cadence", "class Keeping"),
    "carriers of a named tensor": (
        "RecordArguments",
        "NodeSpec",
        "NamedSeries",
        "StepRecordBuilder",
        "StepSummaries",
        "KnownDependencies",
        "EndedStep(",
        "NamedStep",
        "TorchNamedTensors",
    ),
    "arguments and calls of a trace": ("take_apart", "put_together", "CompiledCalls", "add_closed", "run_closed"),
    "call stack": ("CallSeen", "TracedForward", "named_site"),
    "name before tensor": ("attach(tensor, name)", "run.detach("),
    "edits": ("edit=None", "tracing(edit=", "tracing(model, edit="),
    "what it is": (
        "OwnView",
        "OwnItem",
        "OwnResult",
        "OwnSaved",
        "Nesting(",
        "OpBlock",
        "ModuleBox",
        "ModuleBoxes",
        "AxisKind.LOG",
        "compact_aside",
        "run_aside",
        "OpenRunEntry",
        "Backlog",
        "Lately",
        "Taker",
        "Intake",
        "Heard",
        "Wish",
        "Audience",
        "class Place",
        "class Whole",
        "class Held",
        "class Wanted",
        "class Quiet",
        "class Ending",
        "class Book",
    ),
}
#: Phrases that plain English replaced, in upper or lower case.
PHRASES = (
    "somebody",
    "whoever",
    "so many",
    "least dear",
    "for want of",
    "one's own",
    "in the place of",
    "own statistics",
    "cross-hair",
    "a pass is saved",
    "saved pass",
    "saved passes",
    "table of costs",
    "is no tensor",
    "stay behind in nothing",
    "not proven",
)
#: Patterns of British spelling.
BRITISH = (
    r"\b\w*[Cc]olour\w*",
    r"\b(?:normal|initial|visual|serial|summar|recogn|minim|maxim|organ|vector)is(?:e|es|ed|er|ing|ation)\b",
    r"\b(?:behaviour|neighbour\w*|centred?|grey|favour\w*|artefacts?|analyse[ds]?|labelled|modelling)\b",
)


def sources() -> Iterator[Path]:
    """Handwritten source files of the package, the page and the documentation."""
    for folder, endings in (("src", (".py", ".c", ".h")), ("web/src", (".ts", ".svelte", ".css")), ("docs", (".md",))):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in endings and "static" not in path.parts:
                yield path
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))


def text_of(path: Path) -> str:
    """The text of a file, without the table that lists the retired words."""
    text = path.read_text(encoding="utf-8")
    if path == GLOSSARY:
        head, words, rest = text.partition("## Words")
        table, kinds, tail = rest.partition("## Kinds")
        return head + words + re.sub(r"^\|.*$", "", table, flags=re.MULTILINE) + kinds + tail
    return text


def uses(pattern: str) -> list[str]:
    retired = re.compile(pattern)
    return [
        f"{path.relative_to(ROOT)}:{number}: {hit[0]}"
        for path in sources()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if (hit := retired.search(line))
    ]


def whole(word: str) -> str:
    """A pattern for the exact text, unless it is part of a longer word."""
    before = r"(?<!\w)" if word[0].isalnum() else ""
    after = r"(?!\w)" if word[-1].isalnum() else ""
    return before + re.escape(word) + after


@pytest.mark.parametrize("word", RETIRED)
def test_retired_words_do_not_occur(word: str) -> None:
    assert uses("|".join(map(whole, RETIRED[word]))) == []


@pytest.mark.parametrize("phrase", PHRASES)
def test_retired_phrases_do_not_occur(phrase: str) -> None:
    assert uses(f"(?i:{whole(phrase)})") == []


@pytest.mark.parametrize("pattern", BRITISH)
def test_spelling_is_american(pattern: str) -> None:
    assert uses(f"(?i:{pattern})") == []
