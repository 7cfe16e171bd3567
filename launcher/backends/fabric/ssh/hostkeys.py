"""Host keys: known ones pass, changed ones are refused with file and line, unknown ones follow the policy.

Reads OpenSSH's files with hashed names, patterns and @revoked. Hosts with a @cert-authority line use the
ssh binary, because paramiko does not support host certificates.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ....errors import HostError
from .settings import HopSettings

Verdict = Literal["known", "unknown", "changed", "revoked"]
ADVICE = "accept it with --host_key_policy=accept_new, or be asked at a terminal with --host_key_policy=ask"


class KnownHost(NamedTuple):
    """One line of a known_hosts file."""

    names: str
    key_type: str
    key: bytes
    marker: str
    where: str  # file:line

    def covers(self, address: str) -> bool:
        """Check for a match with `address`: `host`, or `[host]:port` for a port other than 22."""
        if self.names.startswith("|1|"):
            return _fits_hash(self.names, address)
        hit = False
        for pattern in self.names.lower().split(","):
            if pattern.startswith("!") and _fits(address, pattern[1:]):
                return False
            hit = hit or _fits(address, pattern)
        return hit


def _fits(address: str, pattern: str) -> bool:
    # Only * and ? are special; brackets belong to [host]:port.
    return fnmatch.fnmatchcase(address.lower(), pattern.replace("[", "[[]"))


def _fits_hash(names: str, address: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in names.split("|")[2:4])
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.digest(salt, address.lower().encode(), "sha1"), digest)


def read(paths: Iterable[str]) -> Iterator[KnownHost]:
    """Return all valid lines of these files; missing files are skipped."""
    for path in paths:
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#"):
                continue
            try:
                key = base64.b64decode(words[2])
            except binascii.Error:
                continue
            yield KnownHost(words[0], words[1], key, marker, f"{path}:{number}")


def find_entries(settings: HopSettings) -> list[KnownHost]:
    """Return the lines for a host; like ssh, lines without a port if none has its port."""
    entries = [*read(settings.user_known_hosts), *read(settings.global_known_hosts)]
    own = [entry for entry in entries if entry.covers(settings.address)]
    if own or settings.address == settings.hostname:
        return own
    return [entry for entry in entries if entry.covers(settings.hostname) and not settings.host_key_alias]


def judge(
    entries: Sequence[KnownHost], address: str, key_type: str, key: bytes
) -> tuple[Verdict, KnownHost | None]:
    """Return the verdict on the key of a host, and the line that decides it."""
    for entry in entries:
        if entry.marker == "@revoked" and entry.key == key:
            return "revoked", entry
    plain = [entry for entry in entries if not entry.marker]
    for entry in plain:
        if entry.key == key:
            return "known", entry
    # A line without a port can confirm a key but not contradict it.
    others = [entry for entry in plain if entry.covers(address)]
    same_type = [entry for entry in others if entry.key_type == key_type]
    if others:
        return "changed", (same_type or others)[0]
    return "unknown", None


def make_fingerprint(key: bytes) -> str:
    """Return the fingerprint in the form of ssh."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def make_line(settings: HopSettings, key_type: str, key: bytes) -> str:
    """Return the known_hosts line of a host."""
    name = settings.address.lower()
    if settings.hash_known_hosts:
        salt = os.urandom(20)
        digest = hmac.digest(salt, name.encode(), "sha1")
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    return f"{name} {key_type} {base64.b64encode(key).decode()}\n"


class HostKeyChecker:
    """Checker of the keys of all hops; asks one question at a time."""

    def __init__(self, ask: Callable[[str], str] | None) -> None:
        self._ask = ask
        self._lock = threading.Lock()

    def check(self, settings: HopSettings, key_type: str, key: bytes) -> None:
        """Check a host key. Raises HostError, step "host key", if it is not trusted."""
        with self._lock:  # ask once about a host with two names
            verdict, entry = judge(find_entries(settings), settings.address, key_type, key)
            if verdict == "known" or (verdict != "revoked" and settings.strict == "no"):
                return
            shown = f"its {key_type} key is {make_fingerprint(key)}"
            where = entry.where if entry else ""
            if verdict == "revoked":
                raise self._make_error(settings, f"{shown}, which {where} revokes")
            if verdict == "changed":
                forget = shlex.join(["ssh-keygen", "-R", settings.address, "-f", where.rpartition(":")[0]])
                why = "someone may intercept the connection, or the host was reinstalled; in that case"
                raise self._make_error(settings, f"{shown}, but {where} has another: {why}: {forget}")
            self._check_unknown(settings, key_type, key, shown)

    def _check_unknown(self, settings: HopSettings, key_type: str, key: bytes, shown: str) -> None:
        asks = self._ask if settings.strict == "ask" else None
        if settings.strict != "accept-new" and not (asks and self._is_yes(asks, settings, shown)):
            raise self._make_error(settings, f"{shown}, which is not known; {ADVICE}")
        if settings.user_known_hosts:
            _remember(settings.user_known_hosts[0], make_line(settings, key_type, key))

    @staticmethod
    def _is_yes(ask: Callable[[str], str], settings: HopSettings, shown: str) -> bool:
        question = f"{settings.name} ({settings.address}) is not known; {shown}. Connect? (yes/no) "
        return ask(question).strip().lower() in ("yes", "y")

    @staticmethod
    def _make_error(settings: HopSettings, detail: str) -> HostError:
        return HostError(settings.name, "host key", detail)


def _remember(path: str, entry: str) -> None:
    """Append to a known_hosts file. Like ssh, ignores a file that can't be written: it asks again."""
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(path).touch(mode=0o600)
        with Path(path).open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            broken = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write((b"\n" if broken else b"") + entry.encode())
    except OSError:
        return


def sort_key_types(entries: Iterable[KnownHost], offered: Sequence[str]) -> list[str]:
    """Return the algorithms, those of known keys first, so that the host shows a known key."""
    known = {entry.key_type for entry in entries if not entry.marker}
    known |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in known else set()
    return [*(t for t in offered if t in known), *(t for t in offered if t not in known)]
