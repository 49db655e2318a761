"""Who is computing which prefix block next, so that no block is computed twice by requests that could share it."""

from __future__ import annotations


class PrefixWatch:
    """Maps the hash of the next block that a row will publish to the slots of the rows that will.

    Only rows that still have to publish blocks of the tokens they were admitted with are in it, so it is empty in
    steady decode. ``version`` rises with every change.
    """

    def __init__(self) -> None:
        self._slots_of: dict[bytes, list[int]] = {}
        self._hash_of: dict[int, bytes] = {}
        self.version = 0

    def set(self, slot: int, block_hash: bytes) -> None:
        """The row in ``slot`` will next publish the block with this hash."""
        self.clear(slot)
        self._hash_of[slot] = block_hash
        self._slots_of.setdefault(block_hash, []).append(slot)
        self.version += 1

    def clear(self, slot: int) -> None:
        """The row in ``slot`` will publish nothing more that others may wait for."""
        block_hash = self._hash_of.pop(slot, None)
        if block_hash is None:
            return
        slots = self._slots_of[block_hash]
        slots.remove(slot)
        if not slots:
            del self._slots_of[block_hash]
        self.version += 1

    def clear_all(self) -> None:
        """No row is about to publish anything."""
        self._slots_of.clear()
        self._hash_of.clear()
        self.version += 1

    def slots(self, block_hash: bytes) -> list[int]:
        """Rows that will next publish this block, in the order they began to."""
        return self._slots_of.get(block_hash, [])

    def __contains__(self, slot: int) -> bool:
        return slot in self._hash_of

    def __len__(self) -> int:
        return len(self._hash_of)
