"""The application: who may talk to it, the live channel, the routes and the built page."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import socket
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from layerscope.errors import LayerscopeError, SelectError
from layerscope.server.catalogue import LOOK_EVERY_S, Catalogue, Compactor, State
from layerscope.server.custom_view import CustomView
from layerscope.server.routes import routes
from layerscope.server.wire import Change

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def policy(host: str) -> dict[str, str]:
    """The headers that keep the page to itself: no foreign script, frame, image or request."""
    content = (
        f"default-src 'self'; connect-src 'self' ws://{host}; img-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": content,
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


class AccessGuard:
    """Refuses requests and sockets that name a foreign host or come from a foreign page (DNS rebinding).

    A page of another site can make a browser ask a loopback address; what it cannot forge is the name it asked for
    and where it came from.
    """

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1") -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is ours, refuse the rest with 403."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        reason = self._refusal(host, headers)
        if reason is None:
            await self._app(scope, receive, _with_headers(send, policy(host)))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            await _refuse(send, reason)

    def _refusal(self, host: str, headers: Headers) -> str | None:
        name = _name_of(host)
        if name is None or not self._is_ours(name):
            return "The address in the request is not this server's. Open the page by the address it printed."
        origins = headers.getlist("origin")
        if any(origin != f"http://{host}" for origin in origins):
            return "The request comes from another page. Only the page of this server may ask it."
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "The request comes from another site. Only the page of this server may ask it."
        return None

    def _is_ours(self, name: str) -> bool:
        if name in LOOPBACK or name == self._host:
            return True
        if self._host not in ("0.0.0.0", "::"):
            return False
        # Listening everywhere was asked for. Rebinding needs a name that an attacker owns: numbers are safe.
        return _is_number(name) or name == socket.gethostname().lower()


def _name_of(host: str) -> str | None:
    """The name in a Host header without its port, or None when it is no name."""
    name, colon, port = host.rpartition(":")
    if not colon or "]" in port:
        name, port = host, ""
    if port and not port.isdecimal():
        return None
    bracketed = name.startswith("[") and name.endswith("]")
    name = name[1:-1] if bracketed else name
    plain = bool(name) and all(letter.isalnum() or letter in ".-_:" for letter in name)
    return name.lower() if plain and bracketed == (":" in name) else None


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_headers(send: Send, added: dict[str, str]) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in added.items():
                headers.setdefault(name, value)  # a page of the user's own has a policy of its own
        await send(message)

    return wrapped


async def _refuse(send: Send, reason: str) -> None:
    body = json.dumps({"problem": reason}).encode()
    start: MutableMapping[str, Any] = {
        "type": "http.response.start",
        "status": 403,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})


class LiveChannel:
    """Sends a `Change` for every run that has new rows, another status, appeared or vanished.

    It says that there is news, not what: the page asks for what it shows. Nothing is looked at while nobody listens.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def serve(self, socket: WebSocket) -> None:
        """Serve one page until it leaves."""
        known = await to_thread.run_sync(self._catalogue.look)
        await socket.accept()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._notify, socket, known)
            await _gone(socket)
            tasks.cancel_scope.cancel()

    async def _notify(self, socket: WebSocket, known: dict[str, State]) -> None:
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            now = await to_thread.run_sync(self._catalogue.look)
            for change in changes(known, now):
                try:
                    await socket.send_text(json.dumps(asdict(change)))
                except WebSocketDisconnect:
                    return
            known = now


async def _gone(socket: WebSocket) -> None:
    """Return when the page has left; what it sends is not used."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


def changes(before: dict[str, State], now: dict[str, State]) -> list[Change]:
    """What happened between two looks."""
    changed = [Change(name, state.status, state.revision) for name, state in now.items() if before.get(name) != state]
    return changed + [Change(name, "gone", "") for name in before if name not in now]


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
    custom_view = CustomView(view) if view else None

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        catalogue.warm_up()
        yield
        catalogue.close()

    return Starlette(
        routes=[
            *routes(catalogue, custom_view),
            Route("/api/{rest:path}", _nothing_here),
            WebSocketRoute("/api/live", LiveChannel(catalogue).serve),
            _page(),
        ],
        middleware=[Middleware(AccessGuard, host=host)],
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
