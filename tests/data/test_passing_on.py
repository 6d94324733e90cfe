"""What the config says of data arrives where it is opened, loaded and labelled."""

import dataclasses
import types

import numpy as np
import pytest

from tests import tiny
from tests.calls import recorded
from tests.data.example_sources import Numbered
from tests.states import mesh_of
from vit_jax.data import dataset, evaluation_data
from vit_jax.data.classes import ClassesDifferError
from vit_jax.data.dataset import check_classes, of_source, open_dataset, train_order
from vit_jax.data.evaluation_data import EvaluationData, Split
from vit_jax.data.images.picture import Decoding
from vit_jax.data.loading.cache import Cached
from vit_jax.data.sources import registry
from vit_jax.data.sources.examples import LabelSets, Source, Targets
from vit_jax.data.sources.views import Slices, Subset, View
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError, DataError

ROWS = sharding.batch_sharding(mesh_of(1))


@dataclasses.dataclass(frozen=True)
class Labelled(Numbered):
    """Images with labels of any kind, in a store."""

    labels: object = None
    remote = True
    one_file_each = True


SETS = Labelled(3, LabelSets(np.int32([0, 1]), np.array([1, 1, 2]), 2))
NUMBERS = Labelled(3, Targets(np.float32([[1, 2], [3, 4], [5, 6]])))


def test_training_opens_its_split_as_for_training(monkeypatch):
    opened = recorded(monkeypatch, dataset, "open_source", Numbered(9))
    config = tiny.get_config()
    config.model.update(num_classes=2, channels=5, image_size=(4, 8))
    config.data.update(train_split="train[:9]", augmentation="")
    open_dataset(config, index_dir="there")
    ((data, split), options), *_ = opened
    assert (data.source, data.index_dir, split) == ("digits", "there", "train[:9]")
    assert options == {"image_size": (4, 8), "channels": 5, "num_classes": 2, "training": True}


def test_what_is_held_and_what_stands_for_the_unreadable_is_of_the_configs_pixels():
    config = tiny.get_config()
    config.data.update(cache_gib=0.5, dtype="float32", bit_depth=12, on_error="skip")
    for source, label in ((Numbered(9), ()), (SETS, (2,)), (NUMBERS, (2,))):
        found = of_source(config, source, None, (4, 8, 5))
        assert isinstance(found.examples, Cached)
        assert found.uncached is source
        _, (inner, channels, limit, how) = found.examples.__reduce__()
        assert (inner, channels, limit) == (source, 5, 0.5)
        assert how == Decoding(2**30, 12, (), "float32")
        skipped = found.skipping
        assert (skipped.image.shape, skipped.image.dtype) == ((4, 8, 5), "float32")
        assert np.shape(skipped.label) == label
    config.data.update(cache_gib=0.0, on_error="error")
    found = of_source(config, SETS, None, (4, 8, 5))
    assert (found.source, found.skipping, found.several_labels) == (SETS, None, True)


@pytest.mark.parametrize(
    ("wanted", "found", "several", "error"),
    [
        (10, 10, False, None),
        (10, 11, False, DataError),
        (12, 10, False, None),
        (0, 10, True, None),
        (10, 10, True, None),
        (12, 10, True, ConfigError),
    ],
)
def test_classes_that_a_model_can_hold(wanted, found, several, error, caplog):
    config = tiny.get_config()
    config.model.num_classes = wanted
    if error is None:
        check_classes(config, found, several)
    else:
        with pytest.raises(error, match="num_classes"):
            check_classes(config, found, several)
    assert bool(caplog.records) == (wanted > found)
    if several and error is ConfigError:
        with pytest.raises(
            error, match="num_classes=12: its images have targets for the 2 of 'dig"
        ):
            of_source(config, NUMBERS, None, (4, 8, 1))


