"""Headway: an LLM serving engine built around a scheduler that you can read, replay and prove."""

__all__ = ["__version__"]

__version__ = "0.1.0"
