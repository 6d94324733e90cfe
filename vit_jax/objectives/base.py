"""The base of every objective: from a batch to a loss, and all that this needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from vit_jax.errors import ConfigError
from vit_jax.network import Network

Batch = dict[str, jax.Array]  # image uint8 [B, H, W, C], label, index int32 [B], mask bool [B], ...
Auxiliary = dict[str, jax.Array]  # named values of each example, [B] or [B, ...]

FORWARD_FLOPS = 2  # Of a multiply-accumulate;
TRAINING_FLOPS = 6  # with its backward pass, which takes twice as many.


@dataclasses.dataclass(frozen=True)
class Labels:
    """The classes of a run's data.

    Attributes:
      names: of the classes; empty if unknown.
      num_classes: K.
      several: whether an image has any number of them, so that its label is float32 [K].
      weights: of each of the data's classes in the loss; empty: all are 1.
      numeric: whether they are no classes but numbers to predict: a label is float32 [K].
      means: of these numbers over the training images, [K]; empty if unknown.
    """

    names: tuple[str, ...]
    num_classes: int
    several: bool = False
    weights: tuple[float, ...] = ()
    numeric: bool = False
    means: tuple[float, ...] = ()

    def name(self, index: int) -> str:
        """A class's name, or its number where names are unknown."""
        return self.names[index] if self.names else str(index)


class Objective:
    """Turns batches into losses. One subclass, in a file of its own, is a new objective.

    Attributes:
      Options: a frozen dataclass of the keys of `config.objective` that it reads; fields are
        annotated with `vit_jax.kinds`.
      EVALUATORS: those that run where `config.evaluators` is empty, in that key's grammar.
      BEST_METRIC: what the best checkpoint has most of; with "-" before it: least of.
      CLASSIFIES: whether it trains the model's head; else the model has none.
      WEIGHS_CLASSES: whether `loss` heeds `labels.weights`.
      HAS_TEACHER: whether it learns from the model that `config.init_teacher` names.
    """

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

    EVALUATORS: ClassVar[str] = "classification"
    BEST_METRIC: ClassVar[str] = "eval/accuracy"
    CLASSIFIES: ClassVar[bool] = True
    WEIGHS_CLASSES: ClassVar[bool] = False
    HAS_TEACHER: ClassVar[bool] = False

    def __init__(self, options: Any, network: Network, labels: Labels, teacher: str = ""):
        """Allocates nothing.

        Args:
          options: an instance of `Options`.
          network: the model, as a function of its parameters.
          labels: the data's classes.
          teacher: `config.init_teacher`, weights of a model that it learns from; "": none.

        Raises:
          ConfigError: the options do not fit the model or the data.
        """
        if labels.weights and not self.WEIGHS_CLASSES:
            raise ConfigError(
                f"config.data.class_weights: {type(self).__name__} does not weigh classes: leave it "
                "out, or set --config.data.sampling."
            )
        if self.HAS_TEACHER and not teacher:
            raise ConfigError(
                f"{type(self).__name__} needs a teacher: name its weights by --config.init_teacher."
            )
        if teacher and not self.HAS_TEACHER:
            raise ConfigError(
                f"config.init_teacher={teacher}: {type(self).__name__} has no teacher: leave it out, "
                "or set --config.objective.name=distillation."
            )
        self.options, self.network, self.labels = options, network, labels
        self.teacher = teacher

    def init(self, key: jax.Array) -> dict:
        """Parameters of its own, float32: the subtree `objective` of the run's parameters.

        They are initialised, sharded, optimised, averaged and saved as the model's are; a
        classifier that is made of the checkpoint does not have them.
        """
        del key
        return {}

    @property
    def head_bias(self) -> tuple[float, ...]:
        """What is added to the head's bias before training, [K]; empty: nothing."""
        return ()

    def frozen(self) -> dict:
        """Arrays that are neither trained nor saved, such as a teacher's parameters."""
        return {}

    def abstract_frozen(self) -> dict:
        """Their shapes and types, with nothing read or allocated where that is dear."""
        return jax.eval_shape(self.frozen)

    def digest(self) -> str:
        """Of what its frozen arrays were read from: a run goes on with the same only."""
        return ""

    def state(self, params: dict) -> dict:
        """Arrays that `update` changes and checkpoints keep, such as an averaged teacher.

        A pure function of the run's initial parameters.
        """
        del params
        return {}

    def prepare(self, batch: Batch, seed: int, step: jax.Array | int) -> Batch:
        """The whole batch before micro-batches are made of it: mixing, corruption, views.

        Args:
          batch: as the data gives it, each array with a leading axis of B.
          seed: the run's.
          step: int32 [], completed updates. What is random follows from seed and step alone.
        """
        del seed, step
        return batch

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The loss [B] of each example, and named values of each example.

        Args:
          params: the model's, with this objective's own under `objective`.
          frozen: what `frozen` returned, and what `state` and `update` did. Where arrays are split
            over devices, those of blocks, here and in `params`, come whole only within a model's.
          batch: a micro-batch of what `prepare` returned.
          key: of dropout and the like.

        Means of values [B] over the batch are logged as `train/<name>`; of others, [B, ...], they
        go to `update` only.
        """
        raise NotImplementedError

    def training_flops(self) -> int:
        """FLOPs of one image's loss and its gradient: products alone, and none of them twice.

        Plans and `train/mfu` are reckoned by it.
        """
        return TRAINING_FLOPS * self.network.options.macs()

    def follow(self, params: dict, auxiliary: dict) -> dict:
        """The parameters after an update: those that follow the batch and no gradient are moved.

        They are a model's running statistics, if it has any.

        Args:
          params: the new ones.
          auxiliary: means over the batch of the values that `loss` returned.
        """
        return self.network.follow(params, auxiliary)

    def update(self, state: dict, params: dict, auxiliary: dict) -> dict:
        """The next `state`, after an update.

        Args:
          state: the last one.
          params: the new ones.
          auxiliary: means over the batch of the values that `loss` returned.
        """
        del params, auxiliary
        return state

    @property
    def values(self) -> tuple[str, ...]:
        """The names of those values [B] of `loss` that are measured on evaluation data too."""
        return ()

    def pictures(self, params: dict, frozen: dict, batch: Batch) -> jax.Array | None:
        """The input and the result of each example side by side, pixels [B, H, W, C]; None: none."""
        del params, frozen, batch
        return None

    def show(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """A prepared batch for people: pixels [B, H, W, C] in 0 … 255, and what captions say."""
        return batch["image"], batch["label"]

    def captions(self, values: np.ndarray) -> list[list[str]]:
        """The lines under each image, of the second value that `show` returned."""
        return [self._classes_in(value) for value in values]

    def _classes_in(self, label: np.ndarray) -> list[str]:
        """A label's class, or the classes of a target [K], the likeliest first, with their shares."""
        if not np.ndim(label):
            return [self.labels.name(int(label))]
        classes = sorted(np.flatnonzero(label).tolist(), key=lambda index: -label[index])
        names = [self.labels.name(index) for index in classes]
        if len(classes) == 1:
            return names
        return [f"{label[index]:.0%} {name}" for index, name in zip(classes, names, strict=True)]

    @property
    def evaluation_loss(self) -> str:
        """The loss, of `vit_jax.objectives.losses`, that evaluators of classifiers measure."""
        return "softmax"

    def describe(self) -> Sequence[str]:
        """The terms of the loss, in a few words each."""
        return [type(self).__name__]

    def describe_images(self) -> Sequence[str]:
        """A line for each thing that `prepare` does to the images."""
        return []
