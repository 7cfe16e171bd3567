"""Bytes between head and agents: frames, MACs, TCP, and which address reaches which node."""
