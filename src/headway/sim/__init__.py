"""Executors without a model, for tests and simulation. Needs no torch."""
