"""Headway: an LLM serving engine built around a scheduler that you can read, replay and prove.

``LLM``, ``SamplingParams``, ``Structured`` and ``RequestOutput`` are imported when they are first used: ``import
headway`` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headway.version import __version__

if TYPE_CHECKING:
    from headway.build import LLM
    from headway.config import SamplingParams, Structured
    from headway.engine.outputs import RequestOutput

__all__ = ["LLM", "RequestOutput", "SamplingParams", "Structured", "__version__"]

_HOME = {
    "LLM": "headway.build",
    "RequestOutput": "headway.engine.outputs",
    "SamplingParams": "headway.config",
    "Structured": "headway.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
