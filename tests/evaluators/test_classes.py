"""Data whose classes are not the model's: hand-made answers, mappings, and ImageNet's relatives."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.settings import make_setting, write_folder
from vit_jax.data.classes import ClassesDifferError
from vit_jax.errors import ConfigError, DataError, NonFiniteLossError
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.class_groups import make_groups, read_groups
from vit_jax.evaluators.imagenet import in_order_of_ids
from vit_jax.evaluators.judgements import answers, judge
from vit_jax.objectives.losses import LOSSES

MODEL = ("barber chair", "folding chair", "rocking chair", "bench", "mug", "cup")


def groups_of(restricted):
    pairs = [("Chair", name) for name in MODEL[:3]] + [("Mug", "mug")]
    return make_groups("f", pairs, ("Bed", "Chair", "Mug"), MODEL, 6, restricted=restricted)


def test_several_of_the_models_classes_are_one_of_the_datas():
    groups = groups_of(restricted=False)
    assert groups.owner.tolist() == [1, 1, 1, -1, 2, -1]
    assert groups.known.tolist() == [1, 2]
    logits = jnp.log(
        jnp.array(
            [
                [0.1, 0.1, 0.3, 0.2, 0.2, 0.1],  # A rocking chair: right.
                [0.2, 0.2, 0.1, 0.4, 0.05, 0.05],  # A bench, though chairs together are likelier.
                [0.1, 0.1, 0.1, 0.1, 0.35, 0.25],  # A mug, and is one.
                [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],  # Of a class that the model does not know.
                [0.1, 0.1, 0.1, 0.2, 0.1, 0.4],  # Of no class.
            ]
        )
    )
    labels = jnp.array([1, 1, 2, 0, -1])
    loss = LOSSES["softmax"]
    found = jax.jit(lambda *given: judge(*given, loss, groups))(logits, labels)
    assert found.hits[:, 0].tolist() == [True, False, True, False, True]
    assert found.counts.tolist() == [True, True, True, False, False]
    np.testing.assert_allclose(found.loss[:3], -np.log([0.5, 0.5, 0.35]), rtol=1e-5)
    told = answers(logits, {"label": labels, "index": labels}, "softmax", groups)
    assert told.prediction.tolist() == [1, -1, 2, 1, -1]
    np.testing.assert_allclose(told.probability, [0.5, 0.4, 0.35, 0.7, 0.4], rtol=1e-5)
    np.testing.assert_allclose(told.margin[:3], [0.3, 0.1, 0.05], atol=1e-6)


def test_with_a_restriction_others_are_never_predicted():
    groups = groups_of(restricted=True)
    logits = jnp.log(jnp.array([[0.2, 0.1, 0.1, 0.4, 0.15, 0.05]]))
    found = judge(logits, jnp.array([1]), LOSSES["softmax"], groups)
    assert found.hits[0].tolist() == [True, False, True, True, False], "the last two are none"
    np.testing.assert_allclose(found.loss, -np.log(0.4 / 0.55), rtol=1e-5)
    told = answers(logits, {"label": jnp.array([1]), "index": 0}, "softmax", groups)
    np.testing.assert_allclose(told.probability, 0.4 / 0.55, rtol=1e-5)
    np.testing.assert_allclose(told.margin, 0.25 / 0.55, rtol=1e-5)
    assert told.prediction.tolist() == [1]


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ("Chair\tsofa\n", ClassesDifferError, "'Chair' should be the model's class 'sofa', which"),
        ("Chair\tmug\nMug\tmug\n", ConfigError, "'mug' counts as 'Chair' and as 'Mug'"),
        ("Sofa\tbench\n", ConfigError, "none of its lines begins with a class of the data"),
        ("Chair\n", ConfigError, "line 1 is 'Chair': expected the data's name"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, lines, error, message):
    (tmp_path / "map").write_text(lines)
    with pytest.raises(error, match=message):
        read_groups(str(tmp_path / "map"), "classes", ("Chair", "Mug"), MODEL, 6, restricted=True)


def test_a_files_lines_may_repeat_a_class_of_the_data(tmp_path):
    lines = ["Chair\tbarber chair", "Chair\tfolding chair", "Lamp\tdesk lamp"]
    (tmp_path / "map").write_text("\n".join([*lines, lines[0]]))
    found = read_groups(
        str(tmp_path / "map"), "classes", ("Bed", "Chair"), MODEL, 6, restricted=False
    )
    assert found.owner.tolist() == [1, 1, -1, -1, -1, -1]
    assert (found.num_classes, found.restricted) == (2, False)


# ------------------------------------------------------------------------------ ImageNet's relatives

IDS = tuple(f"n0000000{number}" for number in range(1, 8))  # Seven classes stand for ImageNet's.
CLASS_OF_PIXEL = {20 * number: number for number in range(7)}


def numbers_of(text, tmp_path, names=IDS):
    """What an evaluator measures of a model that reads a class from an image's brightness."""
    setting, params = make_setting(f"folder:{tmp_path}/data", names, brightness_step=20)
    (evaluator,) = read_evaluators(text)
    numbers = evaluator.bind(setting)(params, {}).numbers
    assert set(evaluator.metrics(setting)) == numbers.keys()
    return numbers


