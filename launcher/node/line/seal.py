"""MACs on the frames of a line that strangers can reach.

Apart from wire.py, because the library behind `hmac` takes longer to load than the wire.
"""

from __future__ import annotations

import hmac
import struct

MAC_BYTES = 16


class Seal:
    """The MACs of one direction of a line: a frame can't be changed, left out, repeated or made by others."""

    mac_bytes = MAC_BYTES

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def mac(self, frame: bytes) -> bytes:
        """The MAC of the next frame."""
        self._number += 1
        return hmac.digest(self._key, struct.pack("<Q", self._number) + frame, "sha256")[:MAC_BYTES]

    def fits(self, frame: bytes, mac: bytes) -> bool:
        """Whether this is the MAC of the next frame."""
        return hmac.compare_digest(self.mac(frame), mac)
