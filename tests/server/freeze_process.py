"""A server in a process of its own, with the tokenizer of a tiny model and a device that only takes its time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from headway.config.server import ServerOptions
from headway.engine.async_engine import AsyncEngine
from headway.engine.engine import Engine
from headway.engine.loop import EngineLoop
from headway.engine.processor import OutputProcessor
from headway.models.loading import load_tokenizer, resolve_model
from headway.server.run import set_aside_what_is_there
from headway.server.service import Service
from tests.engine.builders import ScriptedExecutor, make_scheduler
from tests.engine.tiny_model import write_tiny_model
from tests.server.serve_process import Announcing

STEP_S = 0.01


def endless(_: str, prompt: list[int]) -> list[int]:
    return [ord("x")] * 2000


def main(folder: str) -> None:
    """Serve until told to end."""
    tokenizer = load_tokenizer(resolve_model(str(write_tiny_model(Path(folder)))))

    def during(_: Any) -> None:
        time.sleep(STEP_S)

    scheduler = make_scheduler(max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=2048, num_blocks=6000)
    loop = EngineLoop(
        scheduler, ScriptedExecutor(endless, during=during), time.monotonic, processor=OutputProcessor(tokenizer)
    )
    engine = Engine(loop, tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    options = ServerOptions(port=0, drain_timeout=0.0, max_sequences=512)
    service = Service(AsyncEngine(engine), options)
    set_aside_what_is_there()
    Announcing(service).run()


if __name__ == "__main__":
    main(sys.argv[1])