def test_a_and_r_restrict_the_answer_to_their_own_classes(tmp_path):
    # The model takes the third image for class 4, which the data does not have.
    write_folder(tmp_path / "data/val", {IDS[2]: [40, 40], IDS[5]: [80, 100]})
    free = numbers_of("imagenet_sketch", tmp_path)
    assert (free["accuracy"], free["count"]) == (0.75, 4)
    for name in ("imagenet_a", "imagenet_r"):
        found = numbers_of(name, tmp_path)
        assert (found["accuracy"], found["count"]) == (1.0, 4), "the next of them is class 5"
    (tmp_path / "data/val" / IDS[2]).rename(tmp_path / "data/val/fish")
    (tmp_path / "map").write_text(f"fish\t{IDS[2]}\n{IDS[5]}\t{IDS[5]}\n")
    for name in ("imagenet_r", "classification"):
        found = numbers_of(f"{name}(classes='{tmp_path}/map')", tmp_path)
        assert (found["accuracy"], found["count"]) == (1.0, 4), name


def test_v2_has_numbers_for_names_in_the_order_of_ids(tmp_path):
    # The last of class 2 is taken for class 3, which the data does not have: any may be predicted.
    write_folder(tmp_path / "data/val", {"0": [0], "2": [40, 55], "6": [0]})
    assert numbers_of("imagenet_v2", tmp_path)["accuracy"] == pytest.approx(2 / 4)
    assert numbers_of("imagenet_v2", tmp_path, ())["accuracy"] == pytest.approx(2 / 4)
    turned = IDS[::-1]  # A model whose classes are in another order: brightness 0 is its n00000007.
    assert numbers_of("imagenet_v2", tmp_path, turned)["accuracy"] == pytest.approx(1 / 4)
    (tmp_path / "data/val/6").rename(tmp_path / "data/val/7")
    with pytest.raises(ClassesDifferError) as error:
        numbers_of("imagenet_v2", tmp_path)
    assert str(error.value).startswith(
        f"imagenet_v2: folder:{tmp_path}/data: '0' should be the model's class '0', which is none of "
        "its 7; the first is 'n00000001'."
    )
    (tmp_path / "data").rename(tmp_path / "other")
    write_folder(tmp_path / "data/val", {"0": [0], "1": [0]})
    text = f"imagenet_v2(name='two', source='folder:{tmp_path}/other')"
    with pytest.raises(ClassesDifferError, match=f"^two: folder:{tmp_path}/other: '0' should be"):
        numbers_of(text, tmp_path)


def test_wordnet_ids_are_whole_names():
    assert in_order_of_ids(("n00000003", "n00000001"), 2).tolist() == [1, 0]
    for names in (("n00000003", "n00000001x"), ("n3", "n1"), ()):
        assert in_order_of_ids(names, 2).tolist() == [0, 1]


