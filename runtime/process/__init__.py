"""A process of a job: its settings, its log, its progress."""
