"""A server over a tiny model with random weights, whose tokenizer and chat template are as a test wants them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from headway.build import build_engine
from headway.config import EngineOptions
from headway.models.tiny import make_tiny
from tests.server.running import Running, serving

VOCAB = 320


@contextmanager
def tiny_chat(folder: Path, template: str, special: Sequence[str] = (), added: Sequence[str] = ()) -> Iterator[Running]:
    """A server that runs.

    Args:
        folder: to write the model into.
        template: its chat template.
        special: more special tokens, from id ``VOCAB`` on.
        added: more tokens of one piece that are not special, after those.
    """
    num_added = len(special) + len(added)
    make_tiny(folder, vocab=VOCAB, overrides={"vocab_size": VOCAB + num_added})
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    tokenizer.save(str(folder / "tokenizer.json"))
    engine = build_engine(EngineOptions(model=str(folder), num_blocks=400))
    assert engine.tokenizer is not None
    assert engine.tokenizer.vocab_size == VOCAB + num_added
    with serving(engine=engine, options={"served_model_name": ("bytes",)}) as server:
        yield server
        server.rest()
