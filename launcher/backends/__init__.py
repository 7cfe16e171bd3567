"""Backends: each puts agents on nodes and gives the head a line to each of them, nothing else."""