def test_objectnet_needs_its_file_and_leaves_out_what_that_does_not_name(tmp_path, caplog):
    # The third chair is taken for class 3, which is none of the data's: any may be predicted.
    write_folder(tmp_path / "data/val", {"Bed": [0], "Chair": [20, 40, 55], "Mug": [80]})
    with pytest.raises(ConfigError, match=r"classes='FILE'.*objectnet_to_imagenet_1k"):
        numbers_of("objectnet", tmp_path)
    lines = [("Chair", IDS[1]), ("Chair", IDS[2]), ("Mug", IDS[4]), ("Lamp", IDS[6])]
    (tmp_path / "map").write_text("".join(f"{a}\t{b}\n" for a, b in lines))
    text = f"objectnet(classes='{tmp_path}/map', rows='{tmp_path}/rows.csv')"
    with caplog.at_level("INFO", logger="vit_jax"):
        found = numbers_of(text, tmp_path)
    assert "1 of the data's 3 classes are none of the model's" in caplog.text
    assert (found["count"], found["accuracy"]) == (4, 0.75)
    assert 0 < found["loss"] < 100, "an image that is left out would have an infinite one"
    _, *rows = csv.reader((tmp_path / "rows.csv").open())
    assert sorted((label, prediction) for _, label, prediction, *_ in rows) == [
        *[("Chair", ""), ("Chair", "Chair"), ("Chair", "Chair"), ("Mug", "Mug")]
    ]
    setting, params = make_setting(f"folder:{tmp_path}/data", IDS)
    (evaluator,) = read_evaluators(text)
    with pytest.raises(NonFiniteLossError, match="logits of 5 of 5 images"):
        evaluator.bind(setting)({**params, "sharpness": np.nan * params["sharpness"]}, {})


@pytest.mark.parametrize("shift", [0, 2])
def test_real_takes_any_of_an_images_classes_and_leaves_out_those_without(tmp_path, shift):
    """Numbers are those of the classes in the order of their ids, whatever the model's."""
    names = ["ILSVRC2012_val_00000003", "ILSVRC2012_val_00000001", "ILSVRC2012_val_00000002"]
    write_folder(tmp_path / "data/val", {IDS[0]: [40], IDS[3]: [60, 80]}, names)
    sets = [[(number + shift) % 7 for number in one] for one in ([1, 3], [], [0, 5], [3])]
    (tmp_path / "real.json").write_text(json.dumps(sets))
    names = IDS[shift:] + IDS[:shift]
    text = f"imagenet_real(labels='{tmp_path}/real.json', per_class=True)"
    found = numbers_of(text, tmp_path, names)
    assert {f"accuracy_of/{name}" for name in IDS} < found.keys()
    # Image 1, brightness 60, is class 3 of [1, 3]; image 2 has none; image 3 is 2, not in [0, 5].
    assert (found["count"], found["accuracy"]) == (2, 0.5)
    assert "loss" not in found


def test_real_knows_the_sets_of_the_others_whichever_is_left_out(tmp_path):
    names = [f"ILSVRC2012_val_0000000{number}" for number in (1, 2, 3)]
    write_folder(tmp_path / "data/val", {IDS[0]: [20, 40], IDS[1]: [60]}, names)
    for gap in range(3):
        sets = [[1], [2, 5], [3, 4, 6]]
        sets[gap] = []
        (tmp_path / "real.json").write_text(json.dumps(sets))
        found = numbers_of(f"imagenet_real(labels='{tmp_path}/real.json')", tmp_path)
        assert (found["count"], found["accuracy"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1], [7]]", "classes from 0 to 6"),
        ('{"1": [2]}', "expected a list"),
        ("no", "cannot be read"),
        ("[[1]]", "from 00000001 to 00000001 in the name"),
        ("[[1], [2], [3]]", "00000000.png: expected ILSVRC2012_val_ and a number from 00000001"),
    ],
)
def test_labels_of_another_form_are_refused(tmp_path, content, message):
    names = ["ILSVRC2012_val_00000002", "ILSVRC2012_val_00000000"]
    write_folder(tmp_path / "data/val", {IDS[0]: [0], IDS[1]: [0]}, names)
    (tmp_path / "real.json").write_text(content)
    with pytest.raises((ConfigError, DataError), match=message):
        numbers_of(f"imagenet_real(labels='{tmp_path}/real.json')", tmp_path)
