"""A trained model at work: from pictures to logits, on all devices."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Generator
from typing import Any

import jax
from flax import nnx

from vit_jax.config import default_config
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.transforms import eval_transform
from vit_jax.devices import sharding
from vit_jax.model_file import Preprocessing
from vit_jax.models.base import ImageClassifier
from vit_jax.network import Network

Transform = Callable[[Any], Any]  # encoded file or uint8 [H, W, C] -> uint8 of the model's size


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A model as a function, with its parameters on every device; these share a batch's rows."""

    network: Network
    params: dict

    def round_up(self, batch_size: int) -> int:
        """The next batch size that the devices can share equally."""
        size = self.network.mesh.size
        return -(-batch_size // size) * size


def make_classifier(model: ImageClassifier) -> Classifier:
    """Copies a model that `create_model` or `load_model` returned to all devices."""
    mesh = sharding.build_mesh(default_config().mesh)
    structure, state = nnx.split(model)
    params = jax.device_put(nnx.to_pure_dict(state), sharding.replicated(mesh))
    return Classifier(Network(structure, model.options, preprocessing_of(model), mesh), params)


def make_transform(model: ImageClassifier, max_image_gib: float = MAX_IMAGE_GIB) -> Transform:
    """The model's preprocessing on the host: decodes, crops and resizes; pixels stay uint8.

    Raises ConfigError if the model's channels are not those of a picture, 1 or 3.
    """
    options = model.options
    return eval_transform(
        preprocessing_of(model), options.image_size, options.channels, max_image_gib
    )


def preprocessing_of(model: ImageClassifier) -> Preprocessing:
    """The preprocessing of a loaded model; for one just created, the default."""
    return getattr(model, "preprocessing", Preprocessing())


def class_names_of(model: ImageClassifier) -> tuple[str, ...]:
    """A name for each class of the model: its number, where the model does not say."""
    names = getattr(model, "class_names", ())
    return (*names, *map(str, range(len(names), model.options.num_classes)))


class Stopwatch:
    """Times what is done with batches, but for compiling, which the first one waits for."""

    def __init__(self) -> None:
        self._images, self._start = 0, math.inf

    def time(self, batches: Generator[dict], count: int) -> Generator[dict]:
        """The same batches, of `count` images."""
        self._images += count
        with contextlib.closing(batches):
            for batch in batches:
                yield batch
                self._start = min(self._start, time.perf_counter())

    @property
    def images_per_second(self) -> float:
        """Of all images so far, since the first batch was on its way."""
        return self._images / (time.perf_counter() - self._start)
