"""Shared by config files: arguments, the names of models and data, the configs they start from."""
