"""Whatever is preempted, however, whenever: greedy tokens are those of the run that nothing disturbed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headway.build import build_engine
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


def make_engine(model: str, *, caching: bool, block_bytes: int = 0, num_host_blocks: int = 0, **options: Any) -> Engine:
    """An engine under the priority policy; host memory by blocks."""
    return build_engine(
        EngineOptions(
            model=model,
            weight_dtype="float32",
            block_size=8,
            scheduling_policy="priority",
            enable_prefix_caching=caching,
            swap_space_gib=(num_host_blocks + 0.5) * block_bytes / 2**30 if num_host_blocks else 0.0,
            **options,
        )
    )


def undisturbed(model: str) -> dict[str, tuple[int, ...]]:
    """The tokens when there is room for everybody."""
    outcome = run(make_engine(model, caching=True, num_blocks=600), dict.fromkeys(("u0", "u1", "u2"), 0))
    assert sum(outcome.kinds.values()) == 0
    assert len(outcome.tokens) == len(PROMPTS) + len(URGENT)
    return outcome.tokens


def disturbed(model: str, mode: str, victim: str, caching: bool, seed: int, block_bytes: int, largest: int) -> Outcome:
    """The same in a pool that is too small, by an amount and at moments that the seed decides.

    Args:
        block_bytes: of one KV block of the model.
        largest: blocks of the longest request at its end.
    """
    random = Random(seed)
    engine = make_engine(
        model,
        caching=caching,
        block_bytes=block_bytes,
        num_host_blocks=0 if mode == "recompute" else random.choice((largest // 2, 3 * largest, 100)),
        num_blocks=largest + random.randrange(2 * largest),
        max_num_seqs=random.choice((3, 6)),
        max_num_batched_tokens=random.choice((6, 24, 256)),
        preemption_mode=mode,
        victim=victim,
    )
    return run(engine, {name: random.randrange(1, 40) for name in ("u0", "u1", "u2")})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, tuple[int, ...]]]:
    """A tiny model, and its tokens."""
    model: Path = make_tiny(tmp_path_factory.mktemp("models") / "tiny")
    return str(model), undisturbed(str(model))


@pytest.mark.parametrize("caching", CACHING, ids=["cached", "uncached"])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("mode", MODES)
def test_a_tiny_model_says_the_same(
    tiny: tuple[str, dict[str, tuple[int, ...]]], mode: str, victim: str, caching: bool
) -> None:
    model, expected = tiny
    kinds = dict.fromkeys(("recompute", "swap"), 0)
    for seed in range(4):
        outcome = disturbed(model, mode, victim, caching, seed, block_bytes=8192, largest=16)
        assert outcome.tokens == expected, f"seed {seed}"
        kinds = {kind: count + outcome.kinds[kind] for kind, count in kinds.items()}
    assert sum(kinds.values()) > 4
    assert (kinds["swap"] > 0) == (mode != "recompute")


@pytest.fixture(scope="module")
def smollm2() -> dict[str, tuple[int, ...]]:
    """The tokens of the real model."""
    return undisturbed("smollm2-135m")


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("mode", "victim", "caching"),
    [each for place, each in enumerate(itertools.product(MODES, VICTIMS, CACHING)) if place % 4 in (0, 3)],
)
def test_the_real_model_says_the_same(
    smollm2: dict[str, tuple[int, ...]], mode: str, victim: str, caching: bool
) -> None:
    outcome = disturbed("smollm2-135m", mode, victim, caching, len(mode), block_bytes=368640, largest=7)

    assert outcome.tokens == smollm2
    assert sum(outcome.kinds.values()) > 0
    assert (outcome.kinds["swap"] > 0) == (mode != "recompute")
