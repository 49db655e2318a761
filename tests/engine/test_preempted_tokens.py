"""Whatever is preempted, however, whenever: greedy tokens are those of the run that nothing disturbed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from headway.build import LoadedModel, build_engine, load_model
from headway.config import EngineOptions, SamplingParams
from headway.engine.engine import Engine
from headway.models.tiny import make_tiny

GUIDE = "You are the guide of a small museum by the sea. Answer in one short sentence.\n"
PROMPTS = [
    "The capital of France is",
    GUIDE + "Visitor: What is the oldest boat here?\nGuide:",
    GUIDE + "Visitor: May I bring my dog?\nGuide:",
    "def add(a, b):\n    return",
    "Once upon a time, in a village far away,",
    GUIDE + "Visitor: What is a knot?\nGuide:",
    "Question: How many legs does a spider have?\nAnswer:",
    "She opened the old wooden box and found",
]
URGENT = ["Breaking news: scientists have found", "1, 2, 3, 4, 5,", "Le chat est assis sur"]
NUM_OUTPUTS = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
MODES, VICTIMS, CACHING = ("recompute", "swap", "auto"), ("newest", "cheapest"), (True, False)


@dataclass
class Outcome:
    """Tokens by request, and preemptions by kind."""

    tokens: dict[str, tuple[int, ...]]
    kinds: dict[str, int]


def run(engine: Engine, arrivals: dict[str, int]) -> Outcome:
    """Run all prompts; the urgent ones come at the given steps and take the slots and blocks of others."""
    tokens: dict[str, tuple[int, ...]] = {}
    for number, prompt in enumerate(PROMPTS):
        engine.add(engine.prepare(prompt, GREEDY, request_id=f"p{number}", priority=5))
    step = 0
    while engine.has_work or step <= max(arrivals.values()):
        for number, prompt in enumerate(URGENT):
            if arrivals[f"u{number}"] == step:
                engine.add(engine.prepare(prompt, GREEDY, request_id=f"u{number}", priority=0))
        step += 1
        for update in engine.step() if engine.has_work else ():
            if update.output is not None:
                tokens[update.request_id] = update.output.outputs[0].token_ids
    counted = engine.metrics.counters.preemptions
    kinds = {kind: sum(count for (one, _), count in counted.items() if one == kind) for kind in ("recompute", "swap")}
    return Outcome(tokens, kinds)


@dataclass
class Model:
    """A model in memory, with its tokens when there is room for everybody.

    Attributes:
        block_bytes: of one KV block.
        largest: blocks of the longest request at its end.
    """

    loaded: LoadedModel
    largest: int
    block_bytes: int = 0
    expected: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def load(name: str, largest: int) -> Model:
        """Load it and run it undisturbed."""
        model = Model(load_model(EngineOptions(model=name, weight_dtype="float32")), largest)
        engine = model.engine(num_blocks=600)
        outcome = run(engine, dict.fromkeys(("u0", "u1", "u2"), 0))
        assert sum(outcome.kinds.values()) == 0
        assert len(outcome.tokens) == len(PROMPTS) + len(URGENT)
        model.block_bytes, model.expected = engine.kv_block_bytes, outcome.tokens
        return model

    def engine(self, *, num_host_blocks: int = 0, **options: Any) -> Engine:
        """An engine under the priority policy; host memory by blocks."""
        return build_engine(
            EngineOptions(
                model=self.loaded.options.model,
                weight_dtype="float32",
                block_size=8,
                scheduling_policy="priority",
                swap_space_gib=(num_host_blocks + 0.5) * self.block_bytes / 2**30 if num_host_blocks else 0.0,
                **options,
            ),
            loaded=self.loaded,
        )

    def disturbed(self, mode: str, victim: str, caching: bool, seed: int) -> Outcome:
        """The same in a pool that is too small, by an amount and at moments that the seed decides."""
        random = Random(seed)
        engine = self.engine(
            enable_prefix_caching=caching,
            num_host_blocks=0 if mode == "recompute" else random.choice((self.largest // 2, 3 * self.largest, 100)),
            num_blocks=self.largest + random.randrange(2 * self.largest),
            max_num_seqs=random.choice((3, 6)),
            max_num_batched_tokens=random.choice((6, 24, 256)),
            preemption_mode=mode,
            victim=victim,
        )
        return run(engine, {name: random.randrange(1, 40) for name in ("u0", "u1", "u2")})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny model."""
    return Model.load(str(make_tiny(tmp_path_factory.mktemp("models") / "tiny")), largest=16)


@pytest.mark.parametrize("caching", CACHING, ids=["cached", "uncached"])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("mode", MODES)
def test_a_tiny_model_says_the_same(tiny: Model, mode: str, victim: str, caching: bool) -> None:
    kinds = dict.fromkeys(("recompute", "swap"), 0)
    for seed in range(8):
        outcome = tiny.disturbed(mode, victim, caching, seed)
        assert outcome.tokens == tiny.expected, f"seed {seed}"
        kinds = {kind: count + outcome.kinds[kind] for kind, count in kinds.items()}
    assert sum(kinds.values()) > 8
    assert (kinds["swap"] > 0) == (mode != "recompute")


@pytest.fixture(scope="module")
def smollm2() -> Model:
    """The real model."""
    return Model.load("smollm2-135m", largest=7)


HALF = [each for place, each in enumerate(itertools.product(MODES, VICTIMS, CACHING)) if place % 4 in (0, 3)]
"""Every mode, with each victim and with and without cache, but not all of them with each other: it takes its time."""


@pytest.mark.real_model
@pytest.mark.parametrize(("mode", "victim", "caching"), HALF)
def test_the_real_model_says_the_same(smollm2: Model, mode: str, victim: str, caching: bool) -> None:
    outcome = smollm2.disturbed(mode, victim, caching, seed=len(mode))

    assert outcome.tokens == smollm2.expected
    assert sum(outcome.kinds.values()) > 0
    assert (outcome.kinds["swap"] > 0) == (mode != "recompute")
