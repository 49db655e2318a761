"""What HTTP costs: tokens per second of 64 streams through the server, against ``LLM.generate`` on the same prompts.

Both run the same model with the same options, in processes of their own, in turns; the ratio is the median over the
rounds of one turn by the other, so that a machine that gets slower or faster meanwhile matters less. The bar is 95 %.

    python benchmarks/http_overhead.py [--model MODEL] [--rounds 3] [--outputs 128] [--streams 64] [--prompt-tokens 32]

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from engine import encoder
from engine_work import make_work
from http_client import ServerProcess, post, run_streams, serving
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway import LLM
from headway.config import SamplingParams

BAR = 0.95
WARM_OUTPUTS = 32
LIMITS = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 2304, "num_blocks": 1792}


class Turn:
    """One run of all prompts: seconds from the first to the last token's arrival, and what it cost."""

    def __init__(self, seconds: float, num_tokens: int, cpu_s: float, ttft_s: float) -> None:
        self.tokens_per_second = num_tokens / seconds
        self.cpu_us_per_token = 1e6 * cpu_s / num_tokens
        self.ttft_s = ttft_s


def offline_turn(llm: LLM, prompts: list[str], num_outputs: int) -> Turn:
    """Through ``LLM.generate``."""
    begin, cpu = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, SamplingParams(max_tokens=num_outputs, temperature=0.0, ignore_eos=True))
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    ttfts = [output.metrics.ttft_s or 0.0 for output in outputs if output.metrics is not None]
    return Turn(seconds, num_tokens, cpu_s, statistics.median(ttfts))


def http_turn(server: ServerProcess, prompts: Sequence[str], num_outputs: int) -> Turn:
    """Through the server, every token in an event of its own."""
    body = {"max_tokens": num_outputs, "temperature": 0, "ignore_eos": True, "stream": True}
    usage = {"stream_options": {"include_usage": True}}
    requests = [post("/v1/completions", {"prompt": prompt, **body, **usage}) for prompt in prompts]
    cpu = server.cpu_s
    streams = asyncio.run(run_streams(server.port, requests))
    cpu_s = server.cpu_s - cpu
    if not all(stream.status == 200 and stream.ended for stream in streams):
        raise SystemExit(f"a stream failed: {next(each.body[:300] for each in streams if not each.ended)!r}")
    seconds = max(stream.end_s for stream in streams) - min(stream.begin_s for stream in streams)
    num_tokens = sum(stream.usage["completion_tokens"] for stream in streams)
    return Turn(seconds, num_tokens, cpu_s, statistics.median(each.first_s - each.begin_s for each in streams))


def measure(arguments: argparse.Namespace) -> tuple[list[Turn], list[Turn]]:
    """Turns of both, round by round, after one of each to warm up."""
    llm = LLM(arguments.model, enable_prefix_caching=False, **LIMITS)
    work = make_work(encoder(llm))
    tokenizer = llm.engine.tokenizer
    assert tokenizer is not None
    longest = arguments.prompt_tokens
    prompts = [tokenizer.decode(prompt[:longest]) for prompt in work.main * -(-arguments.streams // len(work.main))]
    prompts = prompts[: arguments.streams]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in LIMITS.items()]
    offline: list[Turn] = []
    http: list[Turn] = []
    with serving([arguments.model, "--no-enable-prefix-caching", *flags]) as server:
        offline_turn(llm, prompts, WARM_OUTPUTS)
        http_turn(server, prompts, WARM_OUTPUTS)
        for number in range(arguments.rounds):
            # Who goes first alternates: a machine that is getting slower is then unfair to both.
            if number % 2:
                http.append(http_turn(server, prompts, arguments.outputs))
            offline.append(offline_turn(llm, prompts, arguments.outputs))
            if not number % 2:
                http.append(http_turn(server, prompts, arguments.outputs))
    return offline, http


def show(console: Console, offline: Sequence[Turn], http: Sequence[Turn]) -> dict[str, Any]:
    """The table, and what goes into the JSON line."""
    table = Table(title="through HTTP and not", box=SIMPLE_HEAD)
    for column in ("", "tokens/s", "processor µs/token", "first token s"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, turns in (("LLM.generate", offline), ("HTTP", http)):
        for turn in turns:
            table.add_row(name, f"{turn.tokens_per_second:.1f}", f"{turn.cpu_us_per_token:,.0f}", f"{turn.ttft_s:.2f}")
    console.print(table)
    ratios = [ours.tokens_per_second / alone.tokens_per_second for ours, alone in zip(http, offline, strict=True)]
    ratio = statistics.median(ratios)
    console.print(f"ratio {ratio:.3f} (of {', '.join(f'{each:.3f}' for each in ratios)}); the bar is {BAR}")
    spent = [statistics.median(turn.cpu_us_per_token for turn in turns) for turns in (offline, http)]
    console.print(f"processor time per token, offline by HTTP: {spent[0] / spent[1]:.3f}")
    return {
        "http_tok_s": round(statistics.median(turn.tokens_per_second for turn in http), 1),
        "offline_tok_s": round(statistics.median(turn.tokens_per_second for turn in offline), 1),
        "ratio": round(ratio, 3),
        "cpu_ratio": round(spent[0] / spent[1], 3),
    }


def main() -> None:
    """Measure, show, and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="what LLM(model=...) takes; default %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; default %(default)s")
    parser.add_argument("--streams", type=int, default=64, help="calls at once; default %(default)s")
    parser.add_argument("--outputs", type=int, default=128, help="tokens of each; default %(default)s")
    parser.add_argument("--prompt-tokens", type=int, help="cut prompts to so many; default: 274 on average")
    arguments = parser.parse_args()
    offline, http = measure(arguments)
    figures = show(Console(), offline, http)
    print(json.dumps({**figures, "model": arguments.model, "streams": arguments.streams, "outputs": arguments.outputs}))


if __name__ == "__main__":
    main()
