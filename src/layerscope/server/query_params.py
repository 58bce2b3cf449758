"""The parameters of a request, checked."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request

from layerscope.model.records import Kind, Mode
from layerscope.query.matrix import Question
from layerscope.query.tensor_query import TensorQuery
from layerscope.views.compare import TensorName
from layerscope.views.histogram import FORMATS, NO_FORMAT
from layerscope.views.open_run import SeriesNumber
from layerscope.views.scalar import Screen
from layerscope.views.scales import AxisKind
from layerscope.views.values import ValueRequest

MOST_RUNS = 8  # more colors than that look alike
LONGEST_LIST = 20_000  # characters of a list of numbers
FARTHEST_STEP = 2**53  # beyond it the page's numbers skip steps


def screen_of(request: Request) -> Screen:
    """The part and size of the picture that is asked for."""
    return Screen(
        width=integer(request, "width", 800, 1, 4096),
        height=integer(request, "height", 96, 4, 512),
        first=_optional(request, "first"),
        last=_optional(request, "last"),
        every=every_of(request),
        smooth=_share(request, "smooth"),
    )


def _optional(request: Request, name: str) -> int | None:
    return integer(request, name, None, -FARTHEST_STEP) if name in request.query_params else None


def integer(request: Request, name: str, default: int | None, low: int, high: int = FARTHEST_STEP) -> int:
    """A whole number from the query, within its limits."""
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise HTTPException(400, f"The request lacks {name!r}.")
    try:
        number = int(text)
    except ValueError:
        raise HTTPException(400, f"{name!r} must be a whole number, not {text[:40]!r}.") from None
    if not low <= number <= high:
        raise HTTPException(400, f"{name!r} must lie between {low} and {high}, not {number}.")
    return number


def _share(request: Request, name: str) -> float:
    """A number from 0 to below 1 from the query, 0 where there is none."""
    text = request.query_params.get(name, "0")
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < 1.0:
        raise HTTPException(400, f"{name!r} must be a number from 0 to below 1, not {text[:40]!r}.")
    return number


def integers(request: Request, name: str) -> list[int]:
    """Whole numbers from the query, with dots or commas between them."""
    text = request.query_params.get(name, "")
    numbers = [number for number in re.split("[.,]", text[:LONGEST_LIST]) if number]
    if not all(number.isdecimal() and len(number) < 12 for number in numbers):
        raise HTTPException(400, f"{name!r} must be whole numbers with dots between, not {text[:40]!r}.")
    return [int(number) for number in numbers]


def chosen(request: Request, name: str, among: tuple[str, ...], default: str | None = None) -> str:
    """One of several words from the query."""
    text = request.query_params.get(name, default)
    if text not in among:
        raise HTTPException(400, f"{name!r} must be one of {', '.join(among)}, not {(text or '')[:40]!r}.")
    return text


def every_of(request: Request) -> int:
    """Of how many steps one is to be shown."""
    return integer(request, "every", 1, 1)


def axis_of(request: Request) -> AxisKind:
    """How values are to be laid out."""
    return AxisKind(chosen(request, "axis", tuple(kind.value for kind in AxisKind)))


def format_of(request: Request) -> str | None:
    """The number format whose limits are to be shown, None for the one that suits the tensor."""
    return chosen(request, "format", (NO_FORMAT, *FORMATS)) if "format" in request.query_params else None


def step_of(request: Request) -> int | None:
    """The step that is asked for, None for the last."""
    return _optional(request, "step")


def runs_of(request: Request) -> list[str]:
    """The runs that are asked for by `run=…&run=…`, each once."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_RUNS]
    if not names:
        raise HTTPException(400, "The request names no run.")
    return names


def series_of(request: Request) -> SeriesNumber:
    """Number and rank of the series that is asked for."""
    return SeriesNumber(integer(request, "series", None, 0), integer(request, "rank", 0, 0))


def question_of(request: Request) -> Question:
    """Which statistic of which tensors is asked for."""
    return Question(
        kind=chosen(request, "kind", tuple(kind.value for kind in Kind)),
        stat=request.query_params.get("stat", ""),
        mode=chosen(request, "mode", tuple(mode.value for mode in Mode), Mode.TRAIN.value),
        rank=integer(request, "rank", 0, 0),
        context=request.query_params.get("context", ""),
    )


def tensor_of(request: Request) -> TensorName:
    """The tensor that is compared between runs, by its names."""
    site, kind, mode, context, port = (
        request.query_params.get(name, "") for name in ("site", "kind", "mode", "context", "port")
    )
    return TensorName(site, kind, mode, context, port, integer(request, "rank", 0, 0))


def tensor_query_of(request: Request) -> TensorQuery:
    """The named tensor that is asked for."""
    given = request.query_params
    numbers = {name: _optional(request, name) for name in ("step", "iteration", "sample")}
    return TensorQuery(
        type=given.get("type"), node=given.get("node"), role=given.get("role"), loss=given.get("loss"), **numbers
    )


def value_of(request: Request) -> ValueRequest:
    """Which part of a tensor is asked for, and as what."""
    return ValueRequest(
        picture=request.query_params.get("picture"),
        index=integers(request, "at"),
        tile=integer(request, "tile", 0, 0),
        width=integer(request, "width", 400, 1, 2000),
        height=integer(request, "height", 400, 1, 2000),
        coarse="coarse" in request.query_params,
    )
