"""Distillation: a student learns what a frozen teacher says, with or without labels.

    soft  (1 - w) · CE(student, labels) + w · T² · KL(teacher / T ‖ student / T)
    hard  (1 - w) · CE(student, labels) + w · CE(student, the teacher's best class)

DeiT (arXiv 2012.12877) has both, and a student with a distillation token: its class token's head
learns labels, its distillation token's the teacher. "Patient and consistent" (arXiv 2106.05237) is
soft with w = 1: no labels, and student and teacher see the very same crops and mixtures.

The teacher is any model that loads, `config.init_teacher`. It sees the student's images at its own
size and with its own mean and deviation, never with dropout.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.errors import ConfigError, UserError
from vit_jax.kinds import Fraction, Positive, Share, one_of
from vit_jax.models.vit import VisionTransformer
from vit_jax.network import Network
from vit_jax.objectives import mixing
from vit_jax.objectives.base import FORWARD_FLOPS, Auxiliary, Batch, Labels, Objective
from vit_jax.objectives.losses import make_targets, softmax_cross_entropy
from vit_jax.parameters import named_leaves
from vit_jax.weights.loading import load_model

logger = logging.getLogger(__name__)

SOFT, HARD = "soft", "hard"
TEACHER = "teacher"


class Distillation(Objective):
    """The labels' loss and the teacher's, weighted."""

    HAS_TEACHER: ClassVar[bool] = True

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

        kind: one_of(SOFT, HARD) = SOFT  # hard: the teacher's best class is a label.
        teacher_weight: Share = 1.0  # The labels have the rest.
        temperature: Positive = 1.0  # Of both, in soft distillation.
        teacher_dtype: one_of("float32", "bfloat16") = "float32"  # It computes in.
        label_smoothing: Fraction = 0.0  # Of the labels.
        mixing: mixing.Mixing = mixing.Mixing()

    def __init__(self, options: Options, network: Network, labels: Labels, teacher: str = ""):
        super().__init__(options, network, labels, teacher)
        if labels.several or labels.numeric:
            has, name = (
                ("numbers", "regression")
                if labels.numeric
                else ("images with several", "classification")
            )
            raise ConfigError(
                f"config.objective.name=distillation expects one class an image, and the data has {has}: "
                f"set --config.objective.name={name}, and leave out config.init_teacher."
            )
        self._warn_of_a_head_without_a_loss()
        model = _load_teacher(teacher, options.teacher_dtype)
        structure, params = nnx.split(model)
        self._order = _order_of_classes(model, labels, teacher)
        self._teacher = Network(structure, model.options, model.preprocessing, network.mesh)
        # In the host's memory: the devices have them once, split as the student's are.
        self._params = jax.device_get(nnx.to_pure_dict(params))
        if model.options.channels != network.options.channels:
            raise ConfigError(
                f"config.init_teacher={teacher} sees {model.options.channels} channels, and the "
                f"student {network.options.channels}: they see the same images."
            )
        self._encode = functools.partial(make_targets, num_classes=labels.num_classes)

    def _warn_of_a_head_without_a_loss(self) -> None:
        weight = self.options.teacher_weight
        if getattr(self.network.options, "distillation_token", False) and weight in (0, 1):
            logger.warning(
                "config.objective.teacher_weight=%g and model.distillation_token: the %s token's head "
                "learns from nothing, and half of the logits are its own.",
                weight,
                "class" if weight else "distillation",
            )

    def frozen(self) -> dict:
        """The teacher's parameters."""
        return {TEACHER: self._params}

    def digest(self) -> str:
        """Of the teacher's parameters."""
        sha = hashlib.sha256()
        for name, leaf in sorted(named_leaves(self._params)):
            sha.update(f"{name} {leaf.shape} {leaf.dtype}".encode())
            sha.update(np.ascontiguousarray(leaf).tobytes())
        return sha.hexdigest()

    def prepare(self, batch: Batch, seed: int, step: jax.Array | int) -> Batch:
        """Finds each row's partner in the whole batch."""
        return mixing.pair(batch, step, seed, self.options.mixing)

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The weighted loss, its two parts, and how often both find the same class best."""
        options, images = self.options, mixing.mixed_images(batch)
        encode = functools.partial(self._encode, smoothing=options.label_smoothing)
        taught = self._teach(frozen[TEACHER], images)
        for_labels, for_teacher = self._logits(params, images, key)
        of_labels = softmax_cross_entropy(for_labels, mixing.mixed_targets(batch, encode))
        if options.kind == HARD:
            best = jax.nn.one_hot(taught.argmax(axis=-1), taught.shape[-1])
            of_teacher = softmax_cross_entropy(for_teacher, best)
        else:
            of_teacher = divergence(taught, for_teacher, options.temperature)
        weight = options.teacher_weight
        agreement = jnp.float32(taught.argmax(axis=-1) == for_teacher.argmax(axis=-1))
        values = {"label_loss": of_labels, "teacher_loss": of_teacher, "agreement": agreement}
        return (1 - weight) * of_labels + weight * of_teacher, values

    @property
    def values(self) -> tuple[str, ...]:
        """The parts of the loss, and the agreement."""
        return ("label_loss", "teacher_loss", "agreement")

    def training_flops(self) -> int:
        """Those of the student, and of the teacher's forward pass."""
        return super().training_flops() + FORWARD_FLOPS * self._teacher.options.macs()

    def show(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The mixed images, and their targets [B, K] before smoothing."""
        return mixing.mixed_images(batch), mixing.mixed_targets(batch, self._encode)

    def describe(self) -> Sequence[str]:
        """The kind, the teacher and its weight."""
        options, size = self.options, self._teacher.options.image_size
        heat = f" at temperature {options.temperature}" if options.kind == SOFT else ""
        return [
            f"{options.kind}{heat}, {options.teacher_weight:.0%} from {self.teacher}",
            f"which sees {size[0]}x{size[1]} px in {options.teacher_dtype}",
        ]

    def describe_images(self) -> Sequence[str]:
        """A line for each kind of mixing."""
        return mixing.describe(self.options.mixing)

    def _teach(self, params: dict, images: jax.Array) -> jax.Array:
        """The teacher's logits [B, K] float32, in the order of the data's classes."""
        size = (len(images), *self._teacher.options.image_size, images.shape[-1])
        if images.shape != size:
            images = jax.image.resize(images.astype(jnp.float32), size, "linear")
        logits = self._teacher(params, images)
        return logits if self._order is None else logits[:, self._order]

    def _logits(
        self, params: dict, images: jax.Array, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """The student's logits [B, K] for labels and for the teacher; one head gives both."""
        outputs = self.network.outputs(params, images, key)
        model = self.network.bind(params)
        if not (isinstance(model, VisionTransformer) and model.options.distillation_token):
            return outputs["logits"], outputs["logits"]
        apart = model.classify_apart(outputs["pre_logits"])
        return apart[:, 0], apart[:, 1]


def _load_teacher(teacher: str, dtype: str) -> Any:
    try:
        return load_model(teacher, dtype=dtype)
    except UserError as error:
        raise type(error)(f"config.init_teacher: {error}") from error


def divergence(taught: jax.Array, said: jax.Array, temperature: float) -> jax.Array:
    """T² · KL(taught / T ‖ said / T) of logits [B, K] -> [B], float32.

    The square keeps gradients alike at all temperatures (arXiv 1503.02531).
    """
    wanted = jax.nn.log_softmax(taught / temperature)
    found = jax.nn.log_softmax(said / temperature)
    return temperature**2 * jnp.sum(jnp.exp(wanted) * (wanted - found), axis=-1)


def _order_of_classes(model: Any, labels: Labels, teacher: str) -> np.ndarray | None:
    """The teacher's class of each of the data's; None if they are the same in the same order.

    Raises ConfigError if they are not the same classes.
    """
    count, names = model.options.num_classes, list(model.class_names)
    if count != labels.num_classes:
        raise ConfigError(
            f"config.init_teacher={teacher} knows {count} classes, and the data has "
            f"{labels.num_classes}: teacher and student need the same."
        )
    if not names or not labels.names or names == list(labels.names):
        return None
    if missing := sorted(set(labels.names) - set(names)):
        raise ConfigError(
            f"config.init_teacher={teacher} does not know the data's class {missing[0]!r} "
            f"({len(missing)} in all): its classes are such as {names[0]!r}."
        )
    return np.array([names.index(name) for name in labels.names])
