"""MACs on the frames of a line over TCP; wire.py says for each kind what they cover.

Apart from wire.py, because `hmac` takes longer to load than the wire.
"""

from __future__ import annotations

import hmac
import struct

MAC_BYTES = 16


class Seal:
    """MACs of one direction of a line: they reveal changed, missing, repeated and foreign frames."""

    mac_bytes = MAC_BYTES

    def __init__(self, key: bytes) -> None:
        self._keyed, self._number = hmac.new(key, digestmod="sha256"), 0

    def compute_mac(self, frame: bytes | bytearray) -> bytes:
        """Return the MAC of the next frame."""
        self._number += 1
        mac = self._keyed.copy()
        mac.update(struct.pack("<Q", self._number))
        mac.update(frame)
        return mac.digest()[:MAC_BYTES]

    def fits(self, frame: bytes | bytearray, mac: bytes | bytearray) -> bool:
        """Return True if this is the MAC of the next frame."""
        return hmac.compare_digest(self.compute_mac(frame), mac)
