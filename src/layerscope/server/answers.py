"""What the server would answer, without a server: for the page as one file, and for a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match

from layerscope.errors import SelectError
from layerscope.server.catalogue import Catalogue
from layerscope.server.routes import routes


class Answers:
    """The messages for what a page asks of the runs in a folder."""

    def __init__(self, root: Path) -> None:
        self.catalogue = Catalogue(root)
        self._routes = routes(self.catalogue)

    def ask(self, place: str, query: Mapping[str, object]) -> bytes:
        """The message for a place, such as "api/run/first/sites"; the error says why there is none."""
        scope = {
            "type": "http",
            "method": "GET",
            "path": f"/{place}",
            "root_path": "",
            "headers": [],
            "query_string": urlencode(query).encode(),
        }
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                try:
                    return bytes(route.endpoint(Request({**scope, **found})).body)
                except HTTPException as error:
                    raise SelectError(error.detail) from None
        raise SelectError(f"There is nothing at {place[:200]!r}.")

    def ask_path(self, path: str) -> bytes:
        """The message for what the page asks for in its own words: a path with its query, escaped."""
        place, _, query = path.partition("?")
        return self.ask(unquote(place), dict(parse_qsl(query, keep_blank_values=True)))

    def close(self) -> None:
        """Start nothing further in the background."""
        self.catalogue.close()
