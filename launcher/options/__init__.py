"""From the words of a user, in all their places, to a checked `JobSpec`."""
