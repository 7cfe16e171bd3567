"""Options from command line and files to a checked `JobSpec`."""
