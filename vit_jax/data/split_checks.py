"""What a run's splits leave out, share or lack, said before it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from ml_collections import ConfigDict

from vit_jax.data.dataset import Dataset
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.data.sources.examples import LabelSets, Source, Targets
from vit_jax.data.sources.registry import find_splits
from vit_jax.data.sources.split_expressions import count_shared, read_parts
from vit_jax.data.sources.splits import Splits, abbreviate, written_names

logger = logging.getLogger(__name__)


def check_run(dataset: Dataset, evaluation: EvaluationData) -> None:
    """Says what is wrong or surprising about the splits that a run trains and is evaluated on.

    Args:
        dataset: the training data.
        evaluation: after the evaluators have opened theirs.
    """
    data = evaluation.config
    height_width, channels = evaluation.image_shape[:2], evaluation.image_shape[2]
    splits = find_splits(data, height_width, channels, dataset.num_classes)
    own = {
        split: source for (name, split), source in evaluation.opened.items() if name == data.source
    }
    check_splits(data, splits, [split or data.eval_split for split in own])
    if (source := own.get("") or own.get(data.eval_split)) is not None:
        check_classes_of_both(data.source, dataset.examples, source)


def check_splits(data: ConfigDict, splits: Splits, evaluated: Iterable[str]) -> None:
    """Says which splits are never read, and warns if images are trained and evaluated on.

    Args:
        data: `config.data`.
        splits: of its source.
        evaluated: the splits of it that evaluators read.
    """
    where, training, evaluation = data.source, data.train_split, data.eval_split
    expressions = {training, *evaluated}
    parts = [part for split in expressions for part in read_parts(splits, split, where)]
    read = {splits[part.name] for part in parts}
    if unread := [name for name in written_names(splits) if splits[name] not in read]:
        logger.info("%s: never read in this run: %s", where, ", ".join(unread))
    if evaluation in expressions and (shared := count_shared(splits, training, evaluation, where)):
        logger.warning(
            "%s: %s images are both in config.data.train_split=%r and in "
            "config.data.eval_split=%r: evaluations on them do not say how good the model is on others.",
            *(where, f"{shared:,}", training, evaluation),
        )


def check_classes_of_both(where: str, training: Source, evaluation: Source) -> None:
    """Warns of the classes of which one of two splits of a source has no image."""
    trained, evaluated = map(_classes_with_images, (training, evaluation))
    if trained is None or evaluated is None:
        return
    for side, classes in (("training", trained), ("evaluation", evaluated)):
        lacking = [name for name in training.class_names if name not in classes]
        if lacking:
            logger.warning(
                "%s: %s of the %s classes have no image for %s: %s",
                *(where, f"{len(lacking):,}", f"{len(training.class_names):,}", side),
                abbreviate(lacking),
            )


def _classes_with_images(source: Source) -> set[str] | None:
    """Their names; None where the labels are not at hand."""
    labels = source.labels
    if labels is None or isinstance(labels, Targets):
        return None
    numbers = np.unique(labels.classes if isinstance(labels, LabelSets) else labels)
    return {source.class_names[number] for number in numbers.tolist()}
