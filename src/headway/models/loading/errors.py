"""What can go wrong between a model's name and its tensors, one type per kind of answer.

A model whose files are sound but whose architecture is not computed here is an
:class:`headway.models.config.UnsupportedModel` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class LoadingError(Exception):
    """Base of all errors of this package."""


class ModelNotFound(LoadingError):
    """Nothing goes by this name.

    Attributes:
        name: what was asked for.
        known: the aliases that would have worked.
    """

    def __init__(self, name: str, reason: str, known: Sequence[str]) -> None:
        super().__init__(
            f"model {name!r} not found: {reason}. Give the path of a folder with config.json and *.safetensors, "
            f"the path of a .gguf file, a hub name such as 'org/name', or one of: {', '.join(known)}"
        )
        self.name = name
        self.known = tuple(known)


class DownloadFailed(LoadingError):
    """The model exists by name but could not be fetched.

    Attributes:
        name: what was asked for.
        reason: what the other side, or its absence, said.
        advice: what to do about it.
    """

    def __init__(self, name: str, reason: str, advice: str) -> None:
        super().__init__(f"could not fetch model {name!r}: {reason}. {advice}")
        self.name = name
        self.reason = reason
        self.advice = advice


class BadModelFile(LoadingError):
    """A file or folder is there but is not what it should be.

    Attributes:
        path: the file or folder.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MissingTensor(BadModelFile):
    """The architecture needs a tensor that the files do not hold; ``tensor`` is its Hugging Face name."""

    def __init__(self, path: Path, tensor: str) -> None:
        super().__init__(path, f"tensor {tensor!r} is missing")
        self.tensor = tensor


class UnexpectedTensor(BadModelFile):
    """A tensor has another shape or kind than the architecture computes with, or no place in it at all."""

    def __init__(self, path: Path, tensor: str, reason: str) -> None:
        super().__init__(path, f"tensor {tensor!r} {reason}")
        self.tensor = tensor


class BadTokenizer(BadModelFile):
    """The model's tokenizer is absent, damaged or of a kind not read here."""


class ChatTemplateError(LoadingError):
    """The model has no chat template, or its template refuses these messages."""
