"""Backends, which start agents on nodes and give the head a line to each."""
