"""How long a peer has been silent, by the time in which we could have heard it."""

MOST_S = 1.5  # that one look can add; there is one a second


class Silence:
    """Grows with each look by what has passed since the last one, but not by a pause of our own.

    Where a whole machine stands still for a while, whoever wakes first finds everybody silent: a pause
    counts as one look that came late, and all get the time to say something before they are judged.
    """

    def __init__(self, now_s: float) -> None:
        self.heard(now_s)

    def heard(self, now_s: float) -> None:
        """It has given a sign of life."""
        self._silent_s, self._looked_s, self.heard_s = 0.0, now_s, now_s

    def look(self, now_s: float) -> float:
        """Seconds of silence by now."""
        self._silent_s += min(now_s - self._looked_s, MOST_S)
        self._looked_s = now_s
        return self._silent_s
