"""What a later shell starts on a node: a way to the head, records, files."""
