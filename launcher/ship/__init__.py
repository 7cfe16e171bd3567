"""Data for nodes: the package, the code of pslaunch, a wheel."""
