"""A job followed from the launcher: the way to its head, the head over a line, the view of its events."""
