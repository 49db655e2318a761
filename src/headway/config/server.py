"""Options of the HTTP server. The queue limits are the engine's: ``max_num_queued_reqs`` and ``..._tokens``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.config.options import HIDDEN, Checked, ConfigError, option

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Checked):
    """Where the server listens, whom it lets in, how much one call may ask for, and how it ends."""

    host: str = option("127.0.0.1", help="Address to listen on; other machines reach 0.0.0.0 only.")
    port: int = option(8000, help="Port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    served_model_name: tuple[str, ...] = option(
        (), help="Names under which clients may ask for the model, the first one in answers; none is the model's own."
    )
    api_key: tuple[str, ...] = option(
        (),
        help="Keys, one of which every call but health must bring; better given by environment or file.",
        secret=True,
    )
    cache_isolation: bool = option(
        False, help="Share cached prefixes within one API key only, so that keys cannot probe each other's prompts."
    )

    allowed_origins: tuple[str, ...] = option(
        (),
        help="Web pages of these origins (https://app.example) may call from a browser; * is any. None is no page but"
        " the server's own.",
    )
    allowed_methods: tuple[str, ...] = option(("*",), help="Methods that such pages may use; * is any.")
    allowed_headers: tuple[str, ...] = option(("*",), help="Headers that such pages may send; * is any.")

    drain_timeout: float = option(
        30.0, help="After SIGTERM, open answers have this long to end by themselves.", unit="seconds", minimum=0.0
    )
    stall_timeout: float = option(
        60.0,
        help="A busy engine without a finished step for this long counts as frozen; must exceed the longest step.",
        unit="seconds",
        minimum=0.001,
    )
    keep_alive: float | None = option(
        15.0,
        help="A stream without news for this long gets a comment line, so that nothing on the way gives up on it.",
        unit="seconds",
        minimum=0.01,
    )

    max_body_mib: float = option(16.0, help="Largest body of a call.", unit="MiB", minimum=0.0)
    max_body_values: int = option(
        500_000,
        help="Most values (numbers, texts) in the body of a call; commas are counted, those in texts too.",
        unit="values",
        minimum=1,
    )
    max_prompts: int = option(256, help="Most prompts in one call.", unit="prompts", minimum=1)
    max_n: int = option(64, help="Largest n and best_of.", unit="choices", minimum=1)
    max_sequences: int = option(
        512, help="Most generations of one call: prompts times the larger of n and best_of.", minimum=1
    )
    max_logprobs: int = option(20, help="Most alternatives per token.", minimum=0, maximum=100)
    max_stop: int = option(16, help="Most stop strings, and most stop token ids, of one call.", minimum=0)
    max_stop_chars: int = option(256, help="Longest stop string, and longest bad word.", unit="characters", minimum=1)
    max_bad_words: int = option(100, help="Most bad words of one call.", minimum=0)
    max_logit_bias: int = option(300, help="Most entries of a logit bias.", minimum=0)
    max_form_chars: int = option(
        65536, help="Longest JSON schema, list of choices or grammar that an output can be kept to.", unit="characters"
    )
    max_regex_chars: int = option(4096, help="Longest regular expression for it.", unit="characters")
    form_timeout: float = option(5.0, help="Such a form has this long to be compiled.", unit="seconds", minimum=0.001)
    max_tools: int = option(128, help="Most tools in one call.", minimum=0)
    tool_call_parser: str = option(
        "auto",
        help="How the model writes tool calls; auto finds out from its chat template.",
        choices=("auto", "hermes", "llama3_json"),
    )
    reasoning_parser: str = option(
        "auto",
        help="How the model marks its reasoning, which is told apart; auto finds out from its chat template.",
        choices=("auto", "none", "think", "mistral", "seed_oss", "cohere"),
    )

    status_interval: float = option(
        10.0,
        help="Seconds between lines on what the server does, while it does something; 0 is no lines.",
        unit="seconds",
        minimum=0.0,
    )
    access_log: bool = option(False, help="Log a line per call: address, method, path, status.")

    def check(self) -> None:
        if any(not key or not key.isascii() or any(char.isspace() for char in key) for key in self.api_key):
            raise ConfigError("api_key", HIDDEN, "must not be empty, and be ASCII without spaces")
        if self.cache_isolation and not self.api_key:
            raise ConfigError("cache_isolation", True, "has no effect without api_key")
        self._check_origins()
        if any(not name for name in self.served_model_name):
            raise ConfigError("served_model_name", self.served_model_name, "must not be empty")
        if self.max_sequences < self.max_n:
            raise ConfigError("max_sequences", self.max_sequences, f"must be at least max_n ({self.max_n})")

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                limit = "must be * or like https://app.example or http://localhost:3000, without a path"
                raise ConfigError("allowed_origins", origin, limit)
        for name in ("allowed_methods", "allowed_headers"):
            given = getattr(self, name)
            if given != ("*",) and not self.allowed_origins:
                raise ConfigError(name, given, "has no effect without allowed_origins")
            if not given or not all(_TOKEN.fullmatch(item) for item in given):
                raise ConfigError(name, given, "must be * or names, as HTTP writes them")

    @property
    def max_body_bytes(self) -> int:
        """The body limit in bytes."""
        return int(self.max_body_mib * 2**20)
