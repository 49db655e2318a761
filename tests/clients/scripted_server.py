"""Headway's server in a process of its own: all of it is real but the weights, in whose place ``script`` speaks.

Says where it listens, then serves until it is told to end. The tokenizer and the chat template are those of a model
folder, and whatever the model says is held against the form of the call, as compiled by llguidance.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from headway.config import CacheConfig, SchedulerConfig
from headway.config.server import ServerOptions
from headway.core.plan import StepPlan
from headway.core.scheduler import Scheduler
from headway.engine.async_engine import AsyncEngine
from headway.engine.engine import Engine
from headway.engine.loop import EngineLoop
from headway.engine.processor import OutputProcessor
from headway.executor.grammars import GuidanceGrammars, GuidanceMatcher
from headway.models.loading import Tokenizer, load_tokenizer, resolve_model
from headway.models.tiny import make_tiny
from headway.server.run import DrainingServer
from headway.server.service import Service
from tests.clients.script import sayings
from tests.engine.builders import ScriptedExecutor

MODEL = "scripted"
# The prompt is the conversation as JSON, for the script to read. Models that think and call tools write these marks.
TEMPLATE = (
    "{# <think> </think> <tool_call> #}"
    "{{ {'messages': messages, 'tools': tools or [], 'thinks': enable_thinking is defined and enable_thinking}"
    " | tojson }}"
)
MAX_LENGTH, BLOCK_SIZE = 16_384, 16


class ScriptedModel(ScriptedExecutor):
    """Says the first of its sayings that has the form of the call."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(lambda request_id, prompt: ())
        self._tokenizer = tokenizer
        self.grammars = GuidanceGrammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        for row in plan.admitted:
            _, prompt, sampling = self._rows[row.slot]
            conversation = json.loads(self._tokenizer.decode(prompt))
            said = (self._tokenizer.encode(text, add_special_tokens=False) for text in sayings(**conversation))
            form = sampling.structured
            fitting = (ids for ids in said if form is None or self._has_form(ids, self.grammars.start(form)))
            # If none is left, this raises, and the call ends with an error.
            self._rows[row.slot] = ([*next(fitting), self._tokenizer.eos_token_ids[0]], prompt, sampling)

    def _has_form(self, ids: list[int], matcher: object) -> bool:
        assert isinstance(matcher, GuidanceMatcher)
        return matcher.inner.try_consume_tokens(ids) == len(ids) and matcher.inner.is_accepting()


def make_engine(folder: Path) -> Engine:
    """An engine whose tokenizer and chat template come from a model's folder."""
    make_tiny(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    tokenizer = load_tokenizer(resolve_model(str(folder)))
    model = ScriptedModel(tokenizer)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=MAX_LENGTH, max_model_len=MAX_LENGTH),
        CacheConfig(block_size=BLOCK_SIZE, num_blocks=8 * MAX_LENGTH // BLOCK_SIZE),
    )
    loop = EngineLoop(scheduler, model, time.monotonic, processor=OutputProcessor(tokenizer))
    return Engine(loop, tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids, compile_form=model.grammars.compile)


def main() -> int:
    """Serve."""
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(Path(folder))
    options = ServerOptions(port=0, served_model_name=(MODEL,), status_interval=0)
    server = DrainingServer(Service(AsyncEngine(engine), options), say=partial(print, flush=True))
    server.run()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main())
