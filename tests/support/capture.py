"""The packets of this machine's loopback, as a stranger on the way would see them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

ALL_PROTOCOLS = 3
BUFFER_BYTES = 256 * 1024 * 1024
PACKET_STATISTICS = 6
SO_RCVBUFFORCE, SOL_PACKET = 33, 263  # which Python does not name
SYN = 2


class Capture:
    """Keeps the TCP segments of IPv4 that pass while it is open; `streams` puts them together."""

    def __init__(self) -> None:
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
        self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._sock.bind(("lo", 0))
        self._packets: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            packet, (_, _, kind, *_) = self._sock.recvfrom(1 << 17)
            if kind == socket.PACKET_OUTGOING:  # else each would come twice
                self._packets.append(packet)
                if b"end of capture" in packet[-20:]:
                    return

    def close(self) -> None:
        """Take all that has passed so far; fails where the kernel had no room for some of it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end of capture", ("127.0.0.1", 9))
        self._thread.join()
        _, dropped = struct.unpack("II", self._sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._sock.close()
        assert not dropped, f"{dropped} packets were not captured"

    def streams(self) -> dict[tuple[bytes, bytes], bytes]:
        """Return the bytes of each direction of each connection, by the ends that sent and got them."""
        segments: dict[tuple[bytes, bytes], dict[int, bytes]] = {}
        for packet in self._packets:
            if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
                continue
            tcp = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big") or None]
            ends = packet[12:16] + tcp[:2], packet[16:20] + tcp[2:4]
            number = int.from_bytes(tcp[4:8], "big")
            if tcp[13] & SYN:
                segments[ends] = {}
                segments[ends][-1] = number.to_bytes(4, "big")
            elif ends in segments:
                begin = int.from_bytes(segments[ends][-1], "big") + 1
                data = tcp[(tcp[12] >> 4) * 4 :]
                segments[ends][(number - begin) % 2**32] = max(
                    data, segments[ends].get((number - begin) % 2**32, b""), key=len
                )
        return {ends: _join(found) for ends, found in segments.items()}


def _join(segments: dict[int, bytes]) -> bytes:
    stream = b""
    for at, data in sorted(segments.items()):
        if at >= 0:
            stream = stream[:at] + data + stream[at + len(data) :]
    return stream


@contextlib.contextmanager
def capturing() -> Iterator[Capture]:
    """A capture that is over at the end of the block."""
    capture = Capture()
    try:
        yield capture
    finally:
        capture.close()
