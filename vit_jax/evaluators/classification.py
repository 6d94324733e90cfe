"""Accuracy and loss over a whole split, each example once; on request all that predictions tell."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.evaluation_data import Split
from vit_jax.devices import sharding
from vit_jax.errors import DataError, NonFiniteLossError
from vit_jax.evaluators import metrics
from vit_jax.evaluators.answer_files import check_ending, draw_worst, write_answers
from vit_jax.evaluators.base import Evaluator, Measure, Results, Setting
from vit_jax.evaluators.class_groups import NONE, ClassGroups, read_groups
from vit_jax.evaluators.judgements import TOP_K, Answers, Loss, answers, judge
from vit_jax.figures import Axes, draw, draw_matrix
from vit_jax.kinds import Count, Flag, Text
from vit_jax.objectives.losses import LOSSES

Logits = Callable[[dict, jax.Array], jax.Array]
Inspect = Callable[[jax.Array, dict[str, jax.Array]], Any]  # (logits, batch) -> arrays [B, ...]

CLASS_ACCURACY = "accuracy_of"
DETAILS = ("balanced_accuracy", "macro_f1", "calibration_error")
DETAILS_OF_SEVERAL = ("mean_average_precision",)  # Where images have any number of classes.

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LabelledSplit:
    """Images with labels that a model's answers are compared with.

    Attributes:
      split: the images; labels are the model's classes, or with groups the data's.
      groups: None: labels are the model's.
      names: of the classes that labels are of.
    """

    split: Split
    groups: ClassGroups | None
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Evaluator):
    """Accuracy, top-5 accuracy and loss of a classifier.

    Attributes:
      classes: a file of lines "the data's class, tab, the model's": only these are predicted, and
        several of the model's may be one of the data's; images of others are left out.
      detailed: balanced accuracy, macro F1, calibration error, with pictures of the confusion
        matrix and the reliability curve; of images with several classes mean average precision.
      per_class: the accuracy of each class, or its average precision.
      rows: a .csv or .parquet file for a row about each image, written anew each time.
      worst: so many images in a picture, those with the smallest margins.
    """

    NAME: ClassVar[str] = "eval"
    RESTRICTED: ClassVar[bool] = True  # Of `classes`: whether no others are predicted.
    HAS_LOSS: ClassVar[bool] = True  # Whether its protocol measures one.

    classes: Text = ""
    detailed: Flag = False
    per_class: Flag = False
    rows: Text = ""
    worst: Count = 0

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        top5 = ("top5_accuracy",) if setting.data.num_classes > TOP_K else ()
        names = [*(("loss",) if self.HAS_LOSS else ()), "accuracy", *top5, "count"]
        if self.detailed or self.per_class:
            labelled = self.open(setting)
            several = labelled.split.source.multi_label
            if self.detailed:
                names += DETAILS_OF_SEVERAL if several else DETAILS
            if self.per_class:
                names += [f"{CLASS_ACCURACY}/{name}" for name in labelled.names]
        return tuple(names)

    def open(self, setting: Setting) -> LabelledSplit:
        """The images and their labels; raises UserError if the data cannot be used."""
        data = setting.data
        if not self.classes:
            split = data.open(self.source, self.split)
            return LabelledSplit(split, None, data.class_names or split.source.class_names)
        split = data.open(self.source, self.split, own_classes=True)
        names = split.source.class_names
        groups = read_groups(
            self.classes,
            f"{self.prefix}: classes",
            names,
            data.class_names,
            data.num_classes,
            restricted=self.RESTRICTED,
        )
        return grouped(split, groups)

    def bind(self, setting: Setting) -> Measure:
        """See `Evaluator.bind`."""
        check_ending(self.rows)
        labelled = self.open(setting)
        inspecting = bool(self.detailed or self.per_class or self.rows or self.worst)
        judged = self.judge_all(setting, labelled, inspecting=inspecting)

        def measure(params: dict, frozen: dict) -> Results:
            del frozen
            numbers, found = judged(params)
            if found is None or not numbers["count"]:
                return Results(numbers)
            return self._look_closer(numbers, found, labelled)

        return measure

    def judge_all(
        self, setting: Setting, labelled: LabelledSplit, *, inspecting: bool
    ) -> Callable[[dict], tuple[dict[str, float], Answers | None]]:
        """The means over all images, by parameters; `inspecting`, each image's answer too."""
        split, groups = labelled.split, labelled.groups
        everywhere = sharding.replicated(setting.network.mesh)

        def inspect(logits: jax.Array, batch: dict[str, jax.Array]) -> Answers:
            found = answers(logits, batch, setting.loss, groups)
            return jax.tree.map(lambda array: sharding.constrain(array, everywhere), found)

        means = ClassificationMeans(
            setting.network, LOSSES[setting.loss], groups, inspect if inspecting else None
        )

        def judged(params: dict) -> tuple[dict[str, float], Answers | None]:
            with contextlib.closing(split.batches()) as batches:
                totals, inspected = means.totals(params, batches)
            if totals["not_finite"]:
                raise NonFiniteLossError(
                    f"{self.prefix}: the logits of {int(totals['not_finite']):,} of "
                    f"{int(totals['readable']):,} images are not finite numbers: the model has "
                    "diverged, or its weights are damaged."
                )
            if not self.HAS_LOSS:
                del totals["loss"]
            numbers = {**means_of(totals), **split.count_skipped(int(totals["readable"]))}
            return numbers, Answers(*inspected) if inspected else None

        return judged

    def _look_closer(
        self, numbers: dict[str, float], found: Answers, labelled: LabelledSplit
    ) -> Results:
        """The numbers with those of the options that are on, and their files and pictures."""
        names, source = labelled.names, labelled.split.source
        pictures: dict[str, np.ndarray] = {}
        if self.detailed:
            more, pictures = details(found, names)
            numbers = {**numbers, **more}
        if self.per_class:
            each = class_scores(found, len(names)).tolist()
            pairs = zip(names, each, strict=True)
            numbers = {**numbers, **{f"{CLASS_ACCURACY}/{name}": score for name, score in pairs}}
        if self.rows and jax.process_index() == 0:
            write_answers(self.rows, found, source, names)
        if self.worst:
            transform = labelled.split.data.transform
            pictures = {
                **pictures,
                "worst": draw_worst(found, self.worst, source, names, transform),
            }
        return Results(numbers, pictures)