def test_the_order_keeps_neighbours_together_only_if_asked():
    data = types.SimpleNamespace(examples=Numbered(50), balance=None)
    config = tiny.get_config()
    config.seed = 3
    order = train_order(config, data)
    assert (order.num_examples, order.seed, order.block) == (50, 3, 1)
    config.data.shuffle = "blocks"
    assert train_order(config, data).block == 32
    config.seed = 0
    assert train_order(config, data).seed == 0, "a seed as any other"
    config.seed, asked = 3, []
    balance = types.SimpleNamespace(draws=(1, 2), order=lambda seed: asked.append(seed) or "ORDER")
    data.balance = balance
    assert train_order(config, data) == "ORDER"
    balance.draws = None
    assert train_order(config, data).seed == 3
    assert asked == [3]


def make_data(**keys):
    config = tiny.get_config().data
    config.update(keys)
    return EvaluationData(config, "TRANSFORM", (4, 8, 5), (), 2, 6, ROWS, dtype="float32")


@pytest.mark.parametrize(("workers", "started"), [(-1, 0), (0, 0), (3, 3)])
def test_evaluation_loads_as_the_config_says(monkeypatch, workers, started):
    batches = recorded(monkeypatch, evaluation_data.pipeline, "batches", "BATCHES")
    data = make_data(num_threads=5, num_workers=workers)
    watched = []
    data = dataclasses.replace(data, watch=lambda *given: watched.append(given) or given[0])
    assert Split(Numbered(9), data, "SKIPPING").batches() == "BATCHES"
    ((loading, rows), _), *_ = batches
    assert rows is ROWS
    assert (loading.source, loading.transform, loading.batch_size) == (Numbered(9), "TRANSFORM", 6)
    assert (loading.order.num_examples, loading.order.seed) == (9, None)
    assert (loading.skipping, loading.num_threads, loading.num_workers) == ("SKIPPING", 5, started)
    assert watched == [("BATCHES", 9)]


def test_as_many_as_allowed_may_be_unreadable():
    data = make_data(max_skipped=0.25)
    split = Split(Numbered(8), data, "SKIPPING")
    assert split.count_skipped(8) == {"skipped": 0}
    assert split.count_skipped(6) == {"skipped": 2}
    with pytest.raises(DataError, match=r"3 of 8 evaluation examples .*max_skipped=0.25:"):
        split.count_skipped(5)
    assert Split(Numbered(8), data, None).count_skipped(5) == {}


def test_another_source_is_opened_with_nothing_of_the_runs_own(monkeypatch):
    opened = recorded(monkeypatch, evaluation_data, "open_source", Numbered(9))
    own = {"label": "x", "classes": ("3",), "columns": "path=a", "eval_split": "test[:5]"}
    data = make_data(**own, exclude="list", max_train_examples=4, max_eval_examples=7)
    (first,) = {id(data.examples()), id(data.examples())}
    assert len(opened) == 1, "evaluators share it"
    assert id(data.examples(training=True)) == first
    data.examples("tfds:y", "val", training=True)
    data.examples("tfds:y", "val")
    data.examples("folder:z")
    calls = [
        (given, split, options.pop("num_classes"), options.pop("training"))
        for (given, split), options in opened
    ]
    assert [call[1:] for call in calls] == [
        ("test[:5]", 0, False),
        ("test[:5]", 0, True),
        ("val", 2, True),
        ("val", 2, False),
        ("", 0, False),
    ]
    keys = (*own, "exclude", "max_train_examples", "max_eval_examples", "source")
    seen = [tuple(given[key] for key in keys) for given, *_ in calls]
    assert seen[0] == seen[1] == ("x", ("3",), "path=a", "test[:5]", "list", 4, 7, "digits")
    assert seen[2] == seen[3] == ("", (), "", "", "", 0, 7, "tfds:y")
    assert seen[4] == ("", (), "", "", "", 0, 7, "folder:z")
    assert all(options == {"image_size": (4, 8), "channels": 5} for _, options in opened)


