"""Headway: an LLM serving engine built around a scheduler that you can read, replay and prove."""
