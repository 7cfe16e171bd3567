"""How long a peer has been silent, in time in which it could have been heard."""

PAUSE_S = 2.0  # between two measurements, which come once a second, it is this process that stood still


class Silence:
    """Seconds since the last sign of life, without a pause of our own.

    Where a whole machine stands still for a while, whoever wakes first finds everybody silent: all get the
    time to say something before they are judged. One pause is left out in one silence, so that a process
    that is always slow still notices who is gone.
    """

    def __init__(self, now_s: float) -> None:
        self.heard(now_s)

    def heard(self, now_s: float) -> None:
        """It has given a sign of life."""
        self.heard_s = self._measured_s = now_s
        self._pause_s = 0.0

    def measure(self, now_s: float) -> float:
        """Seconds of silence by now."""
        since_s, self._measured_s = now_s - self._measured_s, now_s
        if since_s > PAUSE_S and not self._pause_s:
            self._pause_s = since_s
        return now_s - self.heard_s - self._pause_s
