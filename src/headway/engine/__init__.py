"""The engine: loop, prompts and text, metrics, step trace. Executors are given to it by ``headway.build``."""
