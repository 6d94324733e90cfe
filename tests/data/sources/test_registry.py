import pytest

from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset
from vit_jax.data.sources.examples import Example, Source
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError


def open_split(data, split="train", num_classes=10):
    return open_source(data, split, image_size=(8, 8), channels=1, num_classes=num_classes)


def test_no_source_says_what_to_give(data):
    with pytest.raises(ConfigError, match=r"is empty.*--config\.data\.source=folder:DIR"):
        open_split(data)


def test_training_needs_a_split(data):
    data.source = "digits"
    with pytest.raises(ConfigError, match=r"train_split is empty"):
        open_source(data, "", image_size=(8, 8), channels=1, num_classes=0, training=True)


def test_unknown_kind_names_the_nearest_and_all(data):
    data.source = "/data/photos"
    with pytest.raises(ConfigError, match="did you mean 'folder:/data/photos'"):
        open_split(data)
    data.source = "xyz:/data"
    with pytest.raises(ConfigError, match=r"unknown kind 'xyz'; did you mean 'folder'\?"):
        open_split(data)
    data.source = "foldr:/data"
    with pytest.raises(ConfigError, match=r"did you mean 'folder'.*digits, idx:DIR, folder:DIR"):
        open_split(data)


def test_more_classes_than_the_model():
    config = default_config()
    config.data.source = "digits"
    config.model.num_classes = 7
    with pytest.raises(DataError, match=r"has 10 classes, but config\.model\.num_classes=7"):
        open_dataset(config)


def test_parts_of_splits(data):
    data.source = "digits"
    source: Source = open_split(data, "train[1400:]+test[:3]")
    assert len(source) == 40
    assert isinstance(source[39], Example)
    assert source[39].name == "test/2"


def test_unknown_split(data):
    data.source = "digits"
    with pytest.raises(DataError, match=r"digits has no split 'validation'.*train, test"):
        open_split(data, "validation")


def test_classes_are_in_the_order_of_their_names_in_the_config(data):
    data.source, data.classes = "digits", ("7", "3")
    source = open_split(data)
    assert source.class_names == ("7", "3")
    data.classes = ()
    every = {every.name: every.label for every in open_split(data).fetch(range(1437))}
    for example in source.fetch(range(20)):
        assert every[example.name] == (7, 3)[example.label]
