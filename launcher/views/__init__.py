"""What a user sees of a job: plain lines, JSON or a live table."""
