"""The three operator seams: linear layers, paged attention with the KV write, and fused small operations."""
