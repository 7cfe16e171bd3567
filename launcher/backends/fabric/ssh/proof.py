"""Authentication with keys of the agent and of files, and their certificates, in the order of ssh."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import paramiko

from . import keys
from .attempt import BusyError, Deadline, RefusedError
from .settings import HopSettings

PASSPHRASE_TRIES = 3


def load_key(path: str, ask: Callable[[str], str] | None) -> Any:
    """Return the private key of a file, or None: missing, unknown to paramiko, or locked."""
    if not keys.is_encrypted(path):
        return _load(path, None)
    for _ in range(PASSPHRASE_TRIES if ask else 0):
        assert ask is not None
        word = ask(f"Enter passphrase for key '{path}': ")
        key = _load(path, word) if word else None
        if key or not word:
            return key
    return None


def _load(path: str, passphrase: str | None) -> Any:
    word = passphrase.encode("utf-8", "surrogateescape") if passphrase else None
    try:
        return paramiko.PKey.from_path(path, word)
    except Exception:  # paramiko raises many types: no key, or a wrong passphrase
        return None


class Proof:
    """AuthStrategy with the order of ssh: agent keys, then files; certificates before plain keys."""

    def __init__(self, settings: HopSettings, load: Callable[[str], Any], deadline: Deadline) -> None:
        """load: returns the private key of a file, as `load_key` does."""
        self._settings, self._load, self._deadline = settings, load, deadline
        self.tried: list[str] = []
        self.locked: list[str] = []

    def authenticate(self, transport: Any) -> None:
        words = self._offer_keys(transport)
        if words:
            offered = f"; offered: {', '.join(self.tried)}" if self.tried else ""
            locked = ", ".join(self.locked)
            locked = f"; locked without a terminal: {locked} (ssh-add it)" if locked else ""
            raise RefusedError(self._settings.name, "authenticate", f"{words}{offered}{locked}")

    def _offer_keys(self, transport: Any) -> str:
        """Return why the host accepts none of the keys, "" if it does."""
        words = "no key to offer"
        for label, key in self._list_keys():
            if not transport.is_active():  # sshd allows two minutes; a retry knows the passphrase
                raise BusyError("the connection was closed before a key was offered")
            self.tried.append(label)
            try:
                left = transport.auth_publickey(self._settings.user, key)
            except paramiko.BadAuthenticationType as e:
                return f"the host accepts only {', '.join(e.allowed_types)}"
            except paramiko.AuthenticationException as e:
                words = str(e) or "refused"
                if not transport.is_active():
                    return words
            else:
                return f"the host also requires {', '.join(left)}" if left else ""
        return words

    def _list_keys(self) -> Iterator[tuple[str, Any]]:
        settings = self._settings
        files = {path: keys.read_public_blob(path) for path in settings.identity_files}
        with contextlib.closing(paramiko.Agent()) as agent:
            held = {key.asbytes(): key for key in agent.get_keys() if not key.get_name().startswith("sk-")}
            named = [blob for blob in files.values() if blob is not None and blob in held]
            others = [] if settings.identities_only else [blob for blob in held if blob not in named]
            for key in [held[blob] for blob in (*named, *others)]:
                yield from self._add_certificates(key, f"{key.comment or 'a key'} of the agent", "")
        for path, blob in files.items():
            if blob in held:
                continue
            with self._deadline.stop_clock():
                key = self._load(path)
            if key is not None:
                yield from self._add_certificates(key, path, path)
            elif not path.endswith(".pub") and keys.is_encrypted(path):
                self.locked.append(path)

    def _add_certificates(self, key: Any, label: str, path: str) -> Iterator[tuple[str, Any]]:
        beside = f"{path}-cert.pub"
        for certificate in (*self._settings.certificate_files, *([beside] if path else [])):
            copy = _add_certificate(key, certificate)
            if copy is not None:
                yield certificate, copy
        yield label, _copy_key(key)


def _copy_key(key: Any) -> Any:
    """Copy a key without the certificate that paramiko loaded with it."""
    if isinstance(key, paramiko.agent.AgentKey):  # can't be copied
        return paramiko.agent.AgentKey(key.agent, key.blob, key.comment)
    again = copy.copy(key)
    again.public_blob = None
    return again


def _add_certificate(key: Any, certificate: str) -> Any:
    """Return a copy of the key with its certificate, or None if it does not fit."""
    certified = _copy_key(key)
    try:
        certified.load_certificate(certificate)
    except (ValueError, paramiko.SSHException, OSError):
        return None
    return certified if keys.certifies(certified.public_blob.key_blob, key.asbytes()) else None
