"""Requests, plans and results as JSON values and back, for the step trace (docs/trace.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.config import SamplingParams, Structured
from headway.core.plan import AdmittedRow, Int32, NewBlocks, StepPlan, StepResult
from headway.core.request import Request

_DEFAULT = SamplingParams()


def sampling_to_json(sampling: SamplingParams) -> dict[str, Any]:
    """The fields that differ from the default."""
    fields: dict[str, Any] = {}
    for spec in dataclasses.fields(sampling):
        value = getattr(sampling, spec.name)
        if isinstance(value, Structured):
            fields[spec.name] = {value.kind: value.text}
        elif value != getattr(_DEFAULT, spec.name):
            fields[spec.name] = {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value
    return fields


def sampling_from_json(fields: Mapping[str, Any]) -> SamplingParams:
    """The inverse of :func:`sampling_to_json`."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    if "structured" in given:
        given["structured"] = Structured.of(given["structured"])
    return SamplingParams(**given)


def request_to_json(request: Request, *, with_arrival: bool) -> dict[str, Any]:
    """The ``add`` line of a request that was just added; with its arrival time if that decides anything."""
    line = {
        "kind": "add",
        "handle": request.handle,
        "request_id": request.request_id,
        "prompt": request.tokens.tolist(),
        "eos_token_ids": list(request.eos_token_ids),
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "tenant": request.tenant,
        "deadline_s": request.deadline_s,
        "slo": request.slo,
        "sampling": sampling_to_json(request.sampling),
    }
    return line | {"arrival_s": request.arrival_s} if with_arrival else line


def request_from_json(line: Mapping[str, Any]) -> Request:
    """The request of an ``add`` line, as it was before it was added."""
    return Request(
        line["request_id"],
        line["prompt"],
        sampling_from_json(line["sampling"]),
        eos_token_ids=line["eos_token_ids"],
        priority=line["priority"],
        cache_salt=line["cache_salt"],
        tenant=line["tenant"],
        deadline_s=line["deadline_s"],
        slo=line["slo"],
    )


def plan_to_json(plan: StepPlan, now: float | None = None) -> dict[str, Any]:
    """The ``plan`` line; with the time it was made at if that decided anything.

    Sampling parameters are not repeated: they are in the request's ``add`` line.
    """
    line = {
        "kind": "plan",
        "step": plan.step,
        "slots": plan.slots.tolist(),
        "num_scheduled": plan.num_scheduled.tolist(),
        "starts": plan.starts.tolist(),
        "samples": plan.samples.astype(np.int8).tolist(),
        "new_blocks": [
            {"slots": new.slots.tolist(), "index": new.index.tolist(), "block_ids": new.block_ids.tolist()}
            for new in plan.new_blocks
        ],
        "admitted": [
            {
                "slot": row.slot,
                "handle": row.handle,
                "request_id": row.request_id,
                "tokens": row.tokens.tolist(),
                "num_prompt_tokens": row.num_prompt_tokens,
                "num_computed_tokens": row.num_computed_tokens,
                "block_ids": [ids.tolist() for ids in row.block_ids],
                "resumed": row.resumed,
            }
            for row in plan.admitted
        ],
        "released": plan.released.tolist(),
        "swap_out": plan.swap_out.tolist(),
        "swap_in": plan.swap_in.tolist(),
    }
    return line if now is None else line | {"now": now}


def plan_from_json(line: Mapping[str, Any], sampling: Mapping[int, SamplingParams]) -> StepPlan:
    """The inverse of :func:`plan_to_json`; ``sampling`` by handle, from the ``add`` lines."""
    return StepPlan(
        step=line["step"],
        slots=_int32(line["slots"]),
        num_scheduled=_int32(line["num_scheduled"]),
        starts=_int32(line["starts"]),
        samples=np.array(line["samples"], np.bool_),
        new_blocks=tuple(
            NewBlocks(_int32(new["slots"]), _int32(new["index"]), _int32(new["block_ids"]))
            for new in line["new_blocks"]
        ),
        admitted=tuple(
            AdmittedRow(
                row["slot"],
                row["handle"],
                row["request_id"],
                _int32(row["tokens"]),
                row["num_prompt_tokens"],
                row["num_computed_tokens"],
                tuple(_int32(ids) for ids in row["block_ids"]),
                sampling[row["handle"]],
                row["resumed"],
            )
            for row in line["admitted"]
        ),
        released=_int32(line["released"]),
        swap_out=_int32(line["swap_out"]).reshape(-1, 2),
        swap_in=_int32(line["swap_in"]).reshape(-1, 2),
    )


def result_to_json(result: StepResult, *, with_times: bool = False) -> dict[str, Any]:
    """The ``result`` line; with the measured times if they decide anything. Log probabilities never do."""
    line = {
        "kind": "result",
        "step": result.step,
        "tokens": result.tokens.tolist(),
        "counts": result.counts.tolist(),
        "failed": {str(row): message for row, message in sorted(result.failed.items())},
    }
    if len(result.lost_host_blocks):
        line["lost_host_blocks"] = result.lost_host_blocks.tolist()
    if result.lost_plan:
        line["lost_plan"] = True
    return line | {"forward_s": result.forward_s, "copy_s": result.copy_s} if with_times else line


def result_from_json(line: Mapping[str, Any]) -> StepResult:
    """The inverse of :func:`result_to_json`."""
    tokens = _int32(line["tokens"])
    return StepResult(
        line["step"],
        tokens.reshape(len(line["counts"]), -1) if len(line["counts"]) else tokens.reshape(0, 1),
        _int32(line["counts"]),
        failed={int(row): message for row, message in line["failed"].items()},
        forward_s=line.get("forward_s", 0.0),
        copy_s=line.get("copy_s", 0.0),
        lost_host_blocks=_int32(line.get("lost_host_blocks", [])),
        lost_plan=line.get("lost_plan", False),
    )


def _int32(values: list[Any]) -> Int32:
    return np.array(values, np.int32)
