"""Who of the job's trainers is there, gone, finished: what a pserver knows of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Trainer:
    """One trainer as this pserver knows it."""

    incarnation: int
    addr: str
    connected: set[int] = field(default_factory=set)  # ports it is connected to
    ever: set[int] = field(default_factory=set)  # ports it was ever connected to
    finished: set[int] = field(default_factory=set)  # ports where it said finished
    gone_since_s: float | None = None  # a port lost it, and it did not come back yet


@dataclass(slots=True)
class Roster:
    """All trainers of one pserver with `ports` ports."""

    expected: int
    ports: int
    trainer_timeout_s: float
    trainers: dict[int, Trainer] = field(default_factory=dict)

    def admit(self, trainer: int, incarnation: int, addr: str) -> str:
        """Note that this process is the trainer; or why it can't be, naming both addresses."""
        known = self.trainers.setdefault(trainer, Trainer(incarnation, addr))
        if known.incarnation != incarnation:
            return (
                f"two processes say that they are trainer {trainer}: one at {known.addr}, another at {addr} "
                f"(trainer_id must differ)"
            )
        known.addr = addr
        return ""

    def note_connected(self, trainer: int, port: int) -> None:
        """A port has its connection."""
        t = self.trainers[trainer]
        t.connected.add(port)
        t.ever.add(port)
        if t.connected >= t.ever - t.finished:
            t.gone_since_s = None

    def note_lost(self, trainer: int, port: int, now_s: float) -> bool:
        """A port lost the connection; whether that matters: the trainer had not finished there."""
        t = self.trainers[trainer]
        t.connected.discard(port)
        if port in t.finished:
            return False
        if t.gone_since_s is None:
            t.gone_since_s = now_s
        return True

    def note_finished(self, trainer: int, port: int) -> None:
        """The trainer said there that it is finished."""
        self.trainers[trainer].finished.add(port)

    @property
    def present(self) -> int:
        """Trainers that are connected to every port."""
        return sum(len(t.connected) == self.ports for t in self.trainers.values())

    @property
    def all_finished(self) -> bool:
        """Every expected trainer said so at every port."""
        done = sum(len(t.finished) == self.ports for t in self.trainers.values())
        return done == self.expected

    def find_failure(self, now_s: float) -> str:
        """Why the pserver must end without success; "" while it may go on."""
        for i, t in sorted(self.trainers.items()):
            if len(t.finished) == self.ports or t.gone_since_s is None:
                continue
            if now_s - t.gone_since_s >= self.trainer_timeout_s:
                return (
                    f"trainer {i} at {t.addr} is gone: it was connected, did not finish and did not come "
                    f"back for {self.trainer_timeout_s:g} s (option --trainer_timeout)"
                )
        return ""
