"""What a request asks for, checked."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from layerscope.views.histogram import FORMATS, NO_FORMAT, usual_format
from layerscope.views.scalar import Screen
from layerscope.views.scales import AxisKind

MOST_RUNS = 8  # more colors than that cannot be told apart
FARTHEST_STEP = 2**53  # beyond it the page's numbers skip steps


def screen_of(request: Request) -> Screen:
    """The part and size of the picture that is asked for."""
    return Screen(
        width=integer(request, "width", 800, 1, 4096),
        height=integer(request, "height", 96, 4, 512),
        first=_optional(request, "first"),
        last=_optional(request, "last"),
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


def share(request: Request, name: str) -> float:
    """A number from 0 to below 1 from the query, 0 where there is none."""
    text = request.query_params.get(name, "0")
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number < 1.0:
        raise HTTPException(400, f"{name!r} must be a number from 0 to below 1, not {text[:40]!r}.")
    return number


def chosen(request: Request, name: str, among: tuple[str, ...]) -> str:
    """One of several words from the query."""
    text = request.query_params.get(name)
    if text not in among:
        raise HTTPException(400, f"{name!r} must be one of {', '.join(among)}, not {(text or '')[:40]!r}.")
    return text


def every_of(request: Request) -> int:
    """Of how many steps one is to be shown."""
    return integer(request, "every", 1, 1)


def axis_of(request: Request) -> AxisKind:
    """How values are to be laid out."""
    return AxisKind(chosen(request, "axis", tuple(kind.value for kind in AxisKind)))


def format_of(request: Request, dtype: str) -> str:
    """The number format whose limits are to be shown; where none is named, one that suits the tensor."""
    return chosen(request, "format", (NO_FORMAT, *FORMATS)) if "format" in request.query_params else usual_format(dtype)


def step_of(request: Request) -> int | None:
    """The step that is asked for, None for the last."""
    return _optional(request, "step")


def runs_of(request: Request) -> list[str]:
    """The runs that are asked for by `run=…&run=…`, each once."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_RUNS]
    if not names:
        raise HTTPException(400, "The request names no run.")
    return names
