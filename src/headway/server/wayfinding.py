"""Which route a client that missed all of them most likely meant.

Base URLs are the commonest mistake of a new client: ``/v1`` left out, written twice, a slash at the end, another case,
GET where POST is meant. The answer names the way; nothing is redirected, since a client that is redirected drops its
body or its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from starlette.routing import BaseRoute, Match, Route

VERSION = "/v1"


class Signpost:
    """Finds routes near a path.

    Args:
        routes: of the application.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = list(_leaves(routes))

    def methods(self, path: str) -> tuple[str, ...]:
        """Methods that the path has, sorted; none if there is no such path."""
        found = {method for route in self._routes if _matches(route, path) for method in route.methods or ()}
        return tuple(sorted(found))

    def nearest(self, path: str) -> str | None:
        """The path that was probably meant; ``None`` if nothing like it is there."""
        return next((other for other in _variants(path) if other != path and self.methods(other)), None)

    def advise(self, method: str, path: str) -> str:
        """A sentence for a call that found no route."""
        allowed = self.methods(path)
        if allowed:
            return f"{method} {path}: this path takes {' or '.join(allowed)}"
        meant = self.nearest(path)
        if meant is None:
            return f"{method} {path}: there is no such path"
        return f"{method} {path}: there is no such path; did you mean {meant}?"


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
