"""Architectures: one file a family, named in the registry."""