def grouped(split: Split, groups: ClassGroups) -> LabelledSplit:
    """A split whose classes are compared by groups; says what is left out."""
    names = split.source.class_names
    if split.source.multi_label:
        raise DataError(
            f"{split.data.config.source}: its images have any number of classes, and a mapping of "
            "classes is for images with one."
        )
    if left_out := len(names) - len(groups.known):
        logger.info(
            "%s of the data's %s classes are none of the model's: their images are left out.",
            *(f"{left_out:,}", f"{len(names):,}"),
        )
    return LabelledSplit(split, groups, names)


class ClassificationMeans:
    """Means of a classifier's hits and losses over batches whose padding is masked."""

    def __init__(
        self,
        logits_of: Logits,
        loss: Loss,
        groups: ClassGroups | None = None,
        inspect: Inspect | None = None,
    ):
        """Compiles nothing yet.

        Args:
          logits_of: (params, images uint8 [B, H, W, C]) -> logits [B, K] float32.
          loss: (logits [B, K], targets [B, K]) -> [B].
          groups: where the data's classes are not the model's.
          inspect: (logits, batch) -> a tree of arrays [B, ...] to keep of each image.
        """

        def sums(params: dict, batch: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], Any]:
            logits, mask = logits_of(params, batch["image"]), batch["mask"]
            judgement = judge(logits, batch["label"], loss, groups)
            scored = mask & judgement.counts
            totals = {
                "loss": jnp.sum(judgement.loss, where=scored),
                "accuracy": jnp.sum(judgement.hits[:, 0], where=scored),
                "count": jnp.sum(scored),
                "readable": jnp.sum(mask),
                "not_finite": jnp.sum(~jnp.isfinite(logits).all(-1), where=mask),
            }
            if logits.shape[-1] > TOP_K:
                totals["top5_accuracy"] = jnp.sum(judgement.hits.any(-1), where=scored)
            kept = None if inspect is None else inspect(logits, {**batch, "mask": scored})
            return totals, kept and (kept, scored)

        self._sums = jax.jit(sums)

    def __call__(self, params: dict, batches: Iterable[dict[str, jax.Array]]) -> dict[str, float]:
        """Means over all examples in `batches`, as `means_of`; arguments as for `totals`."""
        return means_of(self.totals(params, batches)[0])

    def totals(
        self, params: dict, batches: Iterable[dict[str, jax.Array]]
    ) -> tuple[dict[str, float], list[np.ndarray]]:
        """Sums over all examples in `batches`.

        Args:
          params: of the model.
          batches: dicts of `image`, `label` and `mask` [B] bool, False for what does not count.
            Labels are int [B], or targets [B, K], where any class above 0 is right.

        Returns:
          `loss`, `accuracy`, `top5_accuracy` (above five classes), each in its sum, `count`, with
          those that have no class of the model `readable`, and of these the `not_finite`. And the
          arrays of `inspect`, of the images that count.
        """
        totals: dict[str, float] = {}
        inspected: list[list[np.ndarray]] = []
        pending = None  # Read one batch late, so that the device never waits for the host.

        def take(pending: Any) -> None:
            sums, kept = jax.device_get(pending) if pending else ({}, None)
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + float(value)
            if kept:
                found, scored = kept
                inspected.append([array[scored] for array in jax.tree.leaves(found)])

        for batch in batches:
            latest = self._sums(params, batch)
            take(pending)
            pending = latest
        take(pending)
        return totals, [np.concatenate(arrays) for arrays in zip(*inspected, strict=True)]


