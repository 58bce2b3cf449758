"""The live channel: one socket per page that tells which runs changed."""

from __future__ import annotations

import json
from dataclasses import asdict

import anyio
from anyio import to_thread
from starlette.websockets import WebSocket, WebSocketDisconnect

from layerscope.server.catalogue import LOOK_EVERY_S, Catalogue, State
from layerscope.server.messages import Change


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
            tasks.start_soon(self._tell, socket, known)
            await _gone(socket)
            tasks.cancel_scope.cancel()

    async def _tell(self, socket: WebSocket, known: dict[str, State]) -> None:
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
    told = [Change(name, state.status, state.revision) for name, state in now.items() if before.get(name) != state]
    return told + [Change(name, "gone", "") for name in before if name not in now]
