"""Errors that end a command with a message and an exit code, without a stack trace."""

import logging
from typing import ClassVar


class CommandError(Exception):
    """Ends a command; `exit_code` tells launchers and scripts how it ended, `level` the log."""

    exit_code: ClassVar[int] = 1
    level: ClassVar[int] = logging.ERROR


class UserError(CommandError):
    """A mistake in what the user supplied. The message says what, where, and what to do."""

    exit_code = 2


class ConfigError(UserError):
    """A config key, value or combination that cannot work."""


class DataError(UserError):
    """Data that is missing, unreadable, or does not fit the config."""


class WeightsError(UserError):
    """A weight file that cannot be read or does not fit the model."""


class HubError(UserError):
    """Files on the Hub that cannot be fetched or written."""


class CheckpointError(UserError):
    """A workdir that cannot be resumed from or written to."""


class NonFiniteLossError(CommandError):
    """Training diverged: the loss, or its gradient, became infinite or NaN."""

    exit_code = 3


class PreemptedError(CommandError):
    """A signal asked the run to stop; its state is saved, the same command goes on from there."""

    exit_code = 75  # sysexits.h's EX_TEMPFAIL: launchers start the same command again.
    level = logging.WARNING
