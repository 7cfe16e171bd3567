"""Bytes between head and agents: frames, MACs, TCP, and addresses that reach nodes."""
