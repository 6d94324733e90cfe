"""What config files share: their arguments, the names of models and data, and where they start."""
