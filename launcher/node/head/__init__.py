"""The head of a job: decides, asks all nodes, reports events."""
