"""Compiles forms of outputs in threads of their own: no call waits for another's schema, and no step does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from headway.config import ConfigError, SamplingParams, Structured
from headway.server.errors import ApiError, invalid, unavailable, unusable

NUM_THREADS = 2
_SMALL = Structured.choice(["yes", "no"])


class Compiling:
    """Compiles forms, each within a time limit.

    Args:
        compile_form: see ``Engine.compile_form``; gives up by itself sooner or later.
        timeout_s: a call waits for so long.
    """

    def __init__(self, compile_form: Callable[[Structured], Structured] | None, timeout_s: float) -> None:
        self._compile_form = compile_form
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="compile")

    def warm_up(self) -> None:
        """Compile something small, so that what is made when the first form comes is there before a client waits."""
        if self._compile_form is not None:
            self._threads.submit(self._compile_form, _SMALL)

    async def compile(self, sampling: SamplingParams, field: str) -> SamplingParams:
        """The same parameters with the form compiled, if there is one.

        Args:
            sampling: of a call.
            field: where its client wrote the form.

        Raises:
            ApiError: the form cannot be used, or not in time.
        """
        if sampling.structured is None:
            return sampling
        if self._compile_form is None:
            raise invalid(f"{field} cannot be used here: this engine keeps outputs to no form", field)
        future = self._threads.submit(self._compile_form, sampling.structured)
        try:
            form = await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError as error:
            if future.cancelled():
                raise unavailable(
                    "too many forms of outputs wait to be compiled; try again", "compile_queue"
                ) from error
            message = f"{field} took more than {self._timeout_s:g} seconds to compile"
            raise ApiError(400, message, code="limit_exceeded", param=field) from error
        except ConfigError as error:
            raise unusable(error, field, field) from error
        return replace(sampling, structured=form)

    def close(self) -> None:
        """Take no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
