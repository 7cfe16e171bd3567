"""A workspace goes to nodes: manifest, pieces, staging, into place."""
