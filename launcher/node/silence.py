"""Silence of a peer, without the time in which it could not have been heard."""

PAUSE_S = 2.0  # between two measurements, due once a second: this process itself stood still


class Silence:
    """Seconds since the last sign of life, without a pause of our own.

    After a pause of the whole machine, the first process to wake finds all peers silent: they get time to
    send something before they are judged. Only one pause is subtracted in one silence, so that a process
    that is always slow still notices lost peers.
    """

    def __init__(self, now_s: float) -> None:
        self.hear(now_s)

    def hear(self, now_s: float) -> None:
        self.heard_s = self._measured_s = now_s
        self._pause_s = 0.0

    def measure(self, now_s: float) -> float:
        since_s, self._measured_s = now_s - self._measured_s, now_s
        if since_s > PAUSE_S and not self._pause_s:
            self._pause_s = since_s
        return now_s - self.heard_s - self._pause_s
