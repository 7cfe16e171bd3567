"""The number of ranks on each host, by hosts' slots, `--host` lists and rankfiles. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from ...errors import SpecError
from ...options.hostfile import SlotHost, parse_host_list


def filter_hosts(hosts: Sequence[SlotHost], wanted: Sequence[SlotHost], name: str) -> list[SlotHost]:
    """Return the hosts of a hostfile that a list names, with the list's ranks, as mpirun does.

    name: the hostfile, in messages. Raises SpecError for a host that it has not.
    """
    known = {one.host.address: one for one in hosts}
    for one in wanted:
        if one.host.address not in known:
            raise SpecError(f"{one.host.where}: {one.host.text} is not in {name}, from which it would choose")
    return [known[one.host.address]._replace(slots=one.slots or one.host.times) for one in wanted]


def parse_rankfile(text: str, name: str) -> list[SlotHost]:
    """Return the hosts of lines `rank 0=node1 slot=0-3`, each with its ranks. Raises SpecError."""
    hosts = re.findall(r"^\s*rank\s+\d+\s*=\s*(\S+)", text, re.MULTILINE)
    if not hosts:
        raise SpecError(f"{name} gives no rank a host; expected lines as: rank 0=node1 slot=0-3")
    return parse_host_list(",".join(hosts), name)


def deal_ranks(hosts: Sequence[SlotHost], ranks: int | None, *, oversubscribe: bool, label: str) -> list[int]:
    """Return the number of ranks on each host; ranks: in total, None for all slots.

    The first hosts are filled first; ranks beyond all slots are dealt in turn. label: `ranks` in messages.
    Raises SpecError for more ranks than slots allow.
    """
    own = [host.ranks for host in hosts]
    total = sum(own)
    if ranks is None:
        return own
    if ranks <= total:
        before = itertools.accumulate(own, initial=0)
        return [max(0, min(n, ranks - dealt)) for n, dealt in zip(own, before, strict=False)]
    if not oversubscribe and any(host.slots is not None for host in hosts):
        raise SpecError(f"{label}={ranks} is more than the {total} slots of the hosts; add --oversubscribe")
    limits = [max(host.max_slots or ranks, host.ranks) for host in hosts]
    if ranks > sum(limits):
        raise SpecError(f"{label}={ranks} is more than the {sum(limits)} max_slots of the hosts")
    counts = own
    while sum(counts) < ranks:
        for i, limit in enumerate(limits):
            counts[i] += counts[i] < limit and sum(counts) < ranks
    return counts
