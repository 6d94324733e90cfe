"""The source `tfds:NAME[:CONFIG]`: TensorFlow Datasets in ArrayRecord files, without TensorFlow."""

from __future__ import annotations

import functools
import operator
import re
from typing import Any

import ml_collections
import numpy as np

from vit_jax.data.decoding import decode
from vit_jax.data.labels import LABELS, Label
from vit_jax.data.splits import Example, Shape, Splits
from vit_jax.errors import DataError


class Tfds:
    """One split of a prepared dataset, with the images still encoded."""

    def __init__(self, directory: str, split: str, label: str, num_classes: int):
        import tensorflow_datasets  # Takes a second to import: only who uses it pays.

        builder = tensorflow_datasets.builder_from_directory(directory)
        features = builder.info.features
        self._arguments = (directory, split, label, num_classes)
        self._split, self._label = split, label_of(label)
        count = self._label.num_classes or num_classes
        self.class_names = tuple(names_of(features, label) or map(str, range(count)))
        self._records = builder.as_data_source(
            split, deserialize_method=tensorflow_datasets.decode.DeserializeMethod.RAW_BYTES
        )
        # Other features, masks and boxes say, are not even parsed.
        self._features = tensorflow_datasets.features.FeaturesDict(
            {name: features[name] for name in ("image", *self._label.features)}
        )
        self._decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Example:
        record = self._records[index]
        example = self._features.deserialize_example_np(record, decoders=self._decoders)
        image = example["image"]
        if self._label.pixel_scale != 1:
            image = decode(image, channels=1) * np.uint8(self._label.pixel_scale)
        return Example(image, int(self._label.compute(example)), f"{self._split}/{index}")

    def __reduce__(self) -> tuple[type[Tfds], tuple[str, str, str, int]]:
        return Tfds, self._arguments  # A worker process opens the files itself.


def label_of(name: str) -> Label:
    """The label called `name`: one of `LABELS`, else the feature of that name as it is."""
    return LABELS.get(name) or Label((name,), 0, operator.itemgetter(name))


def names_of(features: Any, label: str) -> list[str] | None:
    """The names of a feature's classes, if it has any."""
    return getattr(features[label], "names", None) if label in features else None


def tfds(place: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """Lists the splits of a dataset prepared in `data.data_dir`; never downloads.

    Raises:
        DataError: not found, not stored as ArrayRecord, or not image classification.
    """
    name, _, config = place.partition(":")
    if config:
        # "1.0.0" is a version, spelled as in TFDS; anything else a config.
        name += f":{config}" if re.fullmatch(r"[\d*]+\.[\d*]+\.[\d*]+", config) else f"/{config}"
    builder = _find_builder(name, data.data_dir)
    info = builder.info
    key = data.label or "label"
    label = label_of(key)
    missing = {"image", *label.features} - set(info.features or ())
    if missing:
        raise DataError(
            f"The TFDS dataset {name} has no feature {' or '.join(sorted(missing))}, only "
            f"{', '.join(info.features)}; config.data.label names the feature to learn."
        )
    if not (names_of(info.features, key) or label.num_classes or shape.num_classes):
        raise DataError(
            f"The TFDS dataset {name} does not say how many classes it has: set "
            "--config.model.num_classes=NUMBER."
        )
    formats = sorted(format.value for format in info.available_file_formats())
    if "array_record" not in formats:
        raise DataError(
            f"The TFDS dataset {name} in {builder.data_dir} is stored as {', '.join(formats)}; "
            "vit_jax reads array_record, which allows random access. Convert it once, on a machine "
            f"with TensorFlow: tfds convert_format --dataset_version_dir={builder.data_dir} "
            "--out_file_format=array_record"
        )
    directory = str(builder.data_dir)
    return {
        split: functools.partial(Tfds, directory, split, key, shape.num_classes)
        for split in info.splits
    }


def _find_builder(name: str, data_dir: str) -> Any:
    """The dataset's `DatasetBuilder`, from its files alone."""
    import tensorflow_datasets

    try:
        return tensorflow_datasets.core.read_only_builder.builder_from_files(
            name, data_dir=data_dir or None
        )
    # Whatever the lookup runs into, such as a dataset's code that wants TensorFlow.
    except Exception as error:
        where = data_dir or tensorflow_datasets.core.constants.DATA_DIR
        raise DataError(
            f"No prepared TFDS dataset {name!r} in {where}. Either (1) prepare it on a machine with "
            f"TensorFlow: tfds build {name} --file_format=array_record (if it lies elsewhere, name "
            "the folder with --config.data.data_dir=DIR), or (2) train on image files: "
            f"--config.data.source=folder:DIR. TFDS says: {str(error).strip().splitlines()[0]}"
        ) from error
