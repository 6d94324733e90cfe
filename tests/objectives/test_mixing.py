"""Mixup and CutMix: against NumPy, on any batch, and on several devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.states import mesh_of
from vit_jax.devices import sharding
from vit_jax.objectives.mixing import (
    FORMS,
    Mixing,
    cutmix_box,
    describe,
    mixed_images,
    mixed_targets,
    pair,
)

CLASSES = 8
MIXUP = {"mixup_alpha": 0.8}
CUTMIX = {"cutmix_alpha": 1.0}
BOTH = {**MIXUP, **CUTMIX}
ROWS, HEIGHT, WIDTH = 7, 13, 17


def batch_of(rows, height=HEIGHT, width=WIDTH):
    """Noise with the labels 0, 1, 2, …: neighbours differ."""
    images = np.random.default_rng(0).integers(0, 256, (rows, height, width, 1), np.uint8)
    labels = np.arange(rows, dtype=np.int32) % CLASSES
    return {"image": images, "label": labels, "mask": np.ones(rows, bool)}


def one_hot(labels):
    return jax.nn.one_hot(labels, CLASSES)


@functools.partial(jax.jit, static_argnums=2)
def mix_each(batch, seeds, form):
    """(images float32, targets, what `pair` added) for each seed, by mixup or by CutMix."""

    def mix(seed):
        paired = pair(batch, 0, seed, Mixing(form=form, **BOTH))
        return mixed_images(paired), mixed_targets(paired, one_hot), paired

    return jax.vmap(mix)(seeds)


def mixes(batch, form, kind):
    """(seed, images, targets, what `pair` added) of those of 40 seeds that give this kind."""
    images, targets, paired = jax.tree.map(np.asarray, mix_each(batch, np.arange(40), form))
    found = [
        (seed, images[seed], targets[seed], {name: x[seed] for name, x in paired.items()})
        for seed in np.flatnonzero((paired["opacity"].max(1) == 1) == (kind == "cutmix"))
    ]
    assert len(found) > 8
    return found


@functools.cache
def draws(**values):
    """What is drawn for each of 4000 steps: λ, the box where it is whole, the partners."""
    batch = jax.tree.map(jnp.asarray, batch_of(4, 40, 40))
    config = Mixing(**values)

    @jax.jit
    @jax.vmap
    def draw(step):
        paired = pair(batch, step, 0, config)
        return paired["opacity"][0], paired["box"][0], paired["partner_label"]

    return [np.asarray(x) for x in draw(np.arange(STEPS))]


STEPS = 4_000
LIKE_BIG_VISION = {"form": "big_vision", "mixup_alpha": 1.6}
LIKE_DEIT = {"form": "deit", **MIXUP}
APART = {"form": "deit", "mixup_alpha": 100.0, **CUTMIX}
APART |= {"probability": 0.4, "cutmix_probability": 0.25}


def areas(box):
    return (box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2]) / 1600


# ---------------------------------------------------------------------------- mixup


def test_nothing_is_mixed_unless_asked_for():
    batch = batch_of(4)
    for values in ({}, {"mixup_alpha": 0.2, "probability": 0.0}):
        paired = pair(batch, 0, 0, Mixing(**values))
        assert paired.keys() == batch.keys()
        np.testing.assert_array_equal(mixed_images(paired), batch["image"])
        targets = mixed_targets(paired, one_hot)
        np.testing.assert_array_equal(targets, np.eye(CLASSES)[batch["label"]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, ROWS])
def test_mixup_blends_images_and_targets_alike(form, rows):
    batch = batch_of(rows)
    of_rows = np.eye(CLASSES)[batch["label"]]
    for _, images, targets, paired in mixes(batch, form, "mixup"):
        partners, share = paired["partner_label"], float(paired["opacity"][0])
        assert (paired["opacity"] == share).all()
        if form == "big_vision":
            assert share <= 0.5
            np.testing.assert_array_equal(partners, np.roll(batch["label"], 1))
        else:
            assert sorted(partners) == sorted(batch["label"])
        assert images.dtype == targets.dtype == np.float32
        expected = (1 - share) * batch["image"] + share * batch["image"][partners]
        np.testing.assert_allclose(images, expected, atol=1e-3)
        expected = (1 - share) * of_rows + share * np.eye(CLASSES)[partners]
        np.testing.assert_allclose(targets, expected, atol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        LIKE_BIG_VISION,
        LIKE_DEIT,
        # Other values of the same two.
        pytest.param({"form": "big_vision", "mixup_alpha": 0.1}, marks=pytest.mark.slow),
        pytest.param({"form": "deit", "mixup_alpha": 0.4}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_shares_follow_the_beta_distribution(values):
    found = 1 - draws(**values)[0]
    alpha = values["mixup_alpha"]
    expected = np.random.default_rng(0).beta(alpha, alpha, 50_000)
    if values["form"] == "big_vision":
        expected = np.maximum(expected, 1 - expected)
    points = np.linspace(0.01, 0.99, 99)
    below, expected = ((values[:, None] < points).mean(0) for values in (found, expected))
    np.testing.assert_allclose(below, expected, atol=0.06)


def test_without_smoothing_a_row_has_its_two_classes_and_no_other():
    """Mixup brings no label smoothing of its own."""
    for kind in ("mixup", "cutmix"):
        for _, _, targets, paired in mixes(batch_of(ROWS), "big_vision", kind):
            top, bottom, left, right = paired["box"][0]
            parts = 0 < (bottom - top) * (right - left) <= HEIGHT * WIDTH - (kind == "cutmix")
            np.testing.assert_array_equal((targets > 0).sum(1), 1 + parts)
            np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)


# ---------------------------------------------------------------------------- CutMix


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, ROWS])
def test_cutmix_weighs_targets_by_the_pasted_area(form, rows):
    """Row i is grey i: each pixel shows whose it is."""
    values = np.arange(1, rows + 1, dtype=np.uint8)
    images = np.broadcast_to(values[:, None, None, None], (rows, HEIGHT, WIDTH, 1))
    batch = {"image": images, "label": np.int32(values - 1), "mask": np.ones(rows, bool)}
    pasted_areas = set()
    for _, mixed, targets, paired in mixes(batch, form, "cutmix"):
        for row in range(rows):
            own, partner = row + 1, int(paired["partner_label"][row]) + 1
            assert set(np.unique(mixed[row])) <= {own, partner}
            pasted = (mixed[row] == partner).mean()
            expected = np.zeros(CLASSES)
            expected[own - 1] += 1 - pasted
            expected[partner - 1] += pasted
            # Equal but for float32's last bit.
            np.testing.assert_allclose(targets[row], expected, rtol=3e-7)
        pasted_areas.add(float(pasted))
    assert rows == 1 or len(pasted_areas) > 5


@pytest.mark.parametrize("share", [0.0, 0.04, 0.3, 0.5, 1.0])
def test_the_rectangle_is_of_the_share_anywhere_and_cut_at_the_border(share):
    height, width = 40, 60
    keys = jax.random.split(jax.random.key(0), 4_000)
    boxes = np.asarray(boxes_of(keys, share, height, width))
    top, bottom, left, right = boxes.T
    rows, columns = int(height * share**0.5 + 1e-6), int(width * share**0.5 + 1e-6)
    assert ((top >= 0) & (top <= bottom) & (bottom <= height)).all()
    assert ((left >= 0) & (left <= right) & (right <= width)).all()
    for start, end, side, cut in ((top, bottom, height, rows), (left, right, width, columns)):
        whole = (start > 0) & (end < side)
        assert (end - start)[whole].tolist() == [cut] * whole.sum()
        assert (end - start).max() == cut
        # By timm's formula, for every centre.
        centres = np.arange(side)
        starts = np.clip(centres - cut // 2, 0, side)
        ends = np.clip(centres + (cut + 1) // 2, 0, side)
        assert set(zip(start, end, strict=True)) == set(zip(starts, ends, strict=True))
        assert abs((end - start).mean() - (ends - starts).mean()) < 0.5


@functools.partial(jax.jit, static_argnums=(2, 3))
def boxes_of(keys, share, height, width):
    return jax.vmap(lambda key: cutmix_box(key, share, height, width))(keys)


def test_cutmix_shares_are_uniform_but_for_the_border():
    found = 1 - areas(draws(form="big_vision", **CUTMIX)[1])
    assert found.min() >= 0.5 - 0.05  # λ ≥ 1/2; the sides are rounded down to whole pixels.
    assert found.max() <= 1


# ---------------------------------------------------------------------------- independence


def assert_uncorrelated(*values):
    """Within 4 standard errors."""
    correlations = np.corrcoef(values)[np.triu_indices(len(values), 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(len(values[0]))


@pytest.mark.parametrize("values", [LIKE_BIG_VISION, LIKE_DEIT], ids=FORMS)
def test_what_is_drawn_for_mixup_is_independent_from_step_to_step(values):
    opacity, _, partners = draws(**values)
    assert len(np.unique(opacity)) > 3_990
    assert_uncorrelated(opacity[1:], opacity[:-1])
    if values is LIKE_DEIT:  # One row's partner: itself and the others are as likely.
        assert_uncorrelated(opacity[1:], partners[1:, 0], partners[:-1, 0])
        counts = np.bincount(partners[:, 0])
        np.testing.assert_allclose(counts, 1_000, atol=4 * np.sqrt(4_000 * 3 / 16))
        assert len(np.unique(partners, axis=0)) == 24


def test_runs_of_other_seeds_mix_in_other_proportions():
    found = mixes(batch_of(ROWS), "big_vision", "mixup")
    opacities = {float(paired["opacity"][0]) for *_, paired in found}
    assert len(opacities) == len(found)


def test_the_rectangles_places_and_size_are_independent_from_step_to_step():
    _, box, partners = draws(form="deit", **CUTMIX)
    top, bottom, left, right = box.T
    inside = (top > 0) & (bottom < 40) & (left > 0) & (right < 40)  # The centre is known there.
    height, y, x = ((v[inside]) for v in (bottom - top, top + bottom, left + right))
    assert inside.sum() > 500
    assert_uncorrelated(height, y, x, partners[inside, 0])
    assert_uncorrelated(y[1:], y[:-1])
    assert_uncorrelated(height[1:], height[:-1])


def kinds(opacity, box):
    """The shares of steps without mixing, with mixup and with CutMix."""
    mixed, whole = opacity > 0, areas(box) == 1
    return [np.mean(kind) for kind in (~mixed, mixed & whole, mixed & ~whole)]


def test_whether_how_and_how_much_is_mixed_are_independent():
    """λ is as likely above 1/2 as below, whether and however it is used."""
    opacity, box, _ = draws(**APART)
    np.testing.assert_allclose(kinds(opacity, box), [0.6, 0.3, 0.1], atol=4 * 0.5 / np.sqrt(STEPS))
    mixed, cuts = opacity > 0, areas(box) < 1
    of_mixed = cuts[mixed].mean()  # Some rectangles are the whole image.
    assert abs(of_mixed - 0.25) < 4 * 0.5 / np.sqrt(mixed.sum()) + 0.02
    blended = opacity[mixed & ~cuts & (opacity < 1)]
    standard_error = 0.5 / np.sqrt(len(blended))  # At most, of what is in [0, 1].
    assert abs(blended.mean() - 0.5) < 4 * standard_error
    assert abs((blended < 0.5).mean() - 0.5) < 4 * standard_error


def test_each_kind_has_its_own_alpha():
    """λ of Beta(100, 100) lies near 1/2, of Beta(1, 1) anywhere."""
    opacity, box, _ = draws(**APART)
    blended = (opacity > 0) & (opacity < 1)
    assert blended.sum() > 100
    assert np.abs(opacity[blended] - 0.5).max() < 0.2
    found = areas(box)[opacity == 1]
    # With 100 for both none is: of half the area at least a quarter is inside, an eighth of all.
    assert np.mean(np.abs(found - 0.5) > 0.4) > 0.05


# ---------------------------------------------------------------------------- how often


def test_one_kind_alone_is_always_that_kind():
    np.testing.assert_allclose(kinds(*draws(**LIKE_DEIT)[:2]), [0, 1, 0], atol=0.01)
    found = kinds(*draws(form="deit", **CUTMIX)[:2])
    assert found[0] == 0
    assert found[1] < 0.05  # A rectangle may be the whole image.


def test_it_is_described_in_words():
    assert describe(Mixing()) == []
    assert describe(Mixing(mixup_alpha=0.2)) == [
        "mixup(alpha=0.2): blended with the row before, in 100% of the batches, as in big_vision"
    ]
    in_half = [line for line in describe(Mixing(**BOTH)) if "in 50% of the batches" in line]
    assert len(in_half) == 2
    assert describe(Mixing(form="deit", **BOTH, cutmix_probability=0.25, probability=0.8)) == [
        "mixup(alpha=0.8): blended with a random row, in 60% of the batches, as in deit",
        "cutmix(alpha=1.0): a rectangle of a random row laid over, in 20% of the batches, as in deit",
    ]


# ---------------------------------------------------------------------------- padding and devices


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_padding_is_never_mixed_into_an_example(form, kind):
    batch = batch_of(ROWS)
    batch["mask"][4:] = False
    batch["image"][4:], batch["label"][4:] = 0, 6
    other = {**batch, "image": batch["image"].copy(), "label": batch["label"].copy()}
    other["image"][4:], other["label"][4:] = 255, 5
    images_of_other, targets_of_other, _ = mix_each(other, np.arange(40), form)
    for seed, images, targets, paired in mixes(batch, form, kind):
        np.testing.assert_array_equal(images[:4], images_of_other[seed][:4])
        np.testing.assert_array_equal(targets[:4], targets_of_other[seed][:4])
        np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)
        alone = paired["partner_label"][:4] == 6
        np.testing.assert_array_equal(images[:4][alone], batch["image"][:4][alone])


@pytest.mark.parametrize(
    ("form", "axes"),
    [("big_vision", {"data": 8}), ("deit", {"data": 2, "fsdp": 2, "tensor": 2})],
)
def test_eight_devices_mix_as_one_does(form, axes):
    batch = batch_of(16)
    config = Mixing(form=form, **BOTH)
    place = sharding.batch_sharding(mesh_of(8, **axes))

    @jax.jit
    def run(batch, seed):
        paired = pair(batch, seed, 0, config)
        return mixed_images(paired), mixed_targets(paired, one_hot)

    for seed in range(4):
        expected = run(batch, seed)
        found = run(jax.device_put(batch, place), seed)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_neighbours_are_found_without_gathering_the_batch():
    """On a pod, a gathered batch would be the largest transfer of the step."""
    batch = jax.device_put(batch_of(64), sharding.batch_sharding(mesh_of(8, data=8)))
    config = Mixing(**BOTH)
    compiled = jax.jit(lambda batch: pair(batch, 0, 0, config)).lower(batch).compile()
    program = compiled.as_text()
    assert "collective-permute" in program
    assert "all-gather" not in program
    assert compiled.output_shardings["partner_image"].spec == PartitionSpec(sharding.BATCH_AXES)
