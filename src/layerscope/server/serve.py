"""The page's server: a free port, the application on it, and a clean end."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import uvicorn
from rich.console import Console

from layerscope.errors import StateError
from layerscope.query.discover import must_be_folder
from layerscope.server.app import create_app
from layerscope.server.background import compact_in_process
from layerscope.server.catalogue import Compactor

PORT = 8765
TRIES = 50
LISTEN_S = 1.0  # some systems deliver an interrupt only between two waits
PATIENCE_S = 0.5  # for open pages to say goodbye when the server ends


class _Server(uvicorn.Server):
    """A server that does not wait for a browser to close its socket."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        hang_up = asyncio.get_running_loop().call_later(PATIENCE_S, self._hang_up)
        await super().shutdown(sockets)
        hang_up.cancel()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)  # every protocol of uvicorn has one, its types do not
            if isinstance(transport, asyncio.Transport):
                transport.abort()


class PageServer:
    """A server that listens from the start: `with PageServer("runs") as server: server.address`.

    Inside the block it serves from a thread of its own: a running event loop, as a notebook has, is not disturbed.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        compactor: Compactor | None = None,
        view: Path | None = None,
    ) -> None:
        root = Path(root)
        must_be_folder(root)
        app = create_app(root, host=host, compactor=compactor, view=view)
        self._socket = _listening(host, port)
        in_address = f"[{host}]" if ":" in host else host
        self.address = f"http://{in_address}:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False)
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="layerscope-server", daemon=True)

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def wait(self) -> None:
        """Return when the server has ended; the first interrupt ends it."""
        try:
            while self._thread.is_alive():
                self._thread.join(LISTEN_S)
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """End serving; returns when the requests are answered, after a second at most."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def announce(address: str) -> None:
    """Say where the page is."""
    Console(highlight=False, soft_wrap=True).print(f"layerscope is at [bold]{address}[/bold]   (Ctrl-C ends it)")


def has_screen() -> bool:
    """Whether a browser window can be opened: in a bare terminal a text browser would take it over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_page(address: str) -> None:
    """Open the page in a browser, where there is a screen. The socket already listens: a quick browser waits."""
    if has_screen():
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def serve(
    root: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    open_browser: bool = False,
    ready: Callable[[str], None] = announce,
    view: Path | None = None,
) -> None:
    """Serve the page on a run or a folder of runs until interrupted; `ready` is called with its address.

    `view` is a Python file with a view of your own: its code is run.
    """
    with PageServer(root, host=host, port=port, compactor=compact_in_process, view=view) as server:
        ready(server.address)
        if open_browser:
            open_page(server.address)
        server.wait()


def _listening(host: str, port: int) -> socket.socket:
    """A socket on the port, or on the next free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, port + TRIES) if port else (0,):
        # Named as TCP, or asyncio leaves it to hold small packets back: 40 ms for every short answer.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
            sock.listen(128)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise StateError(
                    f"Cannot listen on {host}:{candidate}: {error.strerror}. Try another host or port."
                ) from error
        else:
            return sock
    raise StateError(f"The ports {port} to {port + TRIES - 1} of {host} are all taken. Give a free one.")