def means_of(totals: dict[str, float]) -> dict[str, float]:
    """`loss`, `accuracy`, `top5_accuracy` in their means, and `count`; means of nothing are NaN."""
    count = totals["count"]
    summed = (name for name in totals if name not in ("count", "readable", "not_finite"))
    means = {name: totals[name] / count if count else math.nan for name in summed}
    return {**means, "count": int(count)}


# --------------------------------------------------------------------------------------- details


def details(
    found: Answers, names: tuple[str, ...]
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The numbers of `DETAILS`, or of `DETAILS_OF_SEVERAL`, and pictures, by name."""
    if found.label.ndim == 2:
        (name,) = DETAILS_OF_SEVERAL
        return {name: metrics.mean_average_precision(found.label, found.scores)}, {}
    confusion = confusion_of(found, len(names))
    curve = metrics.reliability(found.probability, found.prediction == found.label)
    numbers = (
        metrics.balanced_accuracy(confusion),
        metrics.macro_f1(confusion, len(names)),
        curve.calibration_error,
    )
    pictures = {"confusion": draw_confusion(confusion), "reliability": draw_reliability(curve)}
    return dict(zip(DETAILS, numbers, strict=True)), pictures


def confusion_of(found: Answers, num_classes: int) -> np.ndarray:
    """The confusion matrix [K + 1, K + 1]: the last is what is no class of the data."""
    predictions = np.where(found.prediction == NONE, num_classes, found.prediction)
    return metrics.confusion_matrix(found.label, predictions, num_classes + 1)


def class_scores(found: Answers, num_classes: int) -> np.ndarray:
    """Each class's accuracy, or its average precision where images have several; NaN without any."""
    if found.label.ndim == 2:
        return metrics.average_precisions(found.label, found.scores)
    return metrics.class_accuracies(confusion_of(found, num_classes))[:num_classes]


def draw_confusion(confusion: np.ndarray) -> np.ndarray:
    """The picture of which share of each class is taken for which."""
    counts = confusion.sum(1, keepdims=True)
    shares = confusion / np.maximum(counts, 1)
    return draw_matrix(shares[:-1], "class", "prediction")


def draw_reliability(curve: metrics.Reliability) -> np.ndarray:
    """The picture of how often predictions of some confidence are right."""

    def paint(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
        axes.plot(curve.confidence, curve.accuracy, marker="o")
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))

    return draw(paint, (4, 4))
