"""Executors without a model, for tests, and simulation in virtual time. Needs no torch."""
