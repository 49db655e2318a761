"""The engine: loop, prompts and text, metrics, step trace. No device: executors are given to it by ``headway.build``."""
