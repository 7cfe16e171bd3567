"""A trainer's side of the pservers: connections, calls, updaters."""
