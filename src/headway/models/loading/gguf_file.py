"""The GGUF container: metadata and where each tensor lies, read without touching tensor data.

Written from the format's description (``docs/gguf.md`` of the ggml project). All numbers are little-endian::

    magic "GGUF" | version u32 | tensors u64 | metadata entries u64
    metadata entries:  key string | type u32 | value
    tensor records:    name string | dimensions u32 | sizes u64, innermost first | type u32 | offset u64
    padding to general.alignment | tensor data, each at its offset from here

A string is its length u64 and UTF-8 bytes; an array value is a type u32, a count u64 and the items.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from headway.models.config import UnsupportedModel
from headway.models.loading.errors import BadModelFile

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4

_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: its shape (outermost dimension first), number format, and bytes ``offset`` to ``end`` of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    end: int


class GgufFile:
    """An opened GGUF file.

    Attributes:
        path: the file.
        metadata: all its keys; arrays are lists.
        tensors: its tensors by GGUF name.
    """

    def __init__(self, path: Path) -> None:
        """Read everything but tensor data.

        Raises:
            BadModelFile: not a GGUF file, cut short, or inconsistent.
            UnsupportedModel: a version, number format or split that is not read here.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise BadModelFile(path, "is not a GGUF file (it does not begin with 'GGUF')")
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise BadModelFile(path, f"cannot be read ({error})") from error
        cursor = _Cursor(self._data, len(MAGIC))
        try:
            version, num_tensors, num_keys = cursor.numbers("IQQ")
            self._check_version(version)
            self.metadata: Mapping[str, Any] = {cursor.string(): cursor.value() for _ in range(num_keys)}
            records = [cursor.tensor_record() for _ in range(num_tensors)]
        except struct.error as error:
            raise BadModelFile(
                path, f"is cut short: it ends after {len(self._data)} bytes, inside its header"
            ) from error
        except (_Damaged, UnicodeDecodeError) as error:
            raise BadModelFile(path, f"has a damaged header near byte {cursor.position} ({error})") from error
        self.tensors: Mapping[str, GgufTensor] = {
            tensor.name: tensor for tensor in self._place(records, cursor.position)
        }

    def read(self, tensor: GgufTensor) -> np.ndarray:
        """Values of one tensor as float32, in an array of its own that may be written to."""
        count = tensor.end - tensor.offset
        stored = np.frombuffer(self._data, np.uint8, count, tensor.offset)
        if tensor.kind == GGMLQuantizationType.F32:
            return stored.view(np.float32).reshape(tensor.shape).copy()
        try:
            return dequantize(stored.reshape(*tensor.shape[:-1], -1), tensor.kind).reshape(tensor.shape)
        except NotImplementedError as error:
            kind = tensor.kind.name
            raise UnsupportedModel(
                f"GGUF type {kind}", f"{self.path}: tensor {tensor.name!r} is stored as {kind}, which is not read"
            ) from error

    def _check_version(self, version: int) -> None:
        if version not in _VERSIONS:
            raise UnsupportedModel(
                f"GGUF version {version}",
                f"{self.path}: is GGUF version {version}; little-endian files of version 2 and 3 are read",
            )

    def _place(self, records: list[_TensorRecord], header_end: int) -> Iterator[GgufTensor]:
        """Turn records into places in the file, and check that the file reaches that far."""
        if self.metadata.get("split.count", 1) > 1:
            raise UnsupportedModel(
                "split GGUF", f"{self.path}: is one part of several; merge them with gguf-split first"
            )
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise BadModelFile(self.path, f"general.alignment is {alignment!r}, which is no alignment")
        start = -(-header_end // alignment) * alignment
        for record in records:
            kind = self._number_format(record)
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            if not record.shape or record.shape[-1] % block_size:
                raise BadModelFile(
                    self.path,
                    f"tensor {record.name!r} has shape {record.shape}, not in blocks of {block_size} ({kind.name})",
                )
            offset = start + record.offset
            end = offset + prod(record.shape) // block_size * block_bytes
            if end > len(self._data):
                raise BadModelFile(
                    self.path,
                    f"is cut short: tensor {record.name!r} ends at byte {end}, the file has {len(self._data)}",
                )
            yield GgufTensor(record.name, record.shape, kind, offset, end)

    def _number_format(self, record: _TensorRecord) -> GGMLQuantizationType:
        try:
            return GGMLQuantizationType(record.kind)
        except ValueError as error:
            raise UnsupportedModel(
                f"GGUF type {record.kind}",
                f"{self.path}: tensor {record.name!r} is stored in number format {record.kind}, which is not known",
            ) from error


class _Damaged(Exception):
    """The header holds something that no writer writes."""


@dataclass(frozen=True)
class _TensorRecord:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Cursor:
    """A position in the header. Reading past the end raises ``struct.error``."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self._data = data
        self.position = position

    def numbers(self, formats: str) -> tuple[Any, ...]:
        packed = "<" + formats
        values = struct.unpack_from(packed, self._data, self.position)
        self.position += struct.calcsize(packed)
        return values

    def string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self.position)
        begin = self.position + 8
        self.position = begin + length
        if self.position > len(self._data):
            raise struct.error("string beyond the end")
        return self._data[begin : self.position].decode("utf-8")

    def value(self) -> Any:
        """One metadata value, its type first."""
        (kind,) = self.numbers("I")
        if kind != _ARRAY:
            return self._item(kind)
        item_kind, count = self.numbers("IQ")
        if item_kind in _SCALAR_FORMATS:
            size = struct.calcsize("<" + _SCALAR_FORMATS[item_kind])
            if self.position + count * size > len(self._data):
                raise struct.error("array beyond the end")
            return list(self.numbers(f"{count}{_SCALAR_FORMATS[item_kind]}"))
        return [self._item(item_kind) for _ in range(count)]

    def tensor_record(self) -> _TensorRecord:
        name = self.string()
        (num_dimensions,) = self.numbers("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise _Damaged(f"tensor {name!r} with {num_dimensions} dimensions")
        sizes = self.numbers(f"{num_dimensions}Q")
        kind, offset = self.numbers("IQ")
        return _TensorRecord(name, tuple(reversed(sizes)), kind, offset)

    def _item(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind not in _SCALAR_FORMATS:
            raise _Damaged(f"value type {kind}")
        return self.numbers(_SCALAR_FORMATS[kind])[0]
