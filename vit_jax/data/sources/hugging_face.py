"""The source `hf:OWNER/NAME[:CONFIG][@REVISION]`: a data set on the Hugging Face Hub, by its Parquet
files: its own, or those that the Hub converted it to.

Files come through the Hub's cache, those of a split when it is opened. Which file belongs to which
split and configuration say the head of README.md, or else the files' names.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_collections

from vit_jax import hub
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.parquet import SUFFIX, open_splits, split_of
from vit_jax.data.sources.shards import by_split
from vit_jax.data.sources.splits import Shape, Splits, abbreviate
from vit_jax.errors import ConfigError, DataError, HubError

CONVERTED = "refs/convert/parquet"  # The branch with the Hub's own conversion of any data set.
_CARD = "README.md"
_DEFAULT = "default"
_DATA = "data"  # The folder of the default configuration.
_LOCATION = re.compile(r"([\w.-]+/[\w.-]+)(?::([^:@]+))?(?:@([\w./-]+))?")

_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}

logger = logging.getLogger(__name__)

Grouped = dict[str, list[str]]  # A split's files, below the repository.


class Dataset(NamedTuple):
    """What a source names."""

    repository: str  # OWNER/NAME
    config: str  # ""; the default one
    revision: str


class Found(NamedTuple):
    """The files of a data set at one commit."""

    commit: str
    folder: str  # in the cache, where they lie once they are fetched
    splits: Grouped


def hugging_face(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """The splits of a data set on the Hub; classes and columns as of `parquet`.

    Raises:
        ConfigError: `location` is malformed.
        HubError: the Hub does not answer, has no such data set, or wants a token.
        DataError: it has no Parquet files, or several configurations of which none is named.
    """
    found = _LOCATION.fullmatch(location)
    if not found:
        raise ConfigError(
            f"config.data.source=hf:{location}: write hf:OWNER/NAME, hf:OWNER/NAME:CONFIG or "
            "...@REVISION."
        )
    dataset = Dataset(found[1], found[2] or "", found[3] or hub.DEFAULT_REVISION)
    files = find_files(dataset)

    def fetched(split: str) -> list[str]:
        names = files.splits[split]
        logger.info(
            "hf:%s: %d files of split %s, fetched unless they are in the cache.",
            *(location, len(names), split),
        )
        snapshot = hub.fetch(dataset.repository, hub.DATASET, files.commit, names)
        return [os.path.join(snapshot.folder, name) for name in names]

    paths = {split: functools.cache(functools.partial(fetched, split)) for split in files.splits}
    return open_splits(files.folder, paths, data, shape, f"hf:{location}")


def find_files(dataset: Dataset) -> Found:
    """The Parquet files of a data set by split: its own, else the Hub's conversion."""
    listed = _list(dataset.repository, dataset.revision)
    own = _own_files(dataset, listed)
    if own:
        return Found(listed.commit, listed.folder, own)
    if dataset.revision != hub.DEFAULT_REVISION:
        raise DataError(
            f"hf:{dataset.repository}@{dataset.revision} has no Parquet files"
            f"{_of_config(dataset)}; the Hub converts the branch main only: leave the revision out."
        )
    try:
        converted = _list(dataset.repository, CONVERTED)
    except HubError as error:
        raise DataError(
            f"hf:{dataset.repository} has no Parquet files{_of_config(dataset)}, and none that the "
            f"Hub has converted ({error}). Download it, and read it as folder:DIR or manifest:FILE."
        ) from error
    names = sorted(name for name in converted.names if name.endswith(SUFFIX))
    if not names:
        raise DataError(
            f"hf:{dataset.repository} has no Parquet files{_of_config(dataset)}, and the Hub's "
            f"conversion, {CONVERTED}, holds none. Download it, and read it as folder:DIR or "
            "manifest:FILE."
        )
    by_config = {
        config: list(own)
        for config, own in itertools.groupby(names, key=lambda name: name.partition("/")[0])
    }
    chosen = _choose(dataset, by_config, default="")
    return Found(converted.commit, converted.folder, _grouped(chosen))


def _of_config(dataset: Dataset) -> str:
    return f" of configuration {dataset.config}" if dataset.config else ""


class Listed(NamedTuple):
    """All files of a commit, none of them fetched."""

    commit: str
    folder: str
    names: tuple[str, ...]


