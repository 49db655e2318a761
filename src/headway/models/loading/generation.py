"""Sampling parameters that a model asks for: those of ``generation_config.json``, or of a GGUF file's keys.

What such a file leaves out stays as it is here; in particular, the library that writes it has defaults of its own
(``top_k`` 50), which are not the model's word and do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headway.config import ConfigError, SamplingParams
from headway.models.loading.errors import BadModelFile
from headway.models.loading.safetensors_folder import read_json
from headway.models.loading.source import ModelSource

AUTO, NONE = "auto", "headway"
"""Values of the option ``generation_config`` that are no path: the model's own, or none."""

FILE_NAME = "generation_config.json"

_SAME_NAME = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_GGUF_NAMES = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
# Keys that change which tokens come and are not known here, with the values that ask for nothing.
_NOT_APPLIED: Mapping[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "sequence_bias": ({},),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "top_h": (),
    "typical_p": (1.0,),
    "general.sampling.mirostat": (0,),
    "general.sampling.xtc_probability": (0.0,),
}


@dataclass(frozen=True)
class GenerationDefaults:
    """What holds for requests that do not say otherwise.

    Attributes:
        values: sampling parameters by name.
        eos_token_ids: ids that end a text, if a file other than the model's names some.
        origin: where they come from, in words; empty if they were not asked for.
        not_applied: keys that ask for something not known here.
    """

    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    eos_token_ids: tuple[int, ...] = ()
    origin: str = ""
    not_applied: tuple[str, ...] = ()

    def describe(self) -> str:
        """All of it in a sentence."""
        if not self.origin:
            return "sampling defaults: Headway's own, as asked for"
        if not self.values:
            text = f"sampling defaults: Headway's own ({self.origin} has none)"
        else:
            listed = ", ".join(f"{name} {value:g}" for name, value in self.values.items())
            text = f"sampling defaults: {listed} (of {self.origin}; the option generation_config can turn them off)"
        return text + (f"; not applied: {', '.join(self.not_applied)}" if self.not_applied else "")


def load_generation_defaults(source: ModelSource, choice: str = AUTO) -> GenerationDefaults:
    """The defaults for the model at ``source``.

    Args:
        source: from :func:`~headway.models.loading.source.resolve_model`.
        choice: ``AUTO``, ``NONE``, or a path: a file as ``generation_config.json``, or a folder with one.

    Raises:
        ConfigError: a path at which there is no such file, or a value in it that cannot be used.
        BadModelFile: a value in the model's own file that cannot be used.
    """
    if choice == NONE:
        return GenerationDefaults()
    if choice != AUTO:
        return _of_asked(choice)
    if source.kind == "gguf":
        from headway.models.loading.gguf_file import GgufFile

        return _of_gguf(GgufFile(source.path).metadata, source.path)
    path = source.path / FILE_NAME
    if not path.is_file():
        return GenerationDefaults(origin="the model")
    return _of_json(path, f"the model's {FILE_NAME}")


def check_generation_config(choice: str) -> None:
    """Check what can be checked before the model is there; :class:`ConfigError` if the file cannot be used."""
    if choice not in (AUTO, NONE):
        _of_asked(choice)


def _of_asked(choice: str) -> GenerationDefaults:
    try:
        return _of_json(_asked_path(choice), f"file {choice}", with_ends=True)
    except BadModelFile as error:
        raise ConfigError("generation_config", choice, str(error)) from error


def _asked_path(choice: str) -> Path:
    """The file that a user names; :class:`ConfigError` if it is not there."""
    path = Path(choice).expanduser()
    if path.is_dir():
        path /= FILE_NAME
    if not path.is_file():
        limit = f"must be {AUTO}, {NONE}, or a file as {FILE_NAME}, or a folder with one"
        raise ConfigError("generation_config", choice, limit)
    return path


def _of_json(path: Path, origin: str, *, with_ends: bool = False) -> GenerationDefaults:
    content = read_json(path)
    values = {name: content[name] for name in _SAME_NAME if content.get(name) is not None}
    if content.get("do_sample") is False:
        values["temperature"] = 0.0
    if content.get("max_new_tokens") is not None:
        values["max_tokens"] = content["max_new_tokens"]
    if content.get("min_new_tokens") is not None:
        values["min_tokens"] = content["min_new_tokens"]
    ends = content.get("eos_token_id")
    ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(token, int) for token in ids):
        raise BadModelFile(path, f"has eos_token_id {ends!r}, which is no token id")
    return GenerationDefaults(_checked(values, path), tuple(ids) if with_ends else (), origin, _not_applied(content))


def _of_gguf(metadata: Mapping[str, Any], path: Path) -> GenerationDefaults:
    values = {name: metadata[key] for key, name in _GGUF_NAMES.items() if key in metadata}
    if values.get("repetition_penalty", 1.0) != 1.0 and metadata.get("general.sampling.penalty_last_n", -1) == 0:
        del values["repetition_penalty"]  # looks at no token, so it is off
    return GenerationDefaults(_checked(values, path), (), "the model's file", _not_applied(metadata))


def _checked(values: dict[str, Any], path: Path) -> Mapping[str, Any]:
    """The values in the form of :class:`SamplingParams`; :class:`BadModelFile` if one cannot be used."""
    try:
        if isinstance(values.get("top_k"), int):
            values["top_k"] = max(0, values["top_k"])
        checked = SamplingParams(**{"max_tokens": None, **values})
    except (ConfigError, TypeError) as error:
        raise BadModelFile(path, f"has a sampling parameter that cannot be used ({error})") from error
    return MappingProxyType({name: getattr(checked, name) for name in values})


def _not_applied(content: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        name for name, neutral in _NOT_APPLIED.items() if content.get(name) is not None and content[name] not in neutral
    )
