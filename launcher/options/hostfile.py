"""Parsing of hostfiles and `--host` lists as mpirun has them: hosts with their slots. Pure.

A line is `user@node1 slots=2 max_slots=4  # comment`; rejected ones raise SpecError with file, line and text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pslaunch.runtime.shared.env import find_near

from ..errors import SpecError
from .hosts import Host, merge_hosts, parse_hosts, split_list
from .kinds import Number

# mpirun's words for both numbers; it takes `-` for `_`.
WORDS: Final = {"slots": "slots", "cpu": "slots", "count": "slots",
                "max_slots": "max_slots", "slots_max": "max_slots"}  # fmt: skip
SLOTS: Final = Number(1, 65535)
_COMMENT: Final = re.compile(r"(#|//).*")
_IPV4: Final = re.compile(r"[0-9.]+")
_IPV6: Final = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%\w+)?")


def parse_hostfile(text: str, name: str, *, ports: bool = False) -> list[Host]:
    """Return the hosts of a hostfile in its order. Raises SpecError.

    name: the file, in messages. ports: a host may have one, as `me@node1:2222`.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        where, words = f"{name}:{number}", re.sub(r"\s*=\s*", "=", _COMMENT.sub("", line)).split()
        if words:
            numbers = _read_numbers(words[1:], line.strip(), where)
            found.append(_read_host(words[0], numbers, where, ports=ports))
    return _merge(found, name)


def parse_host_list(text: str, label: str) -> list[Host]:
    """Return the hosts of `node1:2,me@node2,[::1]:4`. label: beginning of messages. Raises SpecError."""
    found = []
    for word in split_list(text):
        match = re.fullmatch(r"(\[.*\]|(?:.*@)?\[.*\]|[^:]*):([^:\]]*)", word)
        host, count = match.groups() if match else (word, None)
        numbers = {"slots": SLOTS.read(count, f"{label}: {word!r}")} if count is not None else {}
        found.append(_read_host(host, numbers, label))
    return _merge(found, f"{label}={text!r}")


def _read_host(word: str, numbers: dict[str, int], where: str, *, ports: bool = False) -> Host:
    user, at, name = word.rpartition("@")
    word = f"{user}{at}[{name}]" if _IPV6.fullmatch(name) else word
    host, *others = parse_hosts([word], where, slots=ports)
    if others or (host.times != 1 and not host.counted):
        raise SpecError(f"{where}: {word!r}: expected one host a line")
    if host.port is not None and not ports:
        raise SpecError(f"{where}: {word!r}: expected a host without a port; ~/.ssh/config sets its port")
    if "slots" in numbers:
        if host.counted:
            raise SpecError(f"{where}: {word!r} and slots={numbers['slots']} are two numbers of slots")
        host = host._replace(times=numbers["slots"], counted=True)
    return host._replace(max_slots=numbers.get("max_slots"))


def _read_numbers(words: Sequence[str], line: str, where: str) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for word in words:
        name, equals, value = word.partition("=")
        key = WORDS.get(name.replace("-", "_"))
        if name in ("username", "user-name", "user_name") and equals:
            raise SpecError(f"{where}: {line!r}: {word!r} is not supported; write {value or 'USER'}@HOST")
        if key is None or not equals:
            near = find_near(name, WORDS)
            hint = f"did you mean {near}=N?" if near else "expected slots=N or max_slots=N after the host"
            raise SpecError(f"{where}: {line!r}: unknown word {word!r}; {hint}")
        if key in numbers:
            raise SpecError(f"{where}: {line!r}: {key} is given twice")
        numbers[key] = SLOTS.read(value, f"{where}: {line!r}: {name}")
    if numbers.get("max_slots", SLOTS.high) < numbers.get("slots", 1):
        raise SpecError(f"{where}: {line!r}: max_slots is smaller than slots")
    return numbers


def _merge(lines: Sequence[Host], where: str) -> list[Host]:
    """Return each host once. Raises SpecError for none, and for a name that another has without a domain."""
    if not lines:
        raise SpecError(f"{where} names no host")
    named: dict[str, Host] = {}
    longer: dict[str, Host] = {}  # by their names without a domain
    for line in lines:
        labels = [] if _IPV4.fullmatch(line.name) else line.name.split(".")
        shorter = [".".join(labels[:n]) for n in range(1, len(labels))]
        if near := next(filter(None, map(named.get, shorter)), longer.get(line.name)):
            raise SpecError(
                f"{line.where}: {line.text!r} and {near.text!r} ({near.where}) may be one host: "
                "give each host one name"
            )
        named.setdefault(line.name, line)
        for name in shorter:
            longer.setdefault(name, line)
    return merge_hosts(lines)
