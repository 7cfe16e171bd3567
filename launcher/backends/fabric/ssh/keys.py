"""Facts of key files that need no passphrase."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path

_MAGIC = b"openssh-key-v1\0"


def find_security_key(identity_files: Iterable[str]) -> str:
    """Return the first identity file with a security key, which paramiko can't use, or ""."""
    for path in identity_files:
        blob = read_public_blob(path)
        if blob and _split_string(blob)[0].startswith(b"sk-"):
            return f"identityfile {path} (a security key)"
    return ""


def read_public_blob(path: str) -> bytes | None:
    """Return the public key of a key file, from itself or its .pub file."""
    for candidate in (path, f"{path}.pub"):
        data = _read(candidate)
        blob = _find_public(data) if data.startswith(b"-----BEGIN") else _decode(data.split()[1:2])
        if blob:
            return blob
    return None


def is_encrypted(path: str) -> bool:
    """Check for a passphrase on a private key; like ssh, ignore a file that can't be read."""
    data = _read(path)
    body = _decode_body(data)
    return _split_string(body)[0] != b"none" if body else b"ENCRYPTED" in data


def certifies(certificate: bytes, plain: bytes) -> bool:
    """Check for a certificate of this key: it has the same numbers after a nonce."""
    return _split_string(plain)[1] in certificate


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()[:65536]
    except OSError:
        return b""


def _decode(words: Iterable[bytes]) -> bytes:
    try:
        return base64.b64decode(b"".join(words), validate=True)
    except binascii.Error:
        return b""


def _decode_body(data: bytes) -> bytes:
    """Return the fields of a private key in OpenSSH's format, else nothing."""
    body = _decode(line for line in data.splitlines() if not line.startswith(b"-----"))
    return body[len(_MAGIC) :] if body.startswith(_MAGIC) else b""


def _find_public(data: bytes) -> bytes:
    """Return the public key in a private key's file."""
    rest = _decode_body(data)
    for _ in ("cipher", "KDF", "KDF options"):
        _, rest = _split_string(rest)
    return _split_string(rest[4:])[0]  # after the number of keys


def _split_string(data: bytes) -> tuple[bytes, bytes]:
    """Return the first length-prefixed field, and what follows it."""
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]
