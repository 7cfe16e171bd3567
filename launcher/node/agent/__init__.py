"""Keeper and agent of a node: prepare it, start, watch and end its programs."""
