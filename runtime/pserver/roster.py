"""The job's trainers as one pserver knows them: connected, gone or finished. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Trainer:
    incarnation: int
    addr: str
    connected: set[int] = field(default_factory=set)  # ports it is connected to
    ever: set[int] = field(default_factory=set)  # ports it has ever connected to
    finished: set[int] = field(default_factory=set)  # ports where it reported finished
    gone_since_s: float | None = None  # when a port lost it; None once it is back


@dataclass(slots=True)
class Roster:
    """All trainers of a pserver with `ports` ports."""

    expected: int
    ports: int
    trainer_timeout_s: float
    trainers: dict[int, Trainer] = field(default_factory=dict)

    def admit(self, trainer: int, incarnation: int, addr: str) -> str:
        """Register this process as the trainer; return "", or why it is refused, naming both addresses."""
        known = self.trainers.setdefault(trainer, Trainer(incarnation, addr))
        if known.incarnation != incarnation:
            return (
                f"two processes have the trainer id {trainer}: one at {known.addr}, another at {addr} "
                f"(trainer_id must differ)"
            )
        return ""

    def note_connected(self, trainer: int, port: int) -> None:
        t = self.trainers[trainer]
        t.connected.add(port)
        t.ever.add(port)
        if t.connected >= t.ever - t.finished:
            t.gone_since_s = None

    def note_lost(self, trainer: int, port: int, now_s: float) -> bool:
        """Record a lost connection; return True unless the trainer had finished at this port."""
        t = self.trainers[trainer]
        t.connected.discard(port)
        if port in t.finished:
            return False
        if t.gone_since_s is None:
            t.gone_since_s = now_s
        return True

    def note_finished(self, trainer: int, port: int) -> None:
        self.trainers[trainer].finished.add(port)

    @property
    def present(self) -> int:
        return sum(len(t.connected) == self.ports for t in self.trainers.values())

    @property
    def all_finished(self) -> bool:
        done = sum(len(t.finished) == self.ports for t in self.trainers.values())
        return done == self.expected

    def find_failure(self, now_s: float) -> str:
        """Return the reason to end with an error, or ""."""
        for i, t in sorted(self.trainers.items()):
            if len(t.finished) == self.ports or t.gone_since_s is None:
                continue
            if now_s - t.gone_since_s >= self.trainer_timeout_s:
                return (
                    f"trainer {i} at {t.addr} is gone: it was connected, did not finish and did not come "
                    f"back for {self.trainer_timeout_s:g} s (option --trainer_timeout)"
                )
        return ""
