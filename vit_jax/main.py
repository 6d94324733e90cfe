"""The command that trains: flags, config, and what it exits with.

    python -m vit_jax.main --config=configs/vit.py:b16 --workdir=DIR [--config.KEY=VALUE ...]

Exit codes: 0 done; 2 bad config, data or weights; 3 non-finite loss; 75 stopped by a signal, start
the same command again.
"""

import logging
import os
import re
import sys

import jax
from absl import flags
from ml_collections import ConfigDict, config_flags

from vit_jax import train
from vit_jax.errors import ConfigError, UserError
from vit_jax.logging import setup_logging
from vit_jax.preemption import EXIT_CODE as PREEMPTED_EXIT_CODE
from vit_jax.preemption import PreemptedError
from vit_jax.step_log import NonFiniteLossError

USER_ERROR_EXIT_CODE = 2
NON_FINITE_LOSS_EXIT_CODE = 3

logger = logging.getLogger("vit_jax")

_CONFIG = config_flags.DEFINE_config_file("config", None, "The run: FILE or FILE:ARGUMENTS.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where the run's files go, and resume from.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Check and print the run, then stop.")


def parse_flags(arguments: list[str]) -> ConfigDict:
    """Parses the command line; raises ConfigError for anything that it does not understand."""
    try:
        rest = flags.FLAGS(arguments)[1:]
    except flags.Error as error:
        first, *_, last = f"{error}\n".split("\n", 1)[0], *str(error).strip().split("\n")
        raise ConfigError(first if first == last else f"{first} {last}") from error
    except (
        AttributeError,
        KeyError,
    ) as error:  # An unknown key, in a config file or as --config.KEY.
        raise ConfigError(unknown_key_message(str(error))) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--config: {error}") from error
    if rest:
        raise ConfigError(f"Unexpected argument {rest[0]!r}: flags start with --.")
    if _CONFIG.value is None:
        raise ConfigError("Name a config: --config=configs/digits.py.")
    if not isinstance(_CONFIG.value, ConfigDict):  # What stands in for a file that is not there.
        raise ConfigError(f"--config={flags.FLAGS['config'].config_filename}: no such file.")
    if _WORKDIR.value is None and not _DRY_RUN.value:
        raise ConfigError("Name a directory for the run's files: --workdir=DIR.")
    return _CONFIG.value


def unknown_key_message(text: str) -> str:
    """The key and the nearest known one from `ml_collections`' message, which lists them all."""
    key = re.search(r"[\"'](\w+)\\?[\"']", text)
    near = re.search(r'Did you mean "(\w+)"', text)
    if not key:
        return f"--config: {text}"
    hint = f"did you mean {near.group(1)!r}" if near else "vit_jax/config.py has all of them"
    return f"config has no key {key.group(1)!r}; {hint}."


def enable_compilation_cache(workdir: str) -> None:
    """Keeps compiled programs in the workdir, unless JAX is told another place."""
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", os.path.join(workdir, "compilation_cache"))


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    setup_logging()
    try:
        config = parse_flags(arguments)
        if not _DRY_RUN.value:
            enable_compilation_cache(_WORKDIR.value)
        results = train.run(config, _WORKDIR.value, dry_run=_DRY_RUN.value)
    except UserError as error:
        logger.error("%s", error)
        return USER_ERROR_EXIT_CODE
    except NonFiniteLossError as error:
        logger.error("%s", error)
        return NON_FINITE_LOSS_EXIT_CODE
    except PreemptedError as error:
        logger.warning("%s Start the same command again to go on.", error)
        return PREEMPTED_EXIT_CODE
    if results:
        accuracy = results["eval/accuracy"]
        logger.info("Done: accuracy %.2f%%. Everything is in %s.", 100 * accuracy, _WORKDIR.value)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
