"""Splits as a model is evaluated on them: every example once, in order, labelled by its classes."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.data.classes import ClassesDifferError, LabelledForModel, match_classes
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.chunks import Loading, Skipping
from vit_jax.data.loading.order import Order
from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError, UserError

logger = logging.getLogger(__name__)

COUNTED_BY_MODEL = ("fake", "tfds")  # Sources that may not know how many classes they have.

# image uint8 or float32 [B, H, W, C] in 0 … 255, label, index int32 [B], mask bool [B]
Batch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of a source, and its batches."""

    source: Source
    data: EvaluationData
    skipping: Skipping | None

    def __len__(self) -> int:
        return len(self.source)

    def batches(self) -> Generator[Batch]:
        """Every example once, in order; the last batch is padded and masked. Close it when done."""
        config = self.data.config
        loading = Loading(
            self.source,
            self.data.transform,
            Order(len(self), seed=None),
            self.data.batch_size,
            skipping=self.skipping,
            num_threads=config.num_threads,
            num_workers=max(config.num_workers, 0),  # By default none: starting them takes long.
        )
        return self.data.watch(pipeline.batches(loading, self.data.rows), len(self))

    def count_skipped(self, count: int) -> dict[str, int]:
        """`skipped`: the examples that could not be read, where `count` could; or nothing.

        Raises DataError if they are more than `data.max_skipped`.
        """
        if not self.skipping:
            return {}
        skipped, total, limit = len(self) - count, len(self), self.data.config.max_skipped
        if skipped > limit * total:
            raise DataError(
                f"{skipped:,} of {total:,} evaluation examples cannot be read, more than "
                f"config.data.max_skipped={limit}: the log names each."
            )
        return {"skipped": skipped}


@contextlib.contextmanager
def naming(source: str, split: str, eval_split: str) -> Iterator[None]:
    """Has errors name who asked for the data: an evaluator's own source or split, or a key."""
    try:
        yield
    except UserError as error:
        text = str(error)
        if source:
            text = text.replace("config.data.source=", "an evaluator's source=")
        given = {"source": source, "split": split}
        own = ", ".join(f"{name}={value!r}" for name, value in given.items() if value)
        if own and "source=" not in text:
            text = f"an evaluator's {own}: {text}"
        elif eval_split and "config." not in text:
            text = f"config.data.eval_split={eval_split!r}: {text}"
        raise type(error)(text) from error


@dataclasses.dataclass(frozen=True)
class EvaluationData:
    """Opens the splits that evaluators name, as one model sees them.

    Attributes:
      config: `config.data`: the source where an evaluator names none, and how it is read.
      transform: (encoded file or array [H, W, C]) -> `dtype` [*image_shape].
      image_shape: (height, width, channels) of the model's input.
      class_names: of the model; empty if unknown: then classes are matched by number.
      num_classes: of the model.
      batch_size: over all devices.
      rows: the sharding of a batch's rows.
      watch: given every pass over batches and its number of examples, returns the batches.
      opened: the examples of what was opened, by source and split as `open` was given them.
      fitted: the same of what was opened as for training.
      dtype: of the transformed images.
    """

    config: ConfigDict
    transform: Callable[..., np.ndarray]
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    num_classes: int
    batch_size: int
    rows: jax.sharding.Sharding
    watch: Callable[[Generator[Batch], int], Generator[Batch]] = lambda batches, count: batches
    opened: dict[tuple[str, str], Source] = dataclasses.field(default_factory=dict)
    fitted: dict[tuple[str, str], Source] = dataclasses.field(default_factory=dict)
    dtype: str = "uint8"

    def open(
        self,
        source: str = "",
        split: str = "",
        *,
        own_classes: bool = False,
        training: bool = False,
    ) -> Split:
        """Opens a split; empty: the run's own source, and its evaluation split.

        Its labels are the model's, unless `own_classes`: then they are the source's. `training`:
        of examples that something is fitted to, without those that the run's training leaves out.

        Raises:
          ConfigError: `source` or `split` is malformed.
          DataError: the data is missing.
          ClassesDifferError: its classes are not the model's.
        """
        name = source or self.config.source
        examples = self.examples(source, split, training=training)
        if not own_classes:
            examples = self._labelled(examples, name)
        skipping = None
        if self.config.on_error == "skip":
            num_classes = len(examples.class_names) if own_classes else self.num_classes
            skipping = Skipping.of(examples, self.image_shape, num_classes, self.dtype)
        return Split(examples, self, skipping)

    def examples(self, source: str = "", split: str = "", *, training: bool = False) -> Source:
        """The examples of a split, with the source's own classes; several evaluators share them."""
        name, opened = source or self.config.source, self.fitted if training else self.opened
        if (name, split) not in opened:
            with naming(source, split, self.config.eval_split):
                opened[name, split] = self._open(name, split, training)
        return opened[name, split]

    def _open(self, name: str, split: str, training: bool) -> Source:
        data = self.config.copy_and_resolve_references()
        if name != data.source:  # What belongs to the run's own source does not to another.
            data.update(source=name, label="", classes=(), columns="", eval_split="")
            data.update(exclude="", max_train_examples=0)
        height, width, channels = self.image_shape
        knows_classes = name.partition(":")[0] not in COUNTED_BY_MODEL
        return open_source(
            data,
            split or data.eval_split,
            image_size=(height, width),
            channels=channels,
            num_classes=0 if knows_classes else self.num_classes,
            training=training,
        )

    def _labelled(self, source: Source, name: str) -> Source:
        """The source with the model's labels; numbers to predict are what they are."""
        if source.numeric:
            if len(source.class_names) == self.num_classes:
                return source
            raise ClassesDifferError(
                f"{name}: the model predicts {self.num_classes:,} numbers, the data has "
                f"{len(source.class_names):,}: {', '.join(source.class_names)}."
            )
        try:
            labels, remark = match_classes(self.class_names, self.num_classes, source.class_names)
        except ClassesDifferError as error:
            raise ClassesDifferError(f"{name}: {error}") from None
        if not remark:
            return source
        logger.info("%s: %s.", name, remark)
        return LabelledForModel(source, labels, self.num_classes)
