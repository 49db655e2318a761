"""Loading models: from a name to files, tensors and a tokenizer.

Importing this package pulls in neither torch nor transformers; the functions do, when they are called.
"""

from headway.models.loading.catalog import CATALOG, PackagedModel, PackagedPart, cache_root
from headway.models.loading.download import ProgressCallback, PullProgress
from headway.models.loading.errors import (
    BadModelFile,
    BadTokenizer,
    ChatTemplateError,
    DownloadFailed,
    LoadingError,
    MissingTensor,
    ModelNotFound,
    UnexpectedTensor,
)
from headway.models.loading.generation import GenerationDefaults, load_generation_defaults
from headway.models.loading.lazy import LazyWeights
from headway.models.loading.source import ModelInfo, ModelSource, list_models, pull, resolve_model
from headway.models.loading.tokenizer import Tokenizer, load_tokenizer
from headway.models.loading.weights import load_config, load_weights

__all__ = [
    "CATALOG",
    "BadModelFile",
    "BadTokenizer",
    "ChatTemplateError",
    "DownloadFailed",
    "GenerationDefaults",
    "LazyWeights",
    "LoadingError",
    "MissingTensor",
    "ModelInfo",
    "ModelNotFound",
    "ModelSource",
    "PackagedModel",
    "PackagedPart",
    "ProgressCallback",
    "PullProgress",
    "Tokenizer",
    "UnexpectedTensor",
    "cache_root",
    "list_models",
    "load_config",
    "load_generation_defaults",
    "load_tokenizer",
    "load_weights",
    "pull",
    "resolve_model",
]