def _list(repository: str, revision: str) -> Listed:
    names: list[str] = []

    def none(all_names: Sequence[str]) -> Sequence[str]:
        names.extend(all_names)
        return ()

    snapshot = hub.fetch(repository, hub.DATASET, revision, none)
    return Listed(snapshot.commit, snapshot.folder, tuple(names))


def _own_files(dataset: Dataset, listed: Listed) -> Grouped:
    """The Parquet files of the repository itself; empty if it has none."""
    names = sorted((name for name in listed.names if name.endswith(SUFFIX)), key=natural_order)
    if not names:
        return {}
    if described := _described(dataset, listed):
        default = next((name for name in described if described[name].get(_DEFAULT)), "")
        return _by_patterns(_choose(dataset, described, default), names)
    by_config: dict[str, list[str]] = {}
    for name in names:
        folder = name.partition("/")[0] if "/" in name else _DATA
        by_config.setdefault(_DEFAULT if folder == _DATA else folder, []).append(name)
    return _grouped(_choose(dataset, by_config, default=""))


def _described(dataset: Dataset, listed: Listed) -> dict[str, dict[str, Any]]:
    """The configurations that the head of README.md describes, by name."""
    if _CARD not in listed.names:
        return {}
    from huggingface_hub import metadata_load

    snapshot = hub.fetch(dataset.repository, hub.DATASET, listed.commit, [_CARD])
    try:
        configs = (metadata_load(os.path.join(snapshot.folder, _CARD)) or {}).get("configs")
    except Exception as error:  # YAML that cannot be read has errors of its own.
        logger.warning("hf:%s: the head of %s cannot be read: %s", dataset.repository, _CARD, error)
        return {}
    if not isinstance(configs, list):
        return {}
    with_files = [each for each in configs if isinstance(each, dict) and each.get("data_files")]
    return {str(each.get("config_name", _DEFAULT)): each for each in with_files}


def _choose(dataset: Dataset, configs: dict[str, Any], default: str) -> Any:
    """The configuration that is meant; raises DataError if that is not clear."""
    wanted = dataset.config or default or (_DEFAULT if _DEFAULT in configs else "")
    if not wanted and len(configs) == 1:
        (wanted,) = configs
    if wanted not in configs:
        problem = f"no configuration {wanted}" if wanted else "several configurations"
        raise DataError(
            f"hf:{dataset.repository} has {problem}; there are {abbreviate(list(configs), 20)}: "
            f"name one, as in hf:{dataset.repository}:{next(iter(configs), 'CONFIG')}."
        )
    return configs[wanted]


def _by_patterns(config: dict[str, Any], names: Sequence[str]) -> Grouped:
    """The files of each split of a configuration, as `data_files` of README.md says.

    A split of files of other kinds is left out.
    """
    described = config["data_files"]
    if isinstance(described, dict):
        described = [{"split": split, "path": path} for split, path in described.items()]
    if not isinstance(described, list) or not all(isinstance(each, dict) for each in described):
        patterns = described if isinstance(described, list) else [described]
        return _grouped([name for name in names if _matches(name, patterns, config)])
    found: Grouped = {}
    for each in described:
        patterns = each["path"] if isinstance(each["path"], list) else [each["path"]]
        chosen = [name for name in names if _matches(name, patterns, config)]
        if chosen:
            found[str(each["split"])] = chosen
    return found


def _matches(name: str, patterns: Sequence[str], config: dict[str, Any]) -> bool:
    """Whether one of some globs means a file; "*" spans no folders, "**" does."""
    folder = str(config.get("data_dir") or "").strip("/")
    whole = [f"{folder}/{each}" if folder else str(each) for each in patterns]
    return any(re.fullmatch(_as_expression(each), name) for each in whole)


def _as_expression(pattern: str) -> str:
    """A glob as a regular expression."""
    return re.sub(r"\*\*/|\*\*|\*|\?|[^*?]+", lambda part: _as_part(part[0]), pattern)


def _as_part(text: str) -> str:
    return _WILDCARDS.get(text) or re.escape(text)


def _grouped(names: Sequence[str]) -> Grouped:
    """Files by the split that their names say; empty if there are none."""
    return by_split(sorted(names, key=natural_order), "", split_of) if names else {}
