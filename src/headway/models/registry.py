"""Which class runs which architecture."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headway.models.config import canonical_architecture
from headway.models.llama import DecoderModel

_MODELS: Mapping[str, type[DecoderModel]] = MappingProxyType(
    {
        "llama": DecoderModel,
        "mistral": DecoderModel,
        "qwen2": DecoderModel,
        "qwen3": DecoderModel,
    }
)


def supported_architectures() -> tuple[str, ...]:
    """Our names of the architectures that can run, sorted."""
    return tuple(sorted(_MODELS))


def model_class(architecture: str) -> type[DecoderModel]:
    """Class for an architecture by our name, by a Hugging Face class name or by GGUF's ``general.architecture``.

    Raises:
        UnsupportedModel: none runs it yet.
    """
    return _MODELS[canonical_architecture(architecture)]
