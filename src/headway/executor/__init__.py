"""Runs plans on a model: KV tensors, input buffers, forward, sampler. Knows plans, never the scheduler."""
