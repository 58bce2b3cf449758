"""Who may talk to the server: pages that it served itself, to a name that is its own."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
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
        # Listening everywhere was asked for. Rebinding needs a name that somebody else owns: numbers are safe.
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
