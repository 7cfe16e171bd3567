"""What travels to nodes: the package, our own code, a wheel."""
