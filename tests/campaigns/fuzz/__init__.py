"""Mutated files and values, each read as the package reads them: `python -m tests.campaigns.fuzz`."""
