"""Services of a node for later shells: a relay to the head, records, files."""
