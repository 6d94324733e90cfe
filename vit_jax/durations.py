"""The lengths of a run and of its parts: given in one of several units, used in updates."""

import dataclasses

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError

# The units of a duration. One is given; `total_steps` wins over the others.
UNITS = ("steps", "epochs", "examples")
DURATIONS = ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")


@dataclasses.dataclass(frozen=True)
class Durations:
    """A run's durations in updates; 0 for what is not asked for."""

    total: int
    warmup: int
    cooldown: int
    eval_every: int
    checkpoint_every: int


def durations(config: ConfigDict, num_train_examples: int) -> Durations:
    """All durations in updates, rounded down, but at least 1 where given.

    Raises ConfigError if the run has no length.
    """

    def steps(duration: str) -> int:
        if given := config[f"{duration}_steps"]:
            return given
        epochs, examples = config[f"{duration}_epochs"], config[f"{duration}_examples"]
        examples = round(epochs * num_train_examples) if epochs else examples
        return max(1, examples // config.batch_size) if epochs or examples else 0

    resolved = Durations(**{duration: steps(duration) for duration in DURATIONS})
    if not resolved.total:
        raise ConfigError("config.total_steps, total_epochs and total_examples are all 0: set one.")
    return resolved
