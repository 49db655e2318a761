"""Plans, results and sampling parameters as JSON values and back, for the step trace (docs/trace.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.config import SamplingParams
from headway.core.plan import AdmittedRow, Int32, NewBlocks, StepPlan, StepResult

_DEFAULT = SamplingParams()


def sampling_to_json(sampling: SamplingParams) -> dict[str, Any]:
    """The fields that differ from the default."""
    fields: dict[str, Any] = {}
    for spec in dataclasses.fields(sampling):
        value = getattr(sampling, spec.name)
        if value != getattr(_DEFAULT, spec.name):
            fields[spec.name] = {str(k): v for k, v in value.items()} if isinstance(value, Mapping) else value
    return fields


def sampling_from_json(fields: Mapping[str, Any]) -> SamplingParams:
    """The inverse of :func:`sampling_to_json`."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return SamplingParams(**given)


def plan_to_json(plan: StepPlan) -> dict[str, Any]:
    """The ``plan`` line. Sampling parameters are not repeated: they are in the request's ``add`` line."""
    return {
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
    }


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
    )


def result_to_json(result: StepResult) -> dict[str, Any]:
    """The ``result`` line. Log probabilities decide nothing and are left out."""
    return {
        "kind": "result",
        "step": result.step,
        "tokens": result.tokens.tolist(),
        "counts": result.counts.tolist(),
        "failed": {str(row): message for row, message in sorted(result.failed.items())},
    }


def result_from_json(line: Mapping[str, Any]) -> StepResult:
    """The inverse of :func:`result_to_json`."""
    tokens = _int32(line["tokens"])
    return StepResult(
        line["step"],
        tokens.reshape(len(line["counts"]), -1) if len(line["counts"]) else tokens.reshape(0, 1),
        _int32(line["counts"]),
        failed={int(row): message for row, message in line["failed"].items()},
    )


def _int32(values: list[Any]) -> Int32:
    return np.array(values, np.int32)
