"""The head of a job: decides, asks all nodes, tells what happens."""
