import io
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from tests.hub_server import Fault
from vit_jax.data.sources.hugging_face import _as_expression, _by_patterns
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError, HubError

NAMES = ["cat", "dog"]
CONVERTED = "refs/convert/parquet"


def table(first, labels):
    """A Parquet file with images called after their numbers, and classes as the Hub has them."""
    images = [
        {"bytes": b"%d" % number, "path": None} for number in range(first, first + len(labels))
    ]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    described = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    content = io.BytesIO()
    columns = pa.table({"image": pa.array(images, kind), "label": labels})
    metadata = {"huggingface": json.dumps({"info": {"features": described}})}
    pq.write_table(columns.replace_schema_metadata(metadata), content)
    return content.getvalue()


PLAIN = {
    "README.md": b"# Cats and dogs\n",
    "data/train-00000-of-00002.parquet": table(0, [0, 1]),
    "data/train-00001-of-00002.parquet": table(2, [1]),
    "data/test-00000-of-00001.parquet": table(10, [0]),
}
DESCRIBED = {
    "README.md": b"""---
configs:
- config_name: small
  default: false
  data_files:
  - split: train
    path: a/tr-*
  - split: test
    path: [b/**/x.parquet]
- config_name: large
  default: true
  data_files:
    train: "*.parquet"
---
text
""",
    "a/tr-0.parquet": table(0, [0, 1]),
    "b/c/d/x.parquet": table(5, [1]),
    "all.parquet": table(20, [1, 0, 1]),
}


def images(data, split="train"):
    source = open_source(data, split, image_size=(4, 4), channels=3, num_classes=0)
    assert source.class_names == ("cat", "dog")
    return [(int(source[index].image), source[index].label) for index in range(len(source))]


def stored(hub_server):
    """How often the store of large files was asked."""
    return sum(path.startswith("/store/") for path in hub_server.asked())


def test_files_of_the_repository(hub_server, data, caplog):
    """Splits by the files' names; only the files of a split are fetched, and each once."""
    hub_server.add("owner/pets", PLAIN, kind="dataset")
    data.source = "hf:owner/pets"
    assert images(data, "test") == [(10, 0)]
    assert stored(hub_server) == 1
    with caplog.at_level("INFO"):
        assert images(data) == [(0, 0), (1, 1), (2, 1)]
    told = "hf:owner/pets: 2 files of split train, fetched unless they are in the cache."
    assert told in caplog.messages
    assert images(data, "train[-1:]+test") == [(2, 1), (10, 0)]
    assert stored(hub_server) == 3
    source = open_source(data, "train", image_size=(4, 4), channels=3, num_classes=0)
    assert source.name_of(2) == "data/train-00001-of-00002.parquet/0"


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("hf:owner/pets", "train", [20, 21, 22]),
        ("hf:owner/pets:small", "train", [0, 1]),
        ("hf:owner/pets:small", "test", [5]),
    ],
)
def test_configurations_that_the_readme_describes(hub_server, data, name, split, expected):
    hub_server.add("owner/pets", DESCRIBED, kind="dataset")
    data.source, data.held_out_fraction = name, 0.0
    assert [image for image, _ in images(data, split)] == expected


def test_the_hubs_conversion(hub_server, data):
    """Of what is no Parquet on main; two configurations have to be told apart."""
    files = {"README.md": b"", "images.zip": b"PK"}
    hub_server.add("owner/pets", files, kind="dataset")
    hub_server.add(
        "owner/pets",
        {
            "one/train/0000.parquet": table(0, [0, 1]),
            "one/partial-test/0000.parquet": table(7, [1]),
            "two/train/0000.parquet": table(30, [1]),
        },
        kind="dataset",
        revision=CONVERTED,
    )
    data.source = "hf:owner/pets:one"
    assert images(data) == [(0, 0), (1, 1)]
    assert images(data, "test") == [(7, 1)]
    data.source = "hf:owner/pets"
    with pytest.raises(
        DataError,
        match=r"pets has several configurations; there are one, two: .*hf:owner/pets:one\.",
    ):
        images(data)
    data.source = "hf:owner/pets:three"
    with pytest.raises(DataError, match="no configuration three; there are one, two"):
        images(data)


def test_nothing_that_can_be_read(hub_server, data):
    hub_server.add("owner/pets", {"images.zip": b"PK"}, kind="dataset")
    data.source = "hf:owner/pets"
    with pytest.raises(
        DataError, match="has no Parquet files, and none that the Hub has converted"
    ):
        images(data)
    hub_server.add("owner/pets", {"images.zip": b"PK"}, kind="dataset", revision="v1")
    data.source = "hf:owner/pets@v1"
    with pytest.raises(
        DataError, match="hf:owner/pets@v1 has no Parquet files; the Hub converts the"
    ):
        images(data)
    data.source = "hf:pets"
    with pytest.raises(ConfigError, match="write hf:OWNER/NAME"):
        images(data)


