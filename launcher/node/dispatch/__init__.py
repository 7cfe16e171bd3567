"""Dispatch of a workspace to nodes: manifest, transfer, staging, moving into place."""
