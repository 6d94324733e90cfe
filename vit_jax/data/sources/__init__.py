"""Sources of examples: random access to one split of a dataset."""