@pytest.mark.parametrize(
    "files", ["'*.csv'", "['*.csv', 'x/*']", "[{split: train, path: '*.csv'}]"]
)
def test_a_configuration_without_parquet_files_is_the_hubs_conversion(hub_server, data, files):
    """Though another has some: what README.md names is of another kind."""
    card = f"---\nconfigs:\n- config_name: tables\n  data_files: {files}\n---\n"
    own = {"README.md": card.encode(), "other/train-0.parquet": table(50, [1])}
    hub_server.add("owner/pets", own, kind="dataset")
    data.source, data.held_out_fraction = "hf:owner/pets:tables", 0.0
    message = "has no Parquet files of configuration tables, and none that the Hub has converted"
    with pytest.raises(DataError, match=message):
        images(data)
    converted = {"tables/train/0000.parquet": table(3, [1, 0])}
    hub_server.add("owner/pets", converted, kind="dataset", revision=CONVERTED)
    assert images(data) == [(3, 1), (4, 0)]


def test_a_conversion_without_files(hub_server, data):
    for revision in ("main", CONVERTED):
        hub_server.add("owner/pets", {"x.zip": b""}, kind="dataset", revision=revision)
    data.source = "hf:owner/pets"
    message = r"owner/pets has no Parquet files, and the Hub's conversion, refs.*, holds none\."
    with pytest.raises(DataError, match=message):
        images(data)


@pytest.mark.parametrize(
    ("head", "is_told"),
    [
        ("configs: [", True),
        ("- a list", True),
        ("configs: text", False),
        ("configs: [{config_name: x}]", False),
        ("", False),
    ],
)
def test_without_a_head_that_describes_files_folders_are_configurations(
    hub_server, data, head, is_told, caplog
):
    """What cannot be read as a head is told."""
    card = f"---\n{head}\n---\n".encode()
    files = {"README.md": card, "x/train-0.parquet": table(3, [1]), "test.parquet": table(8, [0])}
    hub_server.add("owner/pets", files, kind="dataset")
    data.source, data.held_out_fraction = "hf:owner/pets:x", 0.0
    assert images(data) == [(3, 1)]
    data.source = "hf:owner/pets"  # Files in no folder are the default's.
    assert images(data, "test") == [(8, 0)]
    told = "hf:owner/pets: the head of README.md cannot be read: "
    assert (told in caplog.text) == is_told


def test_revisions_offline_and_private_ones(hub_server, data, monkeypatch):
    """A revision keeps its content; offline the cache is enough; a token opens what is private."""
    hub_server.add("owner/pets", PLAIN, kind="dataset", revision="v1", token="hf_mine")
    newer = {**PLAIN, "data/test-00000-of-00001.parquet": table(50, [1, 1])}
    hub_server.add("owner/pets", newer, kind="dataset", token="hf_mine")
    data.source = "hf:owner/pets@v1"
    with pytest.raises(HubError, match="HF_TOKEN"):
        images(data, "test")
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    hub_server.faults.append(Fault("revision/v1", status=503))
    monkeypatch.setattr("vit_jax.hub.PAUSES", (0.0,))
    assert images(data, "test") == [(10, 0)]
    data.source = "hf:owner/pets"
    assert images(data, "test") == [(50, 1), (51, 1)]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub_server.requests)
    assert images(data, "test") == [(50, 1), (51, 1)]
    with pytest.raises(HubError, match=r"not in the cache are data/train-00000.*MB"):
        images(data)
    assert len(hub_server.requests) == asked


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("data/train-*", "data/train-0.parquet", True),
        ("data/train-*", "more/data/train-0.parquet", False),
        ("*.parquet", "a/b.parquet", False),
        ("**/*.parquet", "b.parquet", True),
        ("**", "a/b/c.parquet", True),
        ("a+b/?.parquet", "a+b/x.parquet", True),
    ],
)
def test_globs(pattern, name, matches):
    assert bool(re.fullmatch(_as_expression(pattern), name)) == matches


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"data_dir": "en/", "data_files": "*-train.parquet"}, {"train": ["en/x-train.parquet"]}),
        (
            {"data_dir": "en", "data_files": {"train": "x-*", "test": ["y-*", "none-*"]}},
            {"train": ["en/x-train.parquet"], "test": ["en/y-test.parquet"]},
        ),
        ({"data_files": [{"split": "all", "path": "*/y-*"}]}, {"all": ["en/y-test.parquet"]}),
        ({"data_files": [{"split": 1, "path": "y-*"}]}, {}),
        ({"data_files": ["x-*", "**/x-*"]}, {"train": ["x-train.parquet", "en/x-train.parquet"]}),
        ({"data_files": [{"split": 1, "path": "z*"}]}, {"1": ["z.parquet"]}),
        ({"data_dir": None, "data_files": "z*"}, {"train": ["z.parquet"]}),
        ({"data_files": ["none-*"]}, {}),
    ],
)
def test_files_of_a_configuration(described, expected):
    """Below its own folder, where it has one."""
    names = ["x-train.parquet", "en/x-train.parquet", "en/y-test.parquet", "z.parquet"]
    found = _by_patterns(described, names)
    assert {split: sorted(files) for split, files in found.items()} == {
        split: sorted(files) for split, files in expected.items()
    }


def test_what_is_wrong_with_labels_names_the_data_set(hub_server, data):
    """And the only folder is the configuration that is meant."""
    files = {"x/train-0.parquet": table(0, [0, 1]), "x/test-0.parquet": table(7, [1, -1])}
    hub_server.add("owner/pets", files, kind="dataset")
    data.source = "hf:owner/pets"
    assert images(data) == [(0, 0), (1, 1)]
    with pytest.raises(DataError, match=r"^hf:owner/pets, test: row 1 has the label -1"):
        images(data, "test")
