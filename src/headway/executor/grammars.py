"""Forms of outputs, compiled by llguidance: the only module that knows that library.

A form is compiled once, into an automaton over the bytes of the vocabulary; each request gets a copy that is cheap.
Nothing here raises or waits for long because of what a client wrote: the library counts its work ("fuel") and gives
up at a limit, and what it gave up on is an error of that form alone.

Forced text is not forced as tokens. Where a form allows one text only, every way to write it in tokens is
allowed and the model chooses. Otherwise the library would tokenise by a call back into Python, in the step.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.config import ConfigError, Structured
from headway.config.depth import load_json
from headway.config.structured import Reasoning, json_rule
from headway.core.plan import Int32
from headway.executor.masks import Matcher
from headway.models.loading import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NUM_CACHED = 256
"""So many compiled forms are kept, the ones used last."""
MAX_THREADS = 8
"""Masks of one step are made by at most so many threads."""

_HEADER = '%llguidance { "no_forcing": true }\n'
_MAX_MESSAGE = 300
_MAX_LOGGED = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledForm(Structured):
    """A form that was compiled. Sent to another process it is the text again.

    Attributes:
        matcher: at the beginning of an output; never moved on, only copied.
    """

    matcher: Any = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Structured, (self.kind, self.text, self.annotations, self.reasoning)


class GuidanceGrammars:
    """Compiles forms for one model. :meth:`compile` may be called from any thread, the rest from one.

    Args:
        tokenizer: of the model.
        vocab_size: columns of the logits.
        eos_token_ids: what ends an output; allowed where the form may end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = [token_id for token_id in eos_token_ids if token_id < vocab_size]
        self._vocabulary: LLTokenizer | None = None
        self._cache: OrderedDict[Structured, CompiledForm] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: Any = None

    def compile(self, form: Structured) -> CompiledForm:
        """The same form, compiled; at once if it was compiled lately.

        Raises:
            ConfigError: it cannot be used, with the reason.
        """
        if isinstance(form, CompiledForm):
            return form
        with self._lock:
            known = self._cache.get(form)
            if known is not None:
                self._cache.move_to_end(form)
                return known
        compiled = CompiledForm(form.kind, form.text, form.annotations, form.reasoning, self._matcher(form))
        for annotation in form.annotations[:_MAX_LOGGED]:
            logger.warning("the schema of an output has a part that cannot be kept to: %s", annotation)
        with self._lock:
            self._cache[form] = compiled
            while len(self._cache) > NUM_CACHED:
                self._cache.popitem(last=False)
        return compiled

    def start(self, form: Structured) -> Matcher:
        """A matcher for a new output.

        Raises:
            ConfigError: as :meth:`compile` does, for a form that is not compiled yet.
        """
        return GuidanceMatcher(self.compile(form).matcher.deep_copy())

    def fill(self, matchers: Sequence[Matcher], bits: Int32) -> None:
        """Write which tokens each matcher allows next: bit ``i % 32`` of word ``i // 32`` for token ``i``.

        Args:
            matchers: made by :meth:`start`.
            bits: int32[at least as many rows, words], contiguous; written row by row.
        """
        inner = [matcher.inner for matcher in matchers if isinstance(matcher, GuidanceMatcher)]
        if len(inner) == 1:
            inner[0].unsafe_compute_mask_ptr(bits.ctypes.data, bits.shape[1] * 4)
            return
        if self._pool is None:
            from llguidance import LLExecutor

            self._pool = LLExecutor(min(MAX_THREADS, os.cpu_count() or 1))
        rows = [(matcher, row) for row, matcher in enumerate(inner)]
        self._pool.unsafe_compute_mask_ptr(rows, bits.ctypes.data, bits.shape[1] * 4, len(bits))

    def _matcher(self, form: Structured) -> LLMatcher:
        vocabulary = self._load_vocabulary()
        from llguidance import LLMatcher, LLParserLimits

        try:
            grammars: list[dict[str, str]] = [{"name": "form", "lark_grammar": _HEADER + _to_lark(form)}]
            if form.reasoning is not None:
                grammars.insert(0, {"lark_grammar": _HEADER + _after_reasoning(form.reasoning)})
            text = json.dumps({"grammars": grammars})
        except ConfigError:
            raise
        except Exception as error:  # converting a grammar of GBNF fails in many ways
            raise _unusable(form, str(error)) from error
        matcher = LLMatcher(vocabulary, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise _unusable(form, matcher.get_error())
        return matcher

    def _load_vocabulary(self) -> LLTokenizer:
        """The vocabulary as the library keeps it, made when the first form comes: that takes up to a second."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            limit = "needs the package llguidance: pip install 'headway[structured]'"
            raise ConfigError("structured", "llguidance", limit) from error
        if not self._eos_token_ids:
            raise ConfigError("structured", self._tokenizer.name, "needs a model that has an end-of-text token")
        with self._lock:
            if self._vocabulary is None:
                tokens: Any = _Vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids[0])
                self._vocabulary = LLTokenizer(tokens, eos_token=self._eos_token_ids)
            return self._vocabulary


class GuidanceMatcher:
    """Where one output is in its form.

    Args:
        inner: of the library; a copy of its own.
    """

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner

    def consume(self, token_ids: list[int]) -> None:
        """Move on by tokens of the output; what goes wrong shows in :attr:`error`."""
        self.inner.consume_tokens(token_ids)

    @property
    def error(self) -> str:
        """Why it cannot go on; empty if it can."""
        return _in_one_line(self.inner.get_error()) if self.inner.is_error() else ""


class _Vocabulary:
    """What the library wants to know of a tokenizer, under the names that it looks for."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.id_to_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = sorted(token_id for token_id in tokenizer.special_token_ids if token_id < vocab_size)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _to_lark(form: Structured) -> str:
    """The form in the library's dialect of Lark.

    Raises:
        ConfigError: the schema is no object.
        Exception: its text cannot be read.
    """
    from llguidance import regex_to_lark
    from llguidance.gbnf_to_lark import any_to_lark

    if form.kind == "json":
        return f"start: {json_rule(load_json('structured', form.text))}"
    if form.kind == "regex":
        return f"start: /{regex_to_lark(form.text, 'dws')}/"
    if form.kind == "choice":
        return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in json.loads(form.text))
    return any_to_lark(form.text)


def _after_reasoning(reasoning: Reasoning) -> str:
    """Reasoning, and then the grammar named "form"."""
    opening = json.dumps(reasoning.opening) if reasoning.opening_id is None else f"<[{reasoning.opening_id}]>"
    if reasoning.closing_id is None:
        rules = f"reasoning[suffix={json.dumps(reasoning.closing)}]: /(?s:.*)/"
    else:
        rules = f"reasoning: FREE <[{reasoning.closing_id}]>\nFREE: /(?s:.*)/"
    between = r"/[ \t\r\n]{0,8}/"
    start = f"reasoning {between} @form"
    return f"start: {start if reasoning.is_open else f'({opening} reasoning {between})? @form'}\n{rules}"


def _unusable(form: Structured, reason: str) -> ConfigError:
    return ConfigError("structured", form.kind, f"cannot be compiled: {_in_one_line(reason)}")


def _in_one_line(message: str) -> str:
    """The library's message without its excerpts of the grammar."""
    head = re.split(r"\n\s+1 \||\n<", message, maxsplit=1)[0]
    head = re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: ", "", head)
    return " ".join(head.split())[:_MAX_MESSAGE]
