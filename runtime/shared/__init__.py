"""Shared by launcher and runtime: the environment contract, ports, interfaces, the proof of the secret."""
