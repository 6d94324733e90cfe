"""Errors that a user can mend: `main` prints their message alone and exits with code 2."""


class UserError(Exception):
    """A mistake in what the user supplied. The message says what, where, and what to do."""


class ConfigError(UserError):
    """A config key, value or combination that cannot work."""


class DataError(UserError):
    """Data that is missing, unreadable, or does not fit the config."""


class WeightsError(UserError):
    """A weight file that cannot be read or does not fit the model."""


class CheckpointError(UserError):
    """A workdir that cannot be resumed from or written to."""
