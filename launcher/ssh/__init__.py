"""Reaching nodes as `ssh host` does: settings, host keys, connections, channels, the boot of an agent."""
