"""SSH access to nodes as with `ssh host`: settings, host keys, connections, channels, agent start."""
