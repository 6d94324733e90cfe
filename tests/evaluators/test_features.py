"""Features of frozen models: of which examples they are."""

import dataclasses
import gc
import types
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.settings import Brightness, make_setting, write_folder
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.feature_evaluator import FeatureEvaluator
from vit_jax.evaluators.features import Extracted


def test_what_training_leaves_out_is_measured_all_the_same(tmp_path):
    """Of one split, what a protocol fits to and what it measures on are apart."""
    write_folder(tmp_path / "data/val", {"a": [0, 20], "b": [40, 60]})
    (tmp_path / "list").write_text("val/a/0000.png\n")
    source = f"folder:{tmp_path}/data"
    setting, params = make_setting(source, "ab", exclude=str(tmp_path / "list"))
    fitted, measured = (
        setting.features.open("", "val", training=training)(params).features
        for training in (True, False)
    )
    assert sorted(zip(fitted.values[:, 0], fitted.labels, strict=True)) == [(1, 0), (2, 1), (3, 1)]
    assert sorted(measured.values[:, 0]) == [0, 1, 2, 3]
    (evaluator,) = read_evaluators("knn(k=4, train_split='val')")
    with pytest.raises(DataError, match="3 training images, fewer than k=4"):
        evaluator.bind(setting)(params, {})


class Logarithm(Brightness):
    """Features that are not finite of black images, as padding and what is torn are."""

    def outputs(self, params, images):
        return {"pre_logits": jnp.log(super().outputs(params, images)["pre_logits"])}


def test_what_is_torn_or_padding_has_no_features(tmp_path):
    write_folder(tmp_path / "val", {"a": [20, 40], "b": [60, 80, 100]})
    (tmp_path / "val/b/0002.png").write_bytes(b"torn")
    keys = {"on_error": "skip", "max_skipped": 1.0, "batch_size": 4}
    setting, params = make_setting(f"folder:{tmp_path}", "ab", **keys)
    network = Logarithm(setting.network.mesh, 7, 20)
    setting = dataclasses.replace(setting, network=network)
    (values, labels), skipped = setting.features.open("", "val", training=False)(params)
    found = sorted(zip(np.rint(np.exp(values[:, 0])).tolist(), labels.tolist(), strict=True))
    assert (found, skipped) == ([(1, 0), (2, 0), (4, 1), (5, 1)], 1)
    for path in (tmp_path / "val").rglob("*.png"):
        path.write_bytes(b"torn")
    with pytest.raises(DataError, match="none of the images can be read"):
        setting.features.open("", "val", training=True)(params)


def test_each_source_split_and_model_has_features_of_its_own(tmp_path):
    for name, pixels in (("one", [20, 40]), ("two", [60, 80])):
        write_folder(tmp_path / name / "val", {"a": pixels[:1], "b": pixels[1:]})
    setting, params = make_setting(f"folder:{tmp_path}/one", "ab")
    doubled = {**params, "scale": 2 * params["scale"]}
    features = {
        name: setting.features.open(source, "val", training=False)
        for name, source in (("one", ""), ("two", f"folder:{tmp_path}/two"))
    }
    for given, factor in ((params, 1), (doubled, 2), (params, 1)):
        for name, expected in (("one", [1, 2]), ("two", [3, 4])):
            found = sorted(features[name](given).features.values[:, 0])
            assert found == [factor * value for value in expected]


def test_a_protocol_measures_the_source_and_fits_to_the_split_that_it_names(tmp_path):
    write_folder(tmp_path / "one/train", {"a": [0, 20], "b": [100]})
    write_folder(tmp_path / "two/train", {"a": [100], "b": [0, 20]})
    write_folder(tmp_path / "two/val", {"b": [0, 20, 10]})
    write_folder(tmp_path / "two/few", {"a": [0], "b": [100]})
    setting, params = make_setting(f"folder:{tmp_path}/one", "ab", train_split="train")
    for text, accuracy in (("", 1.0), (", train_split='few'", 0.0)):
        text = f"knn(k=1, weights='uniform', source='folder:{tmp_path}/two'{text}, split='val')"
        (evaluator,) = read_evaluators(text)
        shifted = dataclasses.replace(setting, network=Pair(setting.network.mesh, 7, 20))
        assert evaluator.bind(shifted)(params, {}).numbers == {"accuracy": accuracy}
    setting, _ = make_setting(f"folder:{tmp_path}/one", "ab", train_split="")
    (evaluator,) = read_evaluators("knn(k=1)")
    with pytest.raises(ConfigError, match="name the split to fit to"):
        evaluator.bind(setting)


def test_features_are_computed_once_and_forgotten_with_their_parameters(tmp_path):
    """They may be of gigabytes, and nobody can ask for those of parameters that are gone."""
    write_folder(tmp_path / "val", {"a": [20], "b": [40]})
    setting, params = make_setting(f"folder:{tmp_path}", "ab")
    splits = [setting.features.open("", "val", training=training) for training in (False, True)]
    kept = [weakref.ref(features_of(params).features.values) for features_of in splits]
    for features_of, values in zip(splits, kept, strict=True):
        assert features_of(dict(params)).features.values is values(), "the same arrays"
    del params
    gc.collect()
    assert [values() for values in kept] == [None, None]


@pytest.mark.parametrize("columns", ["path,labels\n1.png,0;1\n2.png,1", "path,target\n1.png,0.5"])
def test_images_without_a_class_each_are_refused_by_the_name_of_their_source(tmp_path, columns):
    (tmp_path / "list.csv").write_text(columns)
    manifest = f"manifest:{tmp_path}/list.csv"
    for own, named in ((manifest, ""), ("digits", manifest)):
        setting, _ = make_setting(own, "ab", held_out_fraction=0.0)
        with pytest.raises(
            DataError, match=f"^{manifest}: few-shot evaluation, k-NN and the linear"
        ):
            setting.features.open(named, "train", training=False)


@pytest.mark.parametrize(
    ("fitted", "measured", "expected"), [(0, 0, {}), (2, 3, {"skipped": 5}), (0, 3, {"skipped": 3})]
)
def test_what_could_not_be_read_is_counted_over_both_splits(fitted, measured, expected):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Sizes(FeatureEvaluator):
        NAME = "sizes"

        def score(self, train, test):
            return {"train": len(train), "test": len(test)}

    opened = []

    def open_features(source, split, *, training):
        opened.append((source, split, training))
        rows = "abc" if training else "ab"
        return lambda params: Extracted(rows, fitted if training else measured)

    data = types.SimpleNamespace(
        config=types.SimpleNamespace(train_split="own"),
        examples=lambda *given, training: opened.append((*given, training)),
    )
    setting = types.SimpleNamespace(features=types.SimpleNamespace(open=open_features), data=data)
    found = Sizes(source="S", split="val").bind(setting)({}, {})
    assert found.numbers == {"train": 3, "test": 2, **expected}
    assert opened == [("S", "own", True), ("S", "val", False), ("S", "own", True)]
    opened.clear()
    Sizes(train_split="few").bind(setting)
    assert opened == [("", "few", True), ("", "", False), ("", "few", True)]
    data.config.train_split = ""
    with pytest.raises(
        ConfigError, match=r"^mine: name the split to fit to, as train_split='train'\.$"
    ):
        Sizes(name="mine").bind(setting)


class Pair(Brightness):
    """Features whose direction says the brightness."""

    def outputs(self, params, images):
        (value,) = super().outputs(params, images).values()
        return {"pre_logits": jnp.concatenate([value, 5 - value], axis=1)}
