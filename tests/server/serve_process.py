"""A server in a process of its own: prints its port, serves until it is told to end. Arguments: see ``main``."""

from __future__ import annotations

import sys
import time
from typing import Any

from headway.config.server import ServerOptions
from headway.engine.async_engine import AsyncEngine
from headway.server.run import DrainingServer
from headway.server.service import Service
from tests.engine.builders import ScriptedExecutor, echo, make_engine


class Announcing(DrainingServer):
    """Says when it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(self.port, flush=True)


def main(drain_timeout: float, step_s: float) -> int:
    """Serve; a prompt that begins with "die" kills the engine."""

    def before(plan: Any) -> None:
        if any(row.tokens[:3].tolist() == list(b"die") for row in plan.admitted):
            engine.loop.scheduler.update = None  # type: ignore[assignment,method-assign]

    executor = ScriptedExecutor(echo, before=before, during=lambda plan: time.sleep(step_s))
    engine = make_engine(executor, clock=time.monotonic, max_model_len=2048, num_blocks=2000)
    service = Service(AsyncEngine(engine), ServerOptions(port=0, drain_timeout=drain_timeout))
    server = Announcing(service)
    server.run()
    return server.exit_code


if __name__ == "__main__":
    code = main(float(sys.argv[1]), float(sys.argv[2]))
    print("done", flush=True)
    sys.exit(code)
