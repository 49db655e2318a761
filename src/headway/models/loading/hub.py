"""Models by their hub name, through ``huggingface_hub`` and its own cache folder (``HF_HOME``).

A complete copy in that cache is used without asking the network. Before a download one short look-up finds out
whether the hub answers at all, so that a machine without a way out hears so in seconds.
"""

from __future__ import annotations

from pathlib import Path

from headway.models.loading.errors import DownloadFailed
from headway.models.loading.safetensors_folder import weight_files

# How long the hub may take to answer the first question.
ANSWER_TIMEOUT_S = 10.0

_WANTED = [
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*",
    "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab.*", "merges.txt",
    "additional_chat_templates/*.jinja",
]  # fmt: skip
# Folders hold the same weights for other runtimes, "consolidated" files the same ones under other names. A "*" above
# goes into folders too, of which only the chat templates are of use.
_UNWANTED = ["*/*.safetensors", "*/*.json", "tokenizer*/*", "chat_template*/*", "consolidated*"]


def cached_snapshot(repo_id: str) -> Path | None:
    """The newest complete copy of a repository in the hub's cache, if there is one."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo_id, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Whether a folder has a config and every weight file that it says it has."""
    return (folder / "config.json").is_file() and bool(files := weight_files(folder)) and all(map(Path.is_file, files))


def download_snapshot(repo_id: str) -> Path:
    """Fetch what we read of a repository, or what changed in it, and return its folder.

    Raises:
        DownloadFailed: the hub does not answer, has no such repository, or wants a login for it.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        HfApi().model_info(repo_id, timeout=ANSWER_TIMEOUT_S)
        folder = Path(
            snapshot_download(repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, etag_timeout=ANSWER_TIMEOUT_S)
        )
    except Exception as error:  # its errors and those of the HTTP library below it share no base
        raise _failure(repo_id, error) from error
    if not is_complete(folder):
        raise DownloadFailed(
            repo_id,
            "the repository has no config.json with *.safetensors at its top",
            "Of a repository with .gguf files, name one: org/name/file.gguf",
        )
    return folder


def cached_file(repo_id: str, filename: str) -> Path | None:
    """One file of a repository in the hub's cache, if it is there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo_id, filename)
    return Path(found) if isinstance(found, str) else None


def download_file(repo_id: str, filename: str) -> Path:
    """Fetch one file of a repository, and return its path. Raises as :func:`download_snapshot` does."""
    from huggingface_hub import HfApi, hf_hub_download

    try:
        HfApi().model_info(repo_id, timeout=ANSWER_TIMEOUT_S)
        return Path(hf_hub_download(repo_id, filename, etag_timeout=ANSWER_TIMEOUT_S))
    except Exception as error:  # as above
        raise _failure(f"{repo_id}/{filename}", error) from error


def cached_repositories() -> list[tuple[str, Path, int]]:
    """Complete models in the hub's cache: name, folder, bytes; sorted by name."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    models = sorted((repo.repo_id, repo.size_on_disk) for repo in repositories if repo.repo_type == "model")
    return [(name, folder, size) for name, size in models if (folder := cached_snapshot(name)) is not None]


def _failure(name: str, error: Exception) -> DownloadFailed:
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return DownloadFailed(name, "its owner asks for agreement first", "Accept the terms, then 'hf auth login'")
    if isinstance(error, RepositoryNotFoundError):
        return DownloadFailed(name, "the hub has no such model, or hides it", "Check the name; log in if it is private")
    if isinstance(error, EntryNotFoundError):
        return DownloadFailed(name, "the repository has no such file", "Check the file's name")
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DownloadFailed(
        name,
        f"the hub could not be reached ({first_line})",
        "Go online, or fetch it on a machine that is and give the folder's path",
    )
