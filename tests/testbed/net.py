"""Networks of hosts: a bridge, and a subnet that no other set of hosts on this machine has."""

from __future__ import annotations

import ipaddress
import random
import socket
import subprocess
from dataclasses import dataclass

from testbed.sweep import ip

UNUSED = 253  # of no host
HERE = 254  # the last part of this machine's own address, in a network that it can reach


@dataclass(frozen=True)
class Network:
    """A bridge of this name; addresses are PREFIX.1 and PREFIX6::1 and so on."""

    bridge: str
    prefix: str
    prefix6: str
    claim: socket.socket  # whoever has it open has the subnet

    def address(self, number: int) -> str:
        return f"{self.prefix}.{number}"

    def address6(self, number: int) -> str:
        return f"{self.prefix6}::{number:x}"

    def mac(self, number: int) -> str:
        """The same after each boot, as of a real machine: others remember it."""
        return f"02:00:00:00:00:{number:02x}"

    @property
    def subnet(self) -> str:
        return f"{self.prefix}.0/24"


def claim(bridge: str) -> Network:
    """Choose a subnet; the bridge is not made yet."""
    taken = _routed()
    numbers = list(range(0x4000))
    random.shuffle(numbers)
    for number in numbers:
        high, low = 64 + number // 256, number % 256
        subnet = ipaddress.IPv4Network(f"10.{high}.{low}.0/24")
        if any(subnet.overlaps(other) for other in taken):
            continue
        owner = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            owner.bind(f"\0pslaunch-testbed-{subnet}")
        except OSError:
            owner.close()
            continue
        return Network(bridge, f"10.{high}.{low}", f"fd70:{high:x}:{low:x}", owner)
    raise RuntimeError("no subnet of 10.64.0.0/10 is free")


def _routed() -> list[ipaddress.IPv4Network]:
    """Networks that this machine has routes to already, but for the default route."""
    shown = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
    words = [line.split()[0] for line in shown.splitlines()]
    return [ipaddress.IPv4Network(word) for word in words if word[0].isdigit()]


def make(network: Network, *, reachable: bool) -> None:
    """Make the bridge; a network that this machine can't reach has none of its addresses."""
    bridge = network.bridge
    own = [f"addr add {network.address(HERE)}/24 dev {bridge}"]
    own += [f"addr add {network.address6(HERE)}/64 dev {bridge} nodad"]
    ip(
        # Without snooping: else hosts sometimes do not find each other by IPv6 after one of them has booted.
        f"link add {bridge} type bridge mcast_snooping 0",
        *(own if reachable else [f"link set {bridge} addrgenmode none"]),
        f"link set {bridge} up",
    )
