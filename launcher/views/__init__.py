"""Views of a job for the user: plain lines, JSON or a live table."""
