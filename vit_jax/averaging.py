"""Answers averaged at test time: over crops and mirror images of a picture, and over models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.transforms import eval_transform
from vit_jax.errors import ConfigError
from vit_jax.inference import Transform, make_classifier, preprocessing_of
from vit_jax.models.base import LOGITS, PRE_LOGITS, ImageClassifier
from vit_jax.network import Network

PROBABILITIES = "probabilities"
AVERAGES = (PROBABILITIES, LOGITS)
NUM_CROPS = (1, 5)  # The middle; and the four corners, as in Krizhevsky et al. (NeurIPS 2012).
MARGIN = 256 / 224  # Of an image's side before the crops are cut, to theirs.


@dataclasses.dataclass(frozen=True)
class Views:
    """The parts of a picture that a model sees; with both, the ten of Krizhevsky et al.

    Attributes:
      crops: one of `NUM_CROPS`.
      flips: whether each is seen mirrored, too.
    """

    crops: int = 1
    flips: bool = False

    def of(self, images: jax.Array, size: tuple[int, int]) -> Iterator[jax.Array]:
        """The views [B, *size, C] of images [B, H, W, C]."""
        down, right = images.shape[1] - size[0], images.shape[2] - size[1]
        corners = [(0, 0), (0, right), (down, 0), (down, right)]
        for top, left in [(down // 2, right // 2), *corners][: self.crops]:
            view = images[:, top : top + size[0], left : left + size[1]]
            yield view
            if self.flips:
                yield view[:, :, ::-1]


@dataclasses.dataclass(frozen=True)
class AveragedNetwork:
    """Several networks on several views, as one.

    Attributes:
      networks: of the same classes. Parameters are those of the only one, or a dictionary of each
        one's by number: {"0": ..., "1": ...}.
      views: that each sees.
      average: one of `AVERAGES`: what is averaged; logits of averaged probabilities say these.
      loss: of `vit_jax.objectives.losses`, which says how logits become probabilities.
    """

    networks: tuple[Network, ...]
    views: Views
    average: str
    loss: str

    @property
    def mesh(self) -> Mesh:
        """Of all."""
        return self.networks[0].mesh

    def __call__(self, params: dict, images: jax.Array) -> jax.Array:
        """Pixels 0 … 255 [B, H, W, C] -> logits [B, K] float32."""
        return self.outputs(params, images)[LOGITS]

    def outputs(self, params: dict, images: jax.Array) -> dict[str, Any]:
        """Averaged logits [B, K], and features: of each network's views the mean, side by side."""
        logits, features = [], []
        several = len(self.networks) > 1
        for number, network in enumerate(self.networks):
            own = params[str(number)] if several else params
            views = self.views.of(images, network.options.image_size)
            found = [network.outputs(own, view) for view in views]
            logits += [one[LOGITS] for one in found]
            features.append(jnp.stack([one[PRE_LOGITS] for one in found]).mean(0))
        averaged = average_logits(jnp.stack(logits), self.average, self.loss)
        return {LOGITS: averaged, PRE_LOGITS: jnp.concatenate(features, axis=-1)}


def average_logits(logits: jax.Array, average: str, loss: str) -> jax.Array:
    """Logits [N, B, K] -> [B, K]: their mean, or those of the mean of their probabilities."""
    if average == LOGITS:
        return logits.mean(0)
    if loss == "softmax":
        return _log_mean(jax.nn.log_softmax(logits))
    return _log_mean(jax.nn.log_sigmoid(logits)) - _log_mean(jax.nn.log_sigmoid(-logits))


def _log_mean(logarithms: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(logarithms, axis=0) - jnp.log(len(logarithms))


@dataclasses.dataclass(frozen=True)
class Averaged:
    """Models at work as one.

    Attributes:
      network, params: as a function of its parameters.
      transform: (encoded file or uint8 [H, W, C]) -> [*image_size, C].
      image_size: (height, width), larger than the model's where corners are cut.
    """

    network: Any  # A Network, or an AveragedNetwork, which evaluators call alike.
    params: dict
    transform: Transform
    image_size: tuple[int, int]

    def round_up(self, batch_size: int) -> int:
        """The next batch size that the devices can share equally."""
        size = self.network.mesh.size
        return -(-batch_size // size) * size


def average(
    models: Sequence[ImageClassifier],
    views: Views,
    how: str,
    loss: str,
    max_image_gib: float = MAX_IMAGE_GIB,
) -> Averaged:
    """Models as one, on all devices.

    Args:
      models: that `load_model` returned.
      views: that each sees.
      how: one of `AVERAGES`.
      loss: that they were trained with.
      max_image_gib: of one decoded picture.

    Raises ConfigError if they cannot be one: their classes, sizes or preprocessing differ.
    """
    first = models[0]
    for number, model in enumerate(models[1:], 2):
        check_same(first, model, f"model {number} of the ensemble")
    preprocessing, size = preprocessing_of(first), first.options.image_size
    if views.crops > 1 and preprocessing.crop == "center":
        if preprocessing.resize <= max(size):
            raise ConfigError(
                f"{views.crops} crops of {size[0]}×{size[1]} pixels are cut out of an image whose "
                f"smaller side has {preprocessing.resize}: set --resize to more, or --crops=1."
            )
        size = (preprocessing.resize, preprocessing.resize)
    elif views.crops > 1:
        size = (round(size[0] * MARGIN), round(size[1] * MARGIN))
    transform = eval_transform(preprocessing, size, first.options.channels, max_image_gib)
    classifiers = [make_classifier(model) for model in models]
    network: Any = classifiers[0].network
    params = classifiers[0].params
    if len(models) > 1:
        params = {str(number): one.params for number, one in enumerate(classifiers)}
    if len(models) > 1 or views != Views():
        networks = tuple(one.network for one in classifiers)
        network = AveragedNetwork(networks, views, how, loss)
    return Averaged(network, params, transform, size)


def check_same(first: ImageClassifier, other: ImageClassifier, what: str) -> None:
    """Raises ConfigError unless two models have the same classes, in order, and take equal images."""
    for name, (a, b) in {
        "classes": (_classes(first), _classes(other)),
        "image size": (first.options.image_size, other.options.image_size),
        "channels": (first.options.channels, other.options.channels),
        "preprocessing": (_host_preprocessing(first), _host_preprocessing(other)),
    }.items():
        if a != b:
            raise ConfigError(
                f"{what} has another {name} than the first: models that are averaged see the same "
                "images and know the same classes, in the same order; --option=image_size sets a size "
                "for all."
            )


def _classes(model: ImageClassifier) -> tuple:
    return model.options.num_classes, tuple(getattr(model, "class_names", ()))


def _host_preprocessing(model: ImageClassifier) -> Any:
    """What is done before the pixels are normalised, which each network does for itself."""
    return dataclasses.replace(preprocessing_of(model), mean=(0.5,), std=(0.5,))
