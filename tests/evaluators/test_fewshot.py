"""Few-shot accuracy: recorded values, both forms' weights, the drawing, and memory."""

import tracemalloc
import types

import numpy as np
import pytest

from tests.runs import GOLDEN
from vit_jax.errors import DataError
from vit_jax.evaluators import fewshot
from vit_jax.evaluators.features import Features

RECORDED = np.load(GOLDEN / "fewshot.npz")
SHOTS = {"primal": 10, "dual": 5}  # All the training images there are.
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def problem(num_train, width, classes=5, seed=0):
    """Noisy clusters: features and labels to train and to test on."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, width))
    sets = []
    for count in (num_train, 200):
        labels = np.arange(count) % classes
        noise = generator.normal(size=(count, width))
        sets += [np.float32(centres[labels] + 1.5 * noise), labels]
    return sets


@pytest.mark.parametrize("form", SHOTS)
@pytest.mark.parametrize("l2", [2.0**-10, 1.0, 2.0**10, 2.0**20])
def test_accuracies_are_the_recorded_ones(form, l2):
    arrays = [RECORDED[f"{form}/{name}"] for name in ARRAYS]
    found = fewshot.accuracy(*arrays, shots=SHOTS[form], seed=0, l2=l2)
    assert found == pytest.approx(float(RECORDED[f"{form}/accuracy_l2_{l2:g}"]), abs=1e-6)


@pytest.mark.parametrize(("num_train", "width"), [(20, 64), (60, 16), (17, 16), (16, 16)])
def test_both_forms_have_the_weights_of_ridge_regression(num_train, width):
    features, labels, *_ = problem(2 * num_train, width)
    indices = np.arange(1, 2 * num_train, 2)
    labels = labels[indices]
    standardization = fewshot.Standardization.of(features, indices)
    primal, dual = (
        solve(standardization.chunks(features, indices), labels, 5, 1024.0)
        for solve in (fewshot.solve_primal, fewshot.solve_dual)
    )
    np.testing.assert_allclose(primal, dual, rtol=0, atol=1e-6 * np.abs(primal).max())
    exact = np.float64(features[indices])
    rows = (exact - exact.mean(0)) / (exact.std(0) + 1e-5)
    rows = np.hstack([rows, np.full((num_train, 1), 100.0)])
    targets = np.where(labels[:, None] == np.arange(5), 1.0, -1.0)
    right = rows.T @ targets
    expected = np.linalg.solve(rows.T @ rows + 1024 * np.eye(width + 1), right)
    np.testing.assert_allclose(primal, expected, rtol=0, atol=1e-9)


def test_the_score_is_the_mean_over_drawings_with_their_deviation():
    train, labels, test, wanted = problem(60, 16)
    each = [
        fewshot.accuracy(train, labels, test, wanted, shots=2, seed=seed, l2=1.0)
        for seed in range(3)
    ]
    assert len(set(each)) == 3
    evaluator = fewshot.FewShot(shots=(2,), seeds=3, l2=1.0)
    found = evaluator.score(Features(train, labels), Features(test, wanted))
    assert found == pytest.approx({"2_shot": np.mean(each), "2_shot_std": np.std(each)})


def test_the_smaller_matrix_is_solved_and_gives_the_same_predictions(monkeypatch):
    used = []
    for name in ("solve_primal", "solve_dual"):
        solve = getattr(fewshot, name)
        monkeypatch.setattr(
            fewshot, name, lambda *a, solve=solve, name=name: used.append(name) or solve(*a)
        )
    for num_train, width in ((15, 16), (20, 16)):
        fewshot.accuracy(*problem(num_train, width), shots=num_train // 5, seed=0)
    assert used == ["solve_dual", "solve_primal"]


def test_shots_are_the_first_of_a_permutation_of_each_class_ascending():
    labels = np.array([7, 2, 7, 2, 2, 7, 7, 9, 9])
    generator = np.random.default_rng(3)
    expected = [generator.permutation(np.flatnonzero(labels == c))[:2] for c in (2, 7, 9)]
    np.testing.assert_array_equal(fewshot.draw_shots(labels, 2, 3), np.concatenate(expected))
    others = fewshot.draw_shots(labels, 2, 4)
    assert not np.array_equal(others, np.concatenate(expected))


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_chunks_change_nothing(monkeypatch, size):
    train, labels, test, test_labels = problem(60, 16)
    expected = fewshot.fit(train, np.arange(60), labels, 5, 1024.0)
    monkeypatch.setattr(fewshot, "CHUNK_ROWS", size)
    found = fewshot.fit(train, np.arange(60), labels, 5, 1024.0)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found.predict(test), expected.predict(test))
    del test_labels


def test_labels_need_not_begin_at_0_nor_follow_each_other():
    train, labels, test, test_labels = problem(60, 16)
    expected = fewshot.accuracy(train, labels, test, test_labels, shots=3, seed=1)
    moved = np.array([3, 10, 11, 500, 501])
    arrays = (train, moved[labels], test, moved[test_labels])
    assert fewshot.accuracy(*arrays, shots=3, seed=1) == expected


def test_a_class_with_fewer_images_than_shots_is_an_error():
    train, labels, test, test_labels = problem(58, 16)  # 12, 12, 12, 11, 11 images.
    with pytest.raises(DataError, match=r"2 of 5 classes have fewer .* 12 shots, class 3 11"):
        fewshot.accuracy(train, labels, test, test_labels, shots=12, seed=0)
    lacking = labels != 4
    with pytest.raises(DataError, match="class 4 has 0 training images"):
        fewshot.accuracy(train[lacking], labels[lacking], test, test_labels, shots=1, seed=0)
    lacking = test_labels != 4  # To be measured on, no class is needed.
    found = fewshot.accuracy(train, labels, test[lacking], test_labels[lacking], shots=9, seed=0)
    assert found > 0.3
    source = types.SimpleNamespace(labels=np.array([0, 0, 0]), class_names=("a", "b"))
    with pytest.raises(DataError, match=r"1 of 2 classes have fewer .* 1 shots, class 'b' 0"):
        fewshot.FewShot(shots=(1,)).check(source)


def test_the_defaults_are_big_visions():
    """Some of `evaluators/fewshot_lsr.py`: λ 2¹⁰, 1, 5, 10 and 25 shots, three drawings."""
    evaluator = fewshot.FewShot()
    assert (evaluator.l2, evaluator.shots, evaluator.seeds) == (2**10, (1, 5, 10, 25), 3)
    assert evaluator.metrics(None) == tuple(
        f"{shots}_shot{end}" for shots in (1, 5, 10, 25) for end in ("", "_std")
    )


def test_constant_features_do_not_matter():
    train, labels, test, test_labels = problem(60, 16)
    expected = fewshot.accuracy(train, labels, test, test_labels, shots=12, seed=0)
    train, test = (np.hstack([x, np.full((len(x), 1), 3, np.float32)]) for x in (train, test))
    assert fewshot.accuracy(train, labels, test, test_labels, shots=12, seed=0) == expected


def test_memory_does_not_grow_with_the_images():
    """As if of ImageNet: 1.28 million images, whose features of 16 numbers alone take 164 MB in float64."""
    images, width, classes = 1_280_000, 16, 10
    block = np.random.default_rng(0).normal(size=(classes, width)).astype(np.float32)
    features = np.broadcast_to(block, (images // classes, classes, width))

    class Repeated:
        """The rows of `block` over and over, which take no memory."""

        shape = (images, width)

        def __len__(self):
            return images

        def __getitem__(self, rows):
            return features[rows // classes, rows % classes]

    labels = np.arange(images, dtype=np.int32) % classes
    indices = np.arange(images)
    tracemalloc.start()
    try:
        classifier = fewshot.fit(Repeated(), indices, labels, classes, 1024.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * (4 * (width + 1) ** 2 + 4 * fewshot.CHUNK_ROWS * (width + 1)) + 2**20
    np.testing.assert_array_equal(classifier.predict(block), np.arange(classes))
