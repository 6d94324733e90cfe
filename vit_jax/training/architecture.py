"""The architecture of a run whose config leaves it open: that of the weights which it starts from."""

import dataclasses
import logging
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import DEFAULT_MODEL
from vit_jax.errors import ConfigError
from vit_jax.hub import NotCachedError, is_reference
from vit_jax.model_file import ModelFile
from vit_jax.models import registry
from vit_jax.weights.by_name import local_path
from vit_jax.weights.loading import HINTS, read_description

logger = logging.getLogger(__name__)

# Options that do not make the function, but how it is trained and computed, or its head; the
# representation layer goes with the head, as in fine-tuning.
OF_THE_RUN = (
    *("num_classes", "representation_size", "head_bias", "head_norm"),
    *("position_std", "kernel_std"),
    *("dropout_rate", "attention_dropout_rate", "dropout_bits", "patch_dropout_rate"),
    *("stochastic_depth_rate", "stochastic_depth_schedule"),
    *("dtype", "matmul_precision", "attention", "remat", "scan_unroll"),
)


def with_architecture(config: ConfigDict, *, cached_only: bool = False) -> ConfigDict:
    """The config with its model named, by our name, and its image size.

    Without `config.model.name`, they are those of `config.init`, with every other option of its
    architecture that the config does not set; without that too, ViT-B/16's.

    Args:
      config: valid.
      cached_only: ask nothing of the network; a teacher on the Hub is then the file that is here.

    Raises:
      WeightsError, CheckpointError, HubError: `config.init` cannot be read.
      ConfigError: what it or `config.init_teacher` names is not here, and the network is not asked.
    """
    config = config.copy_and_resolve_references()
    model = config.model
    if cached_only and is_reference(config.init_teacher):
        config.init_teacher = cached_teacher(config.init_teacher)
    if model.name is None and config.init:
        for option, value in options_of(describe_init(config, cached_only)).items():
            if model.get(option) is None:
                model[option] = value
        logger.info("config.model is that of config.init=%s: %s.", config.init, model.name)
    size = registry.model_options(model.name or DEFAULT_MODEL).image_size
    model.name = registry.our_name(model.name or DEFAULT_MODEL)
    if model.image_size is None:
        model.image_size = size[0] if size[0] == size[1] else size
    return config


def cached_teacher(reference: str) -> str:
    """The file or folder of a teacher on the Hub that has been fetched."""
    try:
        return local_path(reference, cached_only=True)
    except NotCachedError as error:
        raise ConfigError(
            f"the teacher that config.init_teacher names is not here: {error} Load it once with "
            "vit_jax.load_model."
        ) from error


def describe_init(config: ConfigDict, cached_only: bool) -> ModelFile:
    """The description of the model in `config.init`."""
    known = {key: config.model[key] for key in HINTS if config.model[key] is not None}
    grid = config.init_source_grid or None
    try:
        return read_description(config.init, known, grid, cached_only=cached_only)
    except NotCachedError as error:
        raise ConfigError(
            f"config.model.name is not set, and the model that config.init names is not here: {error} "
            "Set config.model.name, or load the weights once with vit_jax.load_model."
        ) from error


def options_of(description: ModelFile) -> dict[str, Any]:
    """The name and the options of an architecture that are not the name's own."""
    own = dataclasses.asdict(registry.model_options(description.name))
    options = {
        option: value
        for option, value in description.options.items()
        if option not in OF_THE_RUN and value != own[option]
    }
    return {"name": description.name, **options}
