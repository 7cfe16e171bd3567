"""Sources of a package for each node: chains of large ones, doubling of small ones."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from pslaunch.node.dispatch.routes import LINK_BYTES, PASS_ON_BYTES, Routes

LARGE, SMALL = 64 * LINK_BYTES, PASS_ON_BYTES


class Nodes:
    """Nodes that obey at once; the test fills them."""

    def __init__(self) -> None:
        self.orders: list[Callable[[], None]] = []
        self.sources = Routes(
            lambda node: self.orders.append(lambda: self.sources.note_serving(node, 4000 + node)),
            lambda *fetch: self.orders.append(lambda: self.fetch(*fetch)),
        )
        self.servers: dict[int, int | None] = {}  # None: the head
        self.begun: list[int] = []
        self.filled: set[int] = set()

    def obey(self) -> None:
        while self.orders:
            self.orders.pop(0)()

    def fetch(self, node: int, server: int, port: int) -> None:
        assert port == 4000 + server
        assert server in self.begun  # so there is no circle
        assert server not in [other for node, other in self.servers.items() if node not in self.filled]
        self.begin(node, server)

    def begin(self, node: int, server: int | None) -> None:
        self.servers[node] = server
        self.begun.append(node)

    def want(self, count: int, missing: int) -> None:
        for node in range(count):
            self.want_one(node, missing)
            self.obey()

    def want_one(self, node: int, missing: int) -> None:
        begin = functools.partial(self.begin, node, None)
        self.sources.want(node, missing, lambda: self.orders.append(begin))

    def fill(self, node: int) -> None:
        self.filled.add(node)
        self.sources.note_filled(node)
        self.obey()


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_large_package_goes_down_a_chain(nodes: Nodes) -> None:
    nodes.want(4, LARGE)
    assert nodes.servers == {0: None, 1: 0, 2: 1, 3: 2}


def test_small_package_doubles_in_each_round(nodes: Nodes) -> None:
    nodes.want(8, SMALL)
    rounds = []
    while len(nodes.filled) < 8:
        rounds.append(len(nodes.begun))
        for node in nodes.begun[len(nodes.filled) :]:
            nodes.filled.add(node)
        for node in sorted(nodes.filled):
            nodes.sources.note_filled(node)
            nodes.obey()
    assert rounds == [1, 2, 4, 8]


def test_chain_is_no_longer_than_it_pays(nodes: Nodes) -> None:
    nodes.want(4, 3 * LINK_BYTES)
    assert nodes.servers == {0: None, 1: 0, 2: 1}  # a third link would take as long as all bytes
    nodes.fill(0)
    nodes.fill(1)
    assert nodes.servers == {0: None, 1: 0, 2: 1, 3: 0}  # each serves one at a time


def test_node_that_lost_its_server_takes_from_the_head_and_still_serves(nodes: Nodes) -> None:
    nodes.want(3, LARGE)
    nodes.servers[1] = None
    nodes.sources.take_from_head(1, LARGE // 2)
    nodes.obey()
    assert 1 not in nodes.sources.servers and nodes.sources.servers[2] == 1
    nodes.want_one(3, LARGE)
    nodes.obey()
    assert nodes.servers[3] == 0  # which serves nobody now
    assert 3 not in nodes.sources.wanting


def test_node_that_was_not_asked_is_refused(nodes: Nodes) -> None:
    nodes.want(1, LARGE)
    with pytest.raises(ValueError, match="not asked to serve"):
        nodes.sources.note_serving(0, 4000)
    nodes.want_one(1, LARGE)
    nodes.obey()
    with pytest.raises(ValueError, match="not asked to serve"):
        nodes.sources.note_serving(0, 4000)  # a second time


@pytest.mark.parametrize("seed", range(20))
def test_every_node_gets_it_in_any_order_of_events(nodes: Nodes, seed: int) -> None:
    dice = random.Random(seed)
    count = dice.randrange(1, 12)
    asking = list(range(count))
    while len(nodes.filled) < count:
        lost = [n for n in nodes.begun if n not in nodes.filled and nodes.servers[n] is not None]
        if asking and dice.random() < 0.5:
            nodes.want_one(asking.pop(), dice.choice([SMALL, 3 * LINK_BYTES, LARGE]))
            nodes.obey()
        elif lost and dice.random() < 0.2:
            node = dice.choice(lost)
            nodes.servers[node] = None
            nodes.sources.take_from_head(node, SMALL)
            nodes.obey()
        elif receiving := [n for n in nodes.begun if n not in nodes.filled]:
            nodes.fill(dice.choice(receiving))
    assert sorted(nodes.begun) == list(range(count))
