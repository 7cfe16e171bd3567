"""Files that a pserver takes from the other pservers of its job: copies of their parts, and what it lacks.

It dials them as trainer 0, which has asked it to, and uses threads beside the main one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ..client.control import take_file
from ..client.dialer import ATTEMPT_S, ClientError, Dialer, list_shards
from ..client.handshake import Hello
from ..files.manifest import has_file
from ..files.objects import SetError
from ..files.saving import Entry, Header
from .pserver_options import Options

SAME = "num_gradient_servers", "ports_num", "ports_num_for_sparse", "epoch", "pservers"  # in header and hello


def list_holders(hosts: Sequence[str], owner: int, copies: int) -> list[int]:
    """Return the pservers that keep copies of a pserver's parts: the next ones, each on a node of its own."""
    n = len(hosts)
    order = [hosts[(owner + k) % n] for k in range(n)]
    ranked = sorted(range(1, n), key=lambda k: order[:k].count(order[k]))
    return [(owner + k) % n for k in ranked[: copies - 1]]


class Others:
    """The other pservers of a job, by their addresses in order of ranks."""

    def __init__(self, options: Options, header: Header, endpoints: Sequence[tuple[str, int]]) -> None:
        """`header` is of this pserver."""
        n = len(endpoints)
        self._order = [(header.pserver + k) % n for k in range(1, n)]
        same = {name: getattr(header, name) for name in SAME}
        hello = Hello(trainer_id=0, incarnation=header.run, pserver=0, shard=0, **same)
        shards = list_shards(endpoints, header.ports_num, header.ports_num_for_sparse)
        self._dialer = Dialer(shards, hello, options.secret, ATTEMPT_S, lambda *_: None, lambda _: None)

    def fetch(self, folder: str, path: Path) -> None:
        """Write a file that another pserver has in `folder`; none if no other has it. Raises OSError."""
        for other in self._order:
            try:
                with closing(self._dialer.open_control(other)) as control:
                    take_file(control, folder, path)
                return
            except FileNotFoundError:
                pass
            except (OSError, ClientError) as e:
                raise OSError(f"{path}: could not be taken from pserver {other}: {e}") from None

    def keep(self, folder: str, path: Path, entry: Entry) -> None:
        """Have a copy of another pserver's part on the disk, unless the folder is shared.

        Raises OSError, and SetError if what came is not that part.
        """
        if not has_file(path, entry):
            self.fetch(folder, path)
            if not has_file(path, entry):
                raise SetError(f"{path} was not there, or damaged on its way from its pserver")
