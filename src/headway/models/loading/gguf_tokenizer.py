"""The tokenizer inside a GGUF file.

Byte-level vocabularies (``tokenizer.ggml.model = "gpt2"``) are built here from tokens and merges. How text is split
before merging is only named in the file (``tokenizer.ggml.pre``), so a table below holds one rule per name; a name
without a rule is refused, since a wrong split gives ids that the model has never seen. Other vocabularies
(SentencePiece) go through transformers once, which costs seconds, and from then on come out of the cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.models.loading.catalog import cache_root
from headway.models.loading.chat_template import DEFAULT
from headway.models.loading.errors import BadTokenizer
from headway.models.loading.gguf_file import GgufFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_CONTROL = 3
_USER_DEFINED = 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LEADING = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


@dataclass(frozen=True)
class _Split:
    """How a family of models cuts text before merging.

    Attributes:
        pattern: what one piece looks like; ``None`` is the rule of GPT-2.
        single_digits: cut every digit off first.
        composed: bring characters to their composed form (Unicode NFC) first.
        whole_words_first: a piece that is a token is that token, whatever the merges say.
        adds_bos: the beginning-of-text id goes in front, unless the file says otherwise.
    """

    pattern: str | None = None
    single_digits: bool = False
    composed: bool = False
    whole_words_first: bool = False
    adds_bos: bool = False


_GPT2 = _Split()
_SINGLE_DIGITS = _Split(single_digits=True)
_QWEN2 = _Split(pattern="|".join((_CONTRACTIONS, _WORDS, r"\p{N}", _SIGNS, _SPACES)), composed=True)
_LLAMA3 = _Split(
    pattern="|".join((_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _SIGNS, _SPACES)), whole_words_first=True, adds_bos=True
)
_TEKKEN = _Split(
    pattern="|".join(
        (
            f"{_LEADING}{_UPPER}*{_LOWER}+",
            f"{_LEADING}{_UPPER}+{_LOWER}*",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            _SPACES,
        )
    ),
    whole_words_first=True,
    adds_bos=True,
)
_SPLITS: Mapping[str, _Split] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _TEKKEN,
}


def gguf_tokenizer(file: GgufFile, cache_dir: str | os.PathLike[str] | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of ``file`` with its special tokens and chat template.

    Args:
        file: the opened file.
        cache_dir: folder that keeps converted tokenizers; see :func:`~headway.models.loading.catalog.cache_root`.

    Raises:
        BadTokenizer: the file has none, or one of a kind not read here.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise BadTokenizer(file.path, "has no tokenizer (metadata tokenizer.ggml.model is missing)")
    try:
        inner = _byte_level(file) if kind == "gpt2" else _converted(file.path, cache_root(cache_dir) / "tokenizers")
        inner.chat_template = _chat_templates(file)
        return inner
    except BadTokenizer:
        raise
    except Exception as error:  # the libraries below raise bare exceptions for vocabularies that do not add up
        raise BadTokenizer(file.path, f"has a tokenizer that cannot be built ({error})") from error


def _byte_level(file: GgufFile) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    name = file.metadata.get("tokenizer.ggml.pre", "default")
    if name not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise BadTokenizer(
            file.path,
            f"splits text by the rule {name!r}, which is not known here ({known} are); use its folder instead",
        )
    tokens: list[str] = _required(file, "tokens")
    backend = _backend(tokens, _required(file, "merges"), _SPLITS[name])
    _add_special_tokens(backend, tokens, file.metadata.get("tokenizer.ggml.token_type", ()))
    special = _special_tokens(file, tokens)
    _set_beginning(
        backend, special.get("bos_token"), file.metadata.get("tokenizer.ggml.add_bos_token", _SPLITS[name].adds_bos)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def _chat_templates(file: GgufFile) -> str | dict[str, str] | None:
    """The file's chat template; several by name if it has others besides."""
    key = "tokenizer.chat_template"
    default = file.metadata.get(key)
    named = {name.removeprefix(f"{key}."): text for name, text in file.metadata.items() if name.startswith(f"{key}.")}
    if default is not None:
        named = {DEFAULT: default, **named}
    if any(not isinstance(text, str) for text in named.values()):
        raise BadTokenizer(file.path, f"has a chat template that is no text (metadata {key})")
    return default if named.keys() <= {DEFAULT} else named


def _required(file: GgufFile, key: str) -> Any:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if not value:
        raise BadTokenizer(file.path, f"has a tokenizer without {key} (metadata tokenizer.ggml.{key} is missing)")
    return value


def _backend(tokens: list[str], merges: list[str], split: _Split) -> Tokenizer:
    """A byte-level tokenizer without special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(
        models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=[(left, right) for left, _, right in (merge.partition(" ") for merge in merges)],
            ignore_merges=split.whole_words_first,
        )
    )
    if split.composed:
        backend.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.single_digits else []
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_special_tokens(backend: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Match control and user-defined tokens whole; only the former are left out when decoding."""
    from tokenizers import AddedToken

    added = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    backend.add_special_tokens([token for token in added if token.special])
    backend.add_tokens([token for token in added if not token.special])


def _special_tokens(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    """Texts of the special tokens that have a role, by the argument name of the transformers tokenizer."""
    found: dict[str, str] = {}
    for key, role in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            continue
        if not 0 <= token_id < len(tokens):
            raise BadTokenizer(file.path, f"names {token_id} as its {key} token; there are {len(tokens)} tokens")
        found[role] = tokens[token_id]
    return found


def _set_beginning(backend: Tokenizer, bos: str | None, add_bos: bool) -> None:
    from tokenizers import processors

    if bos is None or not add_bos:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    else:
        backend.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, backend.token_to_id(bos))]
        )


def _converted(path: Path, folder: Path) -> PreTrainedTokenizerFast:
    """What transformers makes of the file at ``path``, kept in ``folder`` under what the file and its reader are."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    status = path.stat()
    identity = (str(path.resolve()), status.st_size, status.st_mtime_ns, importlib.metadata.version("transformers"))
    kept = folder / hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
    if kept.is_dir():
        loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(str(kept), local_files_only=True)
        return loaded
    inner = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    if not isinstance(inner, PreTrainedTokenizerFast):
        raise BadTokenizer(path, f"has a tokenizer of a kind not read here ({type(inner).__name__})")
    with suppress(OSError):  # a folder that cannot be written to, or another process that was first: nothing is lost
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=folder) as scratch:
            made = Path(scratch) / kept.name
            inner.save_pretrained(str(made))
            os.rename(made, kept)
    return inner