def test_what_stands_for_the_unreadable_has_the_form_of_the_labels(monkeypatch):
    recorded(monkeypatch, evaluation_data, "open_source", SETS)
    for own_classes, width in ((True, 2), (False, 7)):
        data = dataclasses.replace(
            make_data(on_error="skip"), num_classes=7, class_names=("even", "odd", *"abcde")
        )
        skipping = data.open(own_classes=own_classes).skipping
        assert skipping.label.shape == (width,)
        assert (skipping.image.shape, skipping.image.dtype) == ((4, 8, 5), "float32")


@pytest.mark.parametrize("source", [SETS, NUMBERS], ids=["sets", "numbers"])
def test_parts_say_of_themselves_what_their_source_says(source):
    kinds = ("multi_label", "numeric", "remote", "one_file_each", "class_names")
    of = [getattr(source, kind) for kind in kinds]
    parts = (View(source), Subset(source, np.array([2, 0])))
    for part in (*parts, Slices(((source, range(1, 3)), (source, range(1))))):
        assert [getattr(part, kind) for kind in kinds] == of
    plain = Slices(((Numbered(4), range(1, 4)), (Numbered(4), range(2))))
    assert [getattr(plain, kind) for kind in kinds] == [False] * 4 + [("even", "odd")]
    names = [plain.name_of(index) for index in range(5)]
    assert names == [f"numbered/{n}" for n in (1, 2, 3, 0, 1)]
    assert [example.name for example in plain.fetch([2, 3, 4, 0])] == [
        names[n] for n in (2, 3, 4, 0)
    ]


def test_only_training_leaves_examples_out(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "find_splits", lambda *_: {"train": lambda: Numbered(20)})
    (tmp_path / "list").write_text("numbered/3\n")
    data = tiny.get_config().data
    data.update(exclude=str(tmp_path / "list"), max_train_examples=18, max_eval_examples=7)
    shape = {"image_size": (4, 8), "channels": 1, "num_classes": 2}

    def names(**options):
        found: Source = registry.open_source(data, "train", **shape, **options)
        return {found.name_of(index) for index in range(len(found))}

    assert len(names(training=True)) == 18
    assert "numbered/3" not in names(training=True)
    assert len(names()) == 7
    data.max_eval_examples = 0
    assert len(names()) == 20


@pytest.mark.parametrize(("own_classes", "label"), [(False, 5), (True, 1)])
@pytest.mark.parametrize("training", [False, True])
def test_labels_are_the_models_whatever_is_done_with_them(
    monkeypatch, own_classes, label, training
):
    recorded(monkeypatch, evaluation_data, "open_source", Numbered(9))
    data = dataclasses.replace(
        make_data(), num_classes=7, class_names=("even", *"abcd", "odd", "e")
    )
    split = data.open(own_classes=own_classes, training=training)
    assert split.source[3].label == label


def test_parts_of_examples_with_several_classes_have_no_labels_at_hand():
    assert Slices(((SETS, range(2)),)).labels is None
    plain = Labelled(4, np.array([3, 2, 1, 0]))
    assert Slices(((plain, range(1, 4)), (plain, range(2)))).labels.tolist() == [2, 1, 0, 3, 2]
    assert Slices(((plain, range(2)), (Labelled(4), range(1)))).labels is None
    numbers = Slices(((NUMBERS, range(2, 3)), (NUMBERS, range(2)))).labels
    assert numbers.values.tolist() == [[5, 6], [1, 2], [3, 4]]


def test_numbers_to_predict_are_as_many_as_the_models(monkeypatch):
    recorded(monkeypatch, evaluation_data, "open_source", NUMBERS)
    for count in (2, 1, 3):
        data = dataclasses.replace(make_data(source="x:y"), num_classes=count)
        if count == 2:
            assert data.open().source is NUMBERS
            continue
        message = f"^x:y: the model predicts {count} numbers, the data has 2: even, odd"
        with pytest.raises(ClassesDifferError, match=message):
            data.open()
        assert data.open(own_classes=True).source is NUMBERS
