"""Evaluators: what is measured during and after training, one file each.

`config.evaluators` lists them with their arguments, in the grammar of crops and augmentations:

    classification | classification(name='v2', source='folder:v2', every_steps=10_000)

Empty, the objective's own defaults run. To add one, write a subclass of `base.Evaluator` and list it
here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vit_jax.checkpoint import AVERAGED
from vit_jax.errors import ConfigError
from vit_jax.evaluators.base import Evaluator
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.fewshot import FewShot
from vit_jax.evaluators.imagenet import V2, Adversarial, ObjectNet, Real, Renditions, Sketch
from vit_jax.evaluators.knn import NearestNeighbors
from vit_jax.evaluators.objective import ObjectiveLoss
from vit_jax.evaluators.probe import LinearProbe
from vit_jax.evaluators.regression import Regression
from vit_jax.grammar import parse
from vit_jax.models.base import ModelOptions

EVALUATORS: dict[str, type[Evaluator]] = {
    "classification": Classification,
    "regression": Regression,
    "objective": ObjectiveLoss,
    "fewshot": FewShot,
    "knn": NearestNeighbors,
    "probe": LinearProbe,
    "imagenet_a": Adversarial,
    "imagenet_r": Renditions,
    "imagenet_real": Real,
    "imagenet_sketch": Sketch,
    "imagenet_v2": V2,
    "objectnet": ObjectNet,
}


def check_head(evaluators: Iterable[Evaluator], options: ModelOptions) -> None:
    """Raises ConfigError if one of them measures classes, and the model has no head."""
    headless = [name for name, kind in EVALUATORS.items() if not kind.NEEDS_HEAD]
    for evaluator in evaluators:
        if evaluator.NEEDS_HEAD and not options.num_classes:
            raise ConfigError(
                f"the evaluator {evaluator.prefix!r} needs a classifier, and this model has no "
                f"head: fine-tune it, or choose among {', '.join(headless)}."
            )


def read_evaluators(text: str, key: str = "config.evaluators") -> tuple[Evaluator, ...]:
    """The evaluators that a text lists.

    Raises ConfigError, which names the key or flag that holds the text, if it cannot be read, or if
    two would write under one name.
    """
    evaluators = tuple(operation() for operation in parse(text, EVALUATORS, key))
    counts = Counter(evaluator.prefix for evaluator in evaluators)
    for name, count in counts.items():
        if count > 1:
            raise ConfigError(
                f"{key}={text!r}: two evaluators would write under {name!r}; tell them "
                "apart by name='...'."
            )
        if name in ("train", "data") or "/" in name or name.endswith(AVERAGED):
            raise ConfigError(
                f"{key}={text!r}: {name!r} cannot be an evaluator's name; the run's own "
                f"metrics stand under train/ and data/, those of averages under NAME{AVERAGED}/."
            )
    return evaluators
