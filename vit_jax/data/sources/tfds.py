"""The source `tfds:NAME[:CONFIG]`: TensorFlow Datasets in ArrayRecord or TFRecord files.

TensorFlow is not needed: TFDS itself reads ArrayRecord files without it, and parses the records of
both; of TFRecord files, which have no index, `records` makes one.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import ml_collections
import numpy as np

from vit_jax import storage
from vit_jax.data.images.picture import decode
from vit_jax.data.sources import tfrecord
from vit_jax.data.sources.examples import Example, Source
from vit_jax.data.sources.labels import LABELS, Label
from vit_jax.data.sources.record_index import Index, open_index
from vit_jax.data.sources.records import Records, attempt
from vit_jax.data.sources.splits import Shape, Splits
from vit_jax.errors import DataError, UserError

_ARRAY_RECORD, _TFRECORD = "array_record", "tfrecord"


class Tfds(Source):
    """One split of a prepared dataset, with the images still encoded.

    Args:
        directory: of the dataset's version.
        split: its name.
        label: as in `label_of`.
        num_classes: if the data does not say.
        index: of the split's TFRecord files; None: they are ArrayRecord files.
    """

    def __init__(
        self, directory: str, split: str, label: str, num_classes: int, index: Index | None
    ):
        import tensorflow_datasets  # Takes a second to import: only who uses it pays.

        self._arguments = (directory, split, label, num_classes, index)
        self._split, self._label = split, label_of(label)
        if index:
            builder = tensorflow_datasets.builder_from_directory(directory, _TFRECORD)
            self._records = _tf_records(builder.info.splits[split], index)
        else:
            builder = tensorflow_datasets.builder_from_directory(directory)
            self._records = _ArrayRecords(builder, split)
        features = builder.info.features
        count = self._label.num_classes or num_classes
        self.class_names = tuple(names_of(features, label) or map(str, range(count)))
        # Other features, masks and boxes say, are not even parsed.
        self._features = tensorflow_datasets.features.FeaturesDict(
            {name: features[name] for name in ("image", *self._label.features)}
        )
        self._decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}

    @property
    def remote(self) -> bool:
        """Whether the files are a store's."""
        return self._records.remote

    def __len__(self) -> int:
        return len(self._records)

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | DataError]:
        """Several examples, with neighbours in one request; what fails stands for itself."""
        for index, record in zip(indices, self._records.fetch(indices), strict=True):
            yield attempt(self._example, record, self.name_of(index))

    def name_of(self, index: int) -> str:
        """The name of an example, without reading it."""
        return f"{self._split}/{index}"

    def _example(self, record: bytes, name: str) -> Example:
        try:
            example = self._features.deserialize_example_np(record, decoders=self._decoders)
            image, label = example["image"], int(self._label.compute(example))
            if not isinstance(image, bytes):
                raise TypeError("it has no image")
        except Exception as error:  # Damaged bytes are met with errors of many kinds.
            raise DataError(f"{name}: its record is damaged ({error})") from error
        if not 0 <= label < len(self.class_names):
            raise DataError(
                f"{name}: its label is {label}, none of the {len(self.class_names):,} classes; a split "
                "without labels has -1"
            )
        if self._label.pixel_scale != 1:
            image = decode(image, channels=1) * np.uint8(self._label.pixel_scale)
        return Example(image, label, name)

    def __reduce__(self) -> tuple:
        return Tfds, self._arguments  # A worker process opens the files itself.


class _ArrayRecords:
    """The records of a split, as TFDS reads them from ArrayRecord files."""

    def __init__(self, builder: Any, split: str):
        import tensorflow_datasets

        self._split = split
        self._source = builder.as_data_source(
            split, deserialize_method=tensorflow_datasets.decode.DeserializeMethod.RAW_BYTES
        )

    def __len__(self) -> int:
        return len(self._source)

    @property
    def remote(self) -> bool:
        """Never: by URL, TFRecord is read."""
        return False

    def fetch(self, indices: Sequence[int]) -> list[bytes | DataError]:
        return [attempt(self._read, index) for index in indices]

    def _read(self, index: int) -> bytes:
        try:
            return self._source[index]
        except IndexError:
            raise
        except Exception as error:  # The library in C++ has its own.
            raise DataError(f"{self._split}/{index} cannot be read ({error})") from error


def _tf_records(info: Any, index: Index) -> Records:
    """The records of a split, in the order of ArrayRecord files of the same dataset."""
    for instruction, shard in zip(info.file_instructions, index.shards, strict=True):
        if len(shard["start"]) != instruction.examples_in_shard:
            raise DataError(
                f"{instruction.filename} holds {len(shard['start']):,} records, but "
                f"dataset_info.json says {instruction.examples_in_shard:,}: copy it again."
            )
    return Records(index.paths, index.shards, tfrecord.data_of)


def label_of(name: str) -> Label:
    """The label called `name`: one of `LABELS`, else the feature of that name as it is."""
    return LABELS.get(name) or Label((name,), 0, operator.itemgetter(name))


def names_of(features: Any, label: str) -> list[str] | None:
    """The names of a feature's classes, if it has any."""
    return getattr(features[label], "names", None) if label in features else None


def tfds(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """Lists the splits of a dataset prepared in `data.data_dir`; never downloads.

    Raises:
        DataError: not found, not in a format that can be read, or not image classification.
    """
    name, _, config = location.partition(":")
    if config:
        # "1.0.0" is a version, spelled as in TFDS; anything else a config.
        name += f":{config}" if re.fullmatch(r"[\d*]+\.[\d*]+\.[\d*]+", config) else f"/{config}"
    if data.data_dir:
        storage.probe(data.data_dir, "config.data.data_dir")
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
    open_ = functools.partial(_open, str(builder.data_dir), _format(builder), data.index_dir)
    return {split: functools.partial(open_, split, key, shape.num_classes) for split in info.splits}


def _format(builder: Any) -> str:
    """The format to read, of those that the dataset is stored in."""
    directory = str(builder.data_dir)
    stored = sorted(format.value for format in builder.info.available_file_formats())
    # The library for ArrayRecord reads no URLs.
    readable = (_TFRECORD,) if storage.is_remote(directory) else (_ARRAY_RECORD, _TFRECORD)
    for name in readable:
        if name in stored:
            return name
    raise DataError(
        f"The TFDS dataset in {directory} is stored as {', '.join(stored)}; vit_jax reads "
        f"{_ARRAY_RECORD} from local or mounted folders, and {_TFRECORD} by URL, too. Convert it "
        f"once, on a machine with TensorFlow: tfds convert_format --dataset_version_dir={directory} "
        f"--out_file_format={readable[0]}"
    )


def _open(
    directory: str, file_format: str, index_dir: str, split: str, label: str, num_classes: int
) -> Tfds:
    import tensorflow_datasets

    with _naming_damage(directory):
        index = None
        if file_format == _TFRECORD:
            info = tensorflow_datasets.builder_from_directory(directory, _TFRECORD).info
            shards = [part.filename for part in info.splits[split].file_instructions]
            index = open_index(shards, tfrecord.scan, index_dir)
        return Tfds(directory, split, label, num_classes, index)


@contextlib.contextmanager
def _naming_damage(directory: str) -> Iterator[None]:
    """TFDS meets damaged descriptions with errors of many kinds: makes each a DataError."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        raise DataError(
            f"The TFDS dataset in {directory} cannot be opened ({type(error).__name__}: {error}): is "
            "its dataset_info.json or features.json damaged? Copy or prepare it again."
        ) from error


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
