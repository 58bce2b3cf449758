"""The application: the page's files, what it asks for, and the live channel."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from layerscope.errors import LayerscopeError, SelectError
from layerscope.server.catalogue import Catalogue, Compactor
from layerscope.server.customview import OwnView
from layerscope.server.guard import Guard
from layerscope.server.live import LiveChannel
from layerscope.server.routes import routes, sites

STATIC = Path(__file__).parent / "static"
log = logging.getLogger(__name__)


def create_app(
    root: Path, *, host: str = "127.0.0.1", compactor: Compactor | None = None, view: Path | None = None
) -> Starlette:
    """The page on a run or a folder of runs, for a server that listens on `host`.

    `compactor` is called once, in the background, with the folder of each run that is no longer being written; `view`
    is a Python file with a view of the user's own, whose code is run.
    """
    catalogue = Catalogue(Path(root), compactor)
    own_view = OwnView(view) if view else None

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        catalogue.warm_up(sites)
        yield
        catalogue.close()

    return Starlette(
        routes=[
            *routes(catalogue, own_view),
            Route("/api/{rest:path}", _nothing_here),
            WebSocketRoute("/api/live", LiveChannel(catalogue).serve),
            _page(),
        ],
        middleware=[Middleware(Guard, host=host)],
        exception_handlers={
            HTTPException: _refused,
            LayerscopeError: _failed,
            OSError: _unreadable,
            # The border of a request: a bug of ours, or a disk that fails, must not show a trace to a browser.
            Exception: _broken,
        },
        lifespan=lifespan,
    )


class _PageFiles(StaticFiles):
    """The built page; hashed files are kept by the browser, the first one is asked for every time."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        scope = next(part for part in (*args, *kwargs.values()) if isinstance(part, dict))
        response.headers["Cache-Control"] = _kept(scope)
        return response


def _kept(scope: Scope) -> str:
    return "public, max-age=31536000, immutable" if "/assets/" in scope["path"] else "no-cache"


def _page() -> BaseRoute:
    if (STATIC / "index.html").is_file():
        return Mount("/", _PageFiles(directory=STATIC, html=True))
    return Route("/", _not_built)


def _not_built(request: Request) -> Response:
    return PlainTextResponse(
        "The page has not been built. Run `npm install` and `npm run build` in the folder `web`, "
        "or install layerscope with `pip install .`.\n",
        status_code=503,
    )


def _nothing_here(request: Request) -> Response:
    raise HTTPException(404, f"There is nothing at {request.url.path[:200]!r}.")


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"problem": error.detail}, error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"problem": str(error)}, 404 if isinstance(error, SelectError) else 409)


def _unreadable(request: Request, error: Exception) -> Response:
    return JSONResponse({"problem": f"The run could not be read: {error}. It may have been moved or deleted."}, 409)


def _broken(request: Request, error: Exception) -> Response:
    log.error("The request %s failed", request.url.path, exc_info=error)
    return JSONResponse(
        {"problem": f"The server failed on this request ({type(error).__name__}). Its log says more."}, 500
    )
