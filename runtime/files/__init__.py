"""Files of parameters: one writer and one reader of sets, and exports (docs/checkpoint.md)."""
