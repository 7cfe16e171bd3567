"""Parsing of host lists: `user@host:port`, `[v6]:port`, `node[01-64]`, `node1:2` with slots. Pure."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pslaunch.runtime.shared.env import suggest

from ..errors import SpecError
from .args import NEAR
from .kinds import Value

MAX_HOSTS: Final = 4096  # of one job: more is a typing error
TOO_MANY: Final = f"{MAX_HOSTS} hosts at most, named twice or not"
SSH_PORT: Final = 22  # of ssh servers: a smaller number after a host's name is one of slots
SHOWN: Final = 8  # of many, in a message
# Neither begins with a dash: it would be an option of ssh. Unicode letters may be an alias of ~/.ssh/config.
NAME: Final = re.compile(r"\w[\w.-]*")
_USER: Final = re.compile(r"[^\s:@/-][^\s:/]*")
_RANGE: Final = re.compile(r"\[([^][]*)\]")
_PIECE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class Host(NamedTuple):
    """One node as named by the user; ssh's configuration decides the rest."""

    name: str  # may be an alias of ~/.ssh/config; IPv6 without brackets
    user: str | None = None
    port: int | None = None
    times: int = 1  # repetitions, or its slots: pairs of processes, or ranks
    where: str = ""  # for messages: "conf.py:3", "--hosts"
    counted: bool = False  # its slots are given
    max_slots: int | None = None

    @property
    def text(self) -> str:
        """Return `user@host:port`, an IPv6 address in brackets."""
        user = f"{self.user}@" if self.user else ""
        return user + self.address

    @property
    def address(self) -> str:
        """Return `host:port`, unique for each host."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port is None else f"{name}:{self.port}"

    @property
    def ssh_words(self) -> str:
        """Return the shell words after `ssh` that connect to it."""
        port = [] if self.port is None else ["-p", str(self.port)]
        return shlex.join([*port, f"{self.user}@{self.name}" if self.user else self.name])


def parse_hosts(words: Sequence[str], where: str | Sequence[str], *, slots: bool = False) -> list[Host]:
    """Return the hosts of `words` in order; a host named k times has times=k.

    where: beginning of messages, for all words or for each. slots: `host:k` is a host named k times, and only
    a host after `user@` may have a port, from SSH_PORT on. Raises SpecError.
    """
    places = [where] * len(words) if isinstance(where, str) else where
    found, total = list[Host](), 0
    for word, place in zip(words, places, strict=True):
        for host in _parse_word(word, place, slots):
            found.append(host)
            total += host.times
            if total > MAX_HOSTS:
                raise SpecError(f"{place}: {word!r}: {TOO_MANY}")
    return merge_hosts(found)


def merge_hosts(hosts: Iterable[Host]) -> list[Host]:
    """Return each host once, with the sum of its times. Raises SpecError.

    In a host's first line max_slots alone is its slots too, as for mpirun.
    """
    found: dict[str, Host] = {}
    for number, host in enumerate(hosts):
        if number == MAX_HOSTS:
            raise SpecError(f"{host.where}: {TOO_MANY}")
        known = found.get(host.address)
        if known is None:
            alone = 0 if host.counted else host.max_slots
            known = host._replace(times=alone, counted=True) if alone else host
        elif known.user != host.user:
            raise SpecError(
                f"{host.where}: {host.text!r} was named as {known.text!r} before ({known.where}); "
                "a host is one node, with one user"
            )
        else:
            known = known._replace(
                times=known.times + host.times,
                counted=known.counted or host.counted,
                max_slots=host.max_slots or known.max_slots,
            )
        found[host.address] = known
    return list(found.values())


def split_list(text: str, separators: str = ",") -> list[str]:
    """Split a list at the separators outside brackets."""
    words = re.findall(rf"(?:\[[^]]*\]|[^{re.escape(separators)}])+", text)
    return [word.strip() for word in words if word.strip()]


def _parse_word(word: str, where: str, slots: bool = False) -> Iterator[Host]:
    user, at, rest = word.strip().rpartition("@")
    if at and not _USER.fullmatch(user):
        raise SpecError(f"{where}: {word!r}: {user!r} is not a user name")
    if not rest:
        raise SpecError(f"{where}: {word!r} names no host")
    name, port = _split_port(rest, word, where)
    for one in _expand(name, word, where):
        host = Host(_check_name(one, word, where), user or None, port, where=where)
        yield _read_slots(host, word, where) if slots else host


def _read_slots(host: Host, word: str, where: str) -> Host:
    """Return a host whose number is one of slots, or after a user a port. Raises SpecError."""
    if host.port is None or (host.user and host.port >= SSH_PORT):
        return host
    if not host.user and host.port < SSH_PORT:
        return host._replace(port=None, times=host.port, counted=True)
    as_port = f"'Port {host.port}' in ~/.ssh/config" if host.user else f"USER@{word.strip()}"
    as_slots = f"{host._replace(port=None).text} slots={host.port}"
    raise SpecError(
        f"{where}: {word!r}: {host.port} may be a port or a number of slots; write {as_port} for the port, "
        f"or for slots the line '{as_slots}' of a --hostfile"
    )


def _split_port(rest: str, word: str, where: str) -> tuple[str, int | None]:
    """Split into the name, with its brackets, and the port."""
    name, colon, digits = rest.rpartition(":")
    if not colon or "]" in digits:
        return rest, None
    if ":" in name and not name.endswith("]"):
        raise SpecError(f"{where}: {word!r}: write an IPv6 address in brackets, as [::1] or [::1]:22")
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 1 <= int(digits) <= 65535:
        raise SpecError(f"{where}: {word!r}: expected a port from 1 to 65535, not {digits!r}")
    return name, int(digits)


def _expand(name: str, word: str, where: str) -> Iterator[str]:
    """Yield the names of a name with ranges; `node[08-11]` keeps its zeros."""
    match = _RANGE.search(name)
    if match is None or ":" in match[1]:
        yield name
        return
    for number in _list_numbers(match[1], word, where):
        yield from _expand(name[: match.start()] + number + name[match.end() :], word, where)


def _list_numbers(text: str, word: str, where: str) -> Iterator[str]:
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece.strip())
        if match is None:
            raise SpecError(f"{where}: {word!r}: [{text}] is not a range, as in node[01-64] or node[1-3,7]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise SpecError(f"{where}: {word!r}: [{text}] goes backwards")
        yield from (str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))


def _check_name(name: str, word: str, where: str) -> str:
    if name.startswith("[") and name.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(name[1:-1]))
        except ValueError as e:
            raise SpecError(f"{where}: {word!r}: {name} is not an IPv6 address: {e}") from None
    if not NAME.fullmatch(name):
        raise SpecError(f"{where}: {word!r}: {name!r} is not a host name; expected node1,node[02-64]")
    return name


# --- Selection. ---


def choose(hosts: Sequence[Host], include: Sequence[Value], exclude: Sequence[Value]) -> list[Host]:
    """Return the hosts in `include` (all if it is empty) without those in `exclude`, in their own order.

    Both take hosts as written before, or without users in ranges and lists (`node[1-3]@gpu7`, `a,b`).
    Raises SpecError for an unknown host, and if none is left.
    """
    chosen = list(hosts)
    for values, wanted in ((include, True), (exclude, False)):
        if values:
            named = _find_named(values, chosen)
            chosen = [host for host in chosen if (host.address in named) == wanted]
    if hosts and not chosen:
        raise SpecError(f"{_join_values(exclude)} leaves no host")
    return chosen


def _join_values(values: Sequence[Value]) -> str:
    return f"{values[0].label}={'@'.join(value.text for value in values)}"


def _find_named(values: Sequence[Value], hosts: Sequence[Host]) -> set[str]:
    users = {host.user for host in hosts}
    known: dict[str, list[str]] = {}  # addresses by names, in which a port and a user may be left out
    for host in (*(host._replace(user=None) for host in hosts), *(host for host in hosts if host.user)):
        for text in dict.fromkeys((host.text, host._replace(port=None).text)):
            known.setdefault(text, []).append(host.address)
    found: set[str] = set()
    for value in values:
        shown = f"{value.label}={value.text}"
        for piece in split_list(value.text):
            # A host with its user; else a list with `@` between hosts.
            user = piece.rpartition("@")[0]
            whole = user in users and (
                user not in known or all(host.text in known for host in _parse_word(piece, shown))
            )
            for name in [piece] if whole else split_list(piece, "@"):
                for host in _parse_word(name, shown):
                    found.update(_find_addresses(host.text, known, shown))
    if not found:
        raise SpecError(f"{_join_values(values)} names no host")
    return found


def _find_addresses(text: str, known: Mapping[str, list[str]], shown: str) -> list[str]:
    if text not in known:
        known = {name: of for name, of in known.items() if ("@" in name) == ("@" in text)}
        some = f": {', '.join(list(known)[:SHOWN])}{', ...' if len(known) > SHOWN else ''}"
        raise SpecError(f"{shown}: {text} is not among the hosts{suggest(text, known, some, NEAR)}")
    return known[text]
