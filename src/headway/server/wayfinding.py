"""Which route a client that missed all of them most likely meant.

Base URLs are the commonest mistake of a new client: ``/v1`` left out, written twice, a slash at the end, another case,
GET where POST is meant, an endpoint taken for the base. The answer names the way; nothing is redirected, since a client
that is redirected drops its body or its key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from starlette.routing import BaseRoute, Match, Route

VERSION = "/v1"
CLOSE = 0.8
"""A misspelt path is taken for another one that is so much alike, out of 1."""
MAX_PATH_CHARS = 512
"""Nothing here is half as long: for longer paths no other one is looked for, and they are not repeated as a whole."""


class Signpost:
    """Finds routes near a path.

    Args:
        routes: of the application.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = list(_leaves(routes))
        self._plain = [route.path for route in self._routes if "{" not in route.path]

    def methods(self, path: str) -> tuple[str, ...]:
        """Methods that the path has, sorted; none if there is no such path."""
        found = {method for route in self._routes if _matches(route, path) for method in route.methods or ()}
        return tuple(sorted(found))

    def nearest(self, path: str) -> str | None:
        """The path that was probably meant; ``None`` if nothing like it is there."""
        for other in _variants(path):
            if other not in (path, "/") and self.methods(other):
                return other
        return self._behind_an_endpoint(path) or self._spelt_alike(path)

    def advise(self, method: str, path: str) -> str:
        """A sentence for a call that found no route, or a route but nothing at its end."""
        allowed, is_long = self.methods(path), len(path) > MAX_PATH_CHARS
        if is_long:
            path = path[:MAX_PATH_CHARS] + "..."
        if allowed and method not in allowed:
            return f"{method} {path}: this path takes {' or '.join(allowed)}"
        if path.strip("/").lower() in ("", VERSION.strip("/")):
            return (
                f"{method} {path}: this is where the API begins; what there is goes on from it, like {VERSION}/models"
            )
        meant = None if is_long else self.nearest(path)
        if meant is None:
            return f"{method} {path}: there is no such path"
        allowed = self.methods(meant)
        way = "" if method in allowed else f", which takes {' or '.join(allowed)}"
        return f"{method} {path}: there is no such path; did you mean {meant}{way}?"

    def _behind_an_endpoint(self, path: str) -> str | None:
        """A client took an endpoint for the base of all paths: /v1/chat/completions/models."""
        parts = [part for part in path.split("/") if part]
        for place in range(len(parts) - 1, 0, -1):
            tail = VERSION + "/" + "/".join(parts[place:])
            if "/" + "/".join(parts[:place]) in self._plain and tail in self._plain:
                return tail
        return None

    def _spelt_alike(self, path: str) -> str | None:
        if path in self._plain:
            return None
        close = difflib.get_close_matches(path.lower(), self._plain, n=1, cutoff=CLOSE)
        return close[0] if close else None


def _leaves(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    """All routes with a path of their own, those of included routers too."""
    for route in routes:
        if isinstance(route, Route):
            yield route
        else:
            included = getattr(route, "original_router", route)  # FastAPI keeps included routers whole
            yield from _leaves(getattr(included, "routes", None) or ())


def _matches(route: Route, path: str) -> bool:
    method = next(iter(route.methods or {"GET"}))
    match, _ = route.matches({"type": "http", "method": method, "path": path, "root_path": ""})
    return match is Match.FULL


def _variants(path: str) -> Iterator[str]:
    """The path put right, the likeliest way first: each tried with the case it came in, then in small letters."""
    for cased in dict.fromkeys((path, path.lower())):
        tidy = "/" + "/".join(part for part in cased.split("/") if part)
        yield tidy
        once = re.sub(rf"^(?:{VERSION})+(?=/|$)", VERSION, tidy)
        yield once
        yield VERSION + tidy
        yield once.removeprefix(VERSION) or "/"
        inner = tidy.find(f"{VERSION}/")
        if inner > 0:  # behind a prefix that some proxy would have taken away
            yield tidy[inner:]
