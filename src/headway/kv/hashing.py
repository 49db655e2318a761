"""Block hashes: equal hash means equal tokens, at equal positions, after an equal beginning, under equal key parts.

Hashes are chained. The root of a chain stands for everything that must be equal besides tokens (block size, salt); the
hash of a full block is BLAKE2b-256 over its parent's hash and its tokens:

    root   = H_root(block_size | part | part | ...)      part = len(kind) | kind | len(value) | value
    hash_i = H_block(hash_{i-1} | tokens of block i)     hash_{-1} = root; tokens as little-endian int32

Numbers in the root are little-endian uint32. ``H_root`` and ``H_block`` are BLAKE2b (RFC 7693) with different
personalisation, so a root is never the hash of a block. BLAKE2b is collision-resistant, hence a hit needs no comparison
of tokens, and unseeded, hence all processes and machines agree.

Room to grow: a part of a new kind changes no key without it, since kinds and lengths are in the message. Parts that
concern one block (media) can be appended after its tokens: block messages without parts are exactly
``32 + 4 * block_size`` bytes long, so no other message can equal one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from headway.kv.arrays import Int32

_DIGEST_SIZE = 32
# Copying a prepared hasher is the cheapest way to a keyed digest: no arguments to parse per block.
_BLOCK_HASHER = hashlib.blake2b(digest_size=_DIGEST_SIZE, person=b"headway-block-1")


@dataclass(frozen=True)
class KeyPart:
    """Something besides tokens that requests must have in common to share KV.

    Attributes:
        kind: what it is ("salt"); part of the key, so a salt never equals anything but a salt.
        value: its canonical bytes.
    """

    kind: str
    value: bytes


def chain_root(parts: Sequence[KeyPart] = (), *, block_size: int) -> bytes:
    """The parent hash of a request's first block; the order of ``parts`` does not matter."""
    fields = sorted((part.kind.encode(), part.value) for part in parts)
    message = [block_size.to_bytes(4, "little")]
    for kind, value in fields:
        message += [len(kind).to_bytes(4, "little"), kind, len(value).to_bytes(4, "little"), value]
    return hashlib.blake2b(b"".join(message), digest_size=_DIGEST_SIZE, person=b"headway-root-1").digest()


def extend_hashes(hashes: list[bytes], root: bytes, tokens: Int32, block_size: int, upto: int) -> None:
    """Append the hashes of a request's blocks ``len(hashes) .. upto - 1``, chained from the last one or ``root``.

    Args:
        hashes: hashes of the blocks before; extended in place.
        root: what :func:`chain_root` gave for the request, with the same ``block_size``.
        tokens: int32[num_tokens], the request's tokens from its first on.
        block_size: tokens per block.
        upto: number of blocks that have a hash afterwards (fewer than there are already: nothing happens).

    Raises:
        ValueError: if ``tokens`` does not fill ``upto`` blocks.
    """
    if upto * block_size > len(tokens):
        raise ValueError(f"{len(tokens)} tokens do not fill {upto} blocks of {block_size}")
    parent = hashes[-1] if hashes else root
    for block_tokens in _split(tokens[len(hashes) * block_size : upto * block_size], block_size):
        parent = _hash_block(parent, block_tokens)
        hashes.append(parent)


def hash_blocks(parents: Sequence[bytes], tokens: Int32) -> list[bytes]:
    """Hash one block each of ``k`` requests.

    Args:
        parents: k hashes of the blocks before (or roots).
        tokens: int32[k, block_size].
    """
    if len(parents) != len(tokens):
        raise ValueError(f"{len(parents)} parents for {len(tokens)} blocks")
    return list(map(_hash_block, parents, _split(tokens, tokens.shape[1])))


def _hash_block(parent: bytes, block_tokens: bytes) -> bytes:
    hasher = _BLOCK_HASHER.copy()
    hasher.update(parent + block_tokens)
    return hasher.digest()


def _split(tokens: Int32, block_size: int) -> list[bytes]:
    """The canonical bytes of each block: little-endian int32, whatever the machine's byte order."""
    data = tokens.astype("<i4", casting="safe", copy=False).tobytes()
    width = 4 * block_size
    return [data[start : start + width] for start in range(0, len(data), width)]
