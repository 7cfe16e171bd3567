"""Facts of key files that need no passphrase."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

_MAGIC = b"openssh-key-v1\0"


def find_security_key(identity_files: Iterable[str]) -> str:
    """Return the first identity file with a security key, which paramiko can't use, or ""."""
    for path in identity_files:
        blob = read_public_blob(path)
        if blob and read_key_type(blob).startswith("sk-"):
            return f"identityfile {path} (a security key)"
    return ""


def read_key_type(blob: bytes) -> str:
    """Return the type name at the start of a public key or certificate."""
    return next(_split_strings(blob), b"").decode("ascii", "replace")


def read_public_blob(path: str) -> bytes | None:
    """Return the public key of a key file, from itself or its .pub file."""
    for candidate in (Path(path), Path(f"{path}.pub")):
        try:
            data = candidate.read_bytes()[:65536]
        except OSError:
            continue
        blob = _parse_private(data) if data.startswith(b"-----BEGIN") else _parse_public(data)
        if blob:
            return blob
    return None


def is_encrypted(path: str) -> bool:
    """Check for a passphrase on a private key. Raises OSError."""
    data = Path(path).read_bytes()
    body = _decode_body(data)
    if body is not None:
        return next(_split_strings(body[len(_MAGIC) :]), b"none") != b"none"
    return b"ENCRYPTED" in data


def _parse_public(data: bytes) -> bytes | None:
    words = data.split(None, 2)
    try:
        return base64.b64decode(words[1], validate=True)
    except (IndexError, binascii.Error):
        return None


def _decode_body(data: bytes) -> bytes | None:
    """Return the bytes of a private key in OpenSSH's format, else None."""
    lines = [line for line in data.splitlines() if line and not line.startswith(b"-----")]
    try:
        body = base64.b64decode(b"".join(lines), validate=True)
    except binascii.Error:
        return None
    return body if body.startswith(_MAGIC) else None


def _parse_private(data: bytes) -> bytes | None:
    body = _decode_body(data)
    if body is None:
        return None
    body = body[len(_MAGIC) :]
    head = islice(_split_strings(body), 3)  # cipher, KDF, KDF options
    after = sum(len(field) + 4 for field in head) + 4  # and the number of keys
    return next(_split_strings(body[after:]), None)


def _split_strings(data: bytes) -> Iterator[bytes]:
    """Return the complete length-prefixed fields."""
    at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if at + 4 + length > len(data):
            return
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def certifies(certificate: bytes, plain: bytes) -> bool:
    """Check for a certificate of this key: it has the same numbers after a nonce."""
    numbers = islice(_split_strings(plain), 1, None)
    return b"".join(struct.pack(">I", len(field)) + field for field in numbers) in certificate
