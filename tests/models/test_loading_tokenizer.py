"""Tokenizers out of GGUF files and folders: ids, bytes, special tokens, chat templates, ends of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType

from headway.models.loading import BadTokenizer, ChatTemplateError, ModelSource, Tokenizer, load_tokenizer
from headway.models.loading.tokenizer import byte_alphabet
from tests.support.gguf_files import write_gguf

TEXTS = (
    "Hello, world!",
    "",
    "  leading and trailing  ",
    "a\n\n\tb\r\n    indented 12  34",
    "naïve café — “quotes”",
    "日本語と中文、한국어",
    "🌍👩‍👩‍👧 emoji",
    "def f(x):\n    return {x: 1}  # 100%",
    "\x00\x07 control",
)

BYTES = [char for _, char in sorted(byte_alphabet().items())]
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<think>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ Ġ", "Ġ 1", "1 2"]
TOKENS = [*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES), "xyz"]  # no merge leads to the last
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if tools %}{{ tools[0]['name'] }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(tmp_path: Path, pre: str = "smollm", *, template: str | None = TEMPLATE, **ids: Any) -> Tokenizer:
    """A tokenizer with the 256 bytes, seven merges and four special tokens, the last of them user-defined."""

    def extra(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(TOKENS)
        kinds = [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED]
        writer.add_token_types(kinds + [TokenType.NORMAL] * (len(TOKENS) - 4))
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(0)
        for key, value in {"eos_token_id": 0, **ids}.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)
        if template is not None:
            writer.add_chat_template(template)

    path = write_gguf(tmp_path / "m.gguf", {}, extra=extra)
    return load_tokenizer(ModelSource("tiny", "gguf", path))


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [TOKENS[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize("pre", ["default", "smollm", "qwen2", "llama-bpe", "tekken"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tmp_path: Path, pre: str, text: str) -> None:
    tokenizer = byte_level(tmp_path, pre)

    ids = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.id_to_bytes, ids)).decode() == text


def test_splits_differ_where_the_models_do(tmp_path: Path) -> None:
    text = "hello  12"

    assert words(byte_level(tmp_path, "default"), text) == ["hello", "Ġ", "Ġ1", "2"]
    assert words(byte_level(tmp_path, "smollm"), text) == ["hello", "ĠĠ", "1", "2"]
    assert words(byte_level(tmp_path, "qwen2"), text) == ["hello", "Ġ", "Ġ", "1", "2"]
    assert words(byte_level(tmp_path, "llama-bpe"), text) == ["hello", "Ġ", "Ġ", "12"]


def test_llama3_takes_whole_words_first(tmp_path: Path) -> None:
    assert words(byte_level(tmp_path, "llama-bpe"), "xyz") == ["xyz"]
    assert words(byte_level(tmp_path, "smollm"), "xyz") == ["x", "y", "z"]


def test_qwen_composes_characters_first(tmp_path: Path) -> None:
    apart, composed = "e\u0301", "\u00e9"

    assert words(byte_level(tmp_path, "qwen2"), apart) == words(byte_level(tmp_path, "qwen2"), composed)
    assert words(byte_level(tmp_path, "smollm"), apart) != words(byte_level(tmp_path, "smollm"), composed)


def test_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizer, match=r"m\.gguf: .*rule 'martian', which is not known here \(.*smollm.* are\)"):
        byte_level(tmp_path, "martian")


def test_special_tokens_are_matched_whole_and_only_control_ones_are_left_out(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    text = "<|im_start|>hello<think><|im_end|>"

    ids = tokenizer.encode(text)

    assert [TOKENS[token_id] for token_id in ids] == ["<|im_start|>", "hello", "<think>", "<|im_end|>"]
    assert tokenizer.decode(ids) == "hello<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.id_to_bytes, ids)) == text.encode()
    assert tokenizer.special_token_ids == {0, 1, 2}


def test_half_a_character_is_bytes_and_a_replacement_character(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    ids = tokenizer.encode("é")

    assert [tokenizer.id_to_bytes(token_id) for token_id in ids] == [b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids[:1]) == "\ufffd"


def test_ids_beyond_the_vocabulary_are_nothing(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)

    assert tokenizer.vocab_size == len(TOKENS)
    assert tokenizer.id_to_bytes(len(TOKENS)) == b""
    assert tokenizer.decode([len(TOKENS) + 5]) == ""


def test_beginning_of_text(tmp_path: Path) -> None:
    for pre, ids, adds in (
        ("smollm", {}, False),
        ("smollm", {"add_bos_token": True}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
    ):
        tokenizer = byte_level(tmp_path, pre, **ids)
        assert tokenizer.bos_token_id == 0
        assert (tokenizer.encode("hello")[0] == 0) is adds, (pre, ids)
        assert tokenizer.encode("hello", add_special_tokens=False)[0] != 0


def test_ends_of_text(tmp_path: Path) -> None:
    assert byte_level(tmp_path, template=None).eos_token_ids == (0,)
    assert byte_level(tmp_path, template=None, eot_token_id=2).eos_token_ids == (0, 2)
    assert byte_level(tmp_path).eos_token_ids == (0, 2), "the template ends turns with <|im_end|>"
    assert byte_level(tmp_path, eos_token_id=2).eos_token_ids == (2,)


def test_chat(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, "llama-bpe")
    messages = [{"role": "user", "content": "hello"}]

    text = tokenizer.apply_chat_template(messages)

    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert text.startswith(tokenizer.apply_chat_template(messages, add_generation_prompt=False))
    assert "assistant" not in tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert "look_up" in tokenizer.apply_chat_template(messages, tools=[{"name": "look_up"}])
    assert tokenizer.encode_chat(messages) == tokenizer.encode(text, add_special_tokens=False)


def test_chat_errors(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="'tiny' has no chat template"):
        byte_level(tmp_path, template=None).apply_chat_template([{"role": "user", "content": "x"}])
    tokenizer = byte_level(tmp_path)
    with pytest.raises(ChatTemplateError, match="refuses these messages: no tools here"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])
    with pytest.raises(ChatTemplateError, match="refuses these messages"):
        tokenizer.apply_chat_template([{"role": "user"}])


def test_damaged_vocabularies(tmp_path: Path) -> None:
    def load(*steps: Any) -> None:
        path = write_gguf(tmp_path / "m.gguf", {}, extra=lambda writer: [step(writer) for step in steps])
        load_tokenizer(ModelSource("tiny", "gguf", path))

    with pytest.raises(BadTokenizer, match=r"m\.gguf: has no tokenizer"):
        load()
    model = lambda writer: writer.add_tokenizer_model("gpt2")  # noqa: E731
    tokens = lambda writer: writer.add_token_list(["a", "b"])  # noqa: E731
    with pytest.raises(BadTokenizer, match=r"without tokens \(metadata tokenizer\.ggml\.tokens is missing\)"):
        load(model)
    with pytest.raises(BadTokenizer, match="without merges"):
        load(model, tokens)
    with pytest.raises(BadTokenizer, match="cannot be built"):
        load(model, tokens, lambda writer: writer.add_token_merges(["a x"]))
    with pytest.raises(BadTokenizer, match="names 9 as its bos token; there are 3 tokens"):
        load(
            model,
            lambda writer: writer.add_token_list(["a", "b", "ab"]),
            lambda writer: writer.add_token_merges(["a b"]),
            lambda writer: writer.add_bos_token_id(9),
        )
    with pytest.raises(BadTokenizer, match="cannot be built"):
        load(lambda writer: writer.add_tokenizer_model("rwkv"), tokens)


class TestSentencePiece:
    @pytest.fixture
    def source(self, tmp_path: Path) -> ModelSource:
        pieces = ["\u2581", "h", "i", "hi", "\u2581hi"]
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
        kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)

        def extra(writer: GGUFWriter) -> None:
            writer.add_tokenizer_model("llama")
            writer.add_token_list(tokens)
            writer.add_token_types(kinds)
            writer.add_token_scores([0.0] * 259 + [-9.0, -8.0, -7.0, -1.0, -0.5])
            writer.add_unk_token_id(0)
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(2)
            writer.add_chat_template(TEMPLATE)

        return ModelSource("tiny", "gguf", write_gguf(tmp_path / "m.gguf", {}, extra=extra))

    @pytest.fixture(params=["converted", "kept"])
    def tokenizer(
        self, source: ModelSource, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Tokenizer:
        if request.param == "kept":
            load_tokenizer(source, cache_dir=tmp_path)
            monkeypatch.delattr("transformers.AutoTokenizer.from_pretrained")
        return load_tokenizer(source, cache_dir=tmp_path)

    def test_a_changed_file_is_converted_again(
        self, source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load_tokenizer(source, cache_dir=tmp_path)
        with source.path.open("ab") as file:
            file.write(b"more")
        monkeypatch.delattr("transformers.AutoTokenizer.from_pretrained")

        with pytest.raises(BadTokenizer):
            load_tokenizer(source, cache_dir=tmp_path)

    def test_a_cache_that_cannot_be_written_costs_only_time(self, source: ModelSource, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")

        assert load_tokenizer(source, cache_dir=tmp_path / "file").encode("hi") == [1, 263]

    def test_ids_and_text(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("hi hi") == [1, 263, 263]
        assert tokenizer.decode(tokenizer.encode("hi hi")) == "hi hi"
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]).startswith("<|im_start|>user")

    def test_bytes(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("hi é", add_special_tokens=False)

        assert b"".join(map(tokenizer.id_to_bytes, ids)) == " hi é".encode()
        assert tokenizer.id_to_bytes(3 + 0xC3) == b"\xc3"


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        from transformers import PreTrainedTokenizerFast

        made = byte_level(tmp_path)
        inner: PreTrainedTokenizerFast = made._inner  # type: ignore[attr-defined]
        folder = tmp_path / "folder"
        inner.save_pretrained(str(folder))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 0}))
        return folder

    def load(self, folder: Path) -> Tokenizer:
        return load_tokenizer(ModelSource("tiny", "folder", folder))

    def test_same_as_the_gguf_form(self, folder: Path, tmp_path: Path) -> None:
        ours, theirs = byte_level(tmp_path), self.load(folder)
        messages = [{"role": "user", "content": "hello"}]

        for text in TEXTS:
            assert theirs.encode(text) == ours.encode(text)
        assert theirs.apply_chat_template(messages) == ours.apply_chat_template(messages)
        assert theirs.eos_token_ids == ours.eos_token_ids
        assert theirs.special_token_ids == ours.special_token_ids
        assert theirs.vocab_size == ours.vocab_size

    def test_ends_come_from_all_files(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 0]}))

        assert self.load(folder).eos_token_ids == (5, 0, 2)

    def test_saved_truncation_does_not_shorten_prompts(self, folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        (folder / "tokenizer.json").write_text(json.dumps(content))

        assert len(self.load(folder).encode("x" * 50)) == 50

    def test_absent_and_damaged(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{")
        with pytest.raises(BadTokenizer, match="has no tokenizer that can be read"):
            self.load(folder)
        (folder / "tokenizer.json").unlink()

        with pytest.raises(BadTokenizer, match="has no tokenizer that can be read"):
            self.load(folder)
