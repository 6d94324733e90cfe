"""VTAB's labels, at the values where an interval ends."""

import numpy as np
import pytest

from vit_jax.data.sources.labels import LABELS


def clevr(*depths):
    return {"objects": {"pixel_coords": [np.float32([5, 7, depth]) for depth in depths]}}


def kitti(*objects):
    kinds, depths = zip(*objects, strict=True) if objects else ((), ())
    return {"objects": {"type": kinds, "location": [np.float32([1, 2, z]) for z in depths]}}


@pytest.mark.parametrize(
    ("name", "features", "label"),
    [
        ("clevr_count", clevr(9, 9, 9), 0),
        ("clevr_count", clevr(*range(10)), 7),
        ("clevr_distance", clevr(12, 7.9, 30), 0),
        ("clevr_distance", clevr(8.0), 0),  # Only what lies beyond a start is in its interval.
        ("clevr_distance", clevr(8.01), 1),
        ("clevr_distance", clevr(9.9, 10.5), 4),
        ("clevr_distance", clevr(10.1), 5),
        ("kitti_distance", kitti((0, 7.5)), 0),
        ("kitti_distance", kitti((1, 30.0), (2, 8.5), (3, 1.0)), 1),  # 3: a pedestrian.
        ("kitti_distance", kitti((2, 20.5)), 2),
        ("kitti_distance", kitti((3, 1.0)), 3),
        ("kitti_distance", kitti(), 3),
        ("dsprites_location", {"label_x_position": 1}, 0),
        ("dsprites_location", {"label_x_position": 31}, 15),
        ("dsprites_orientation", {"label_orientation": 2}, 0),
        ("dsprites_orientation", {"label_orientation": 3}, 1),  # 2.5 steps an interval.
        ("dsprites_orientation", {"label_orientation": 39}, 15),
    ],
)
def test_labels(name, features, label):
    assert LABELS[name].compute(features) == label
    assert 0 <= label < LABELS[name].num_classes


# The ends of the intervals in task_adaptation's clevr.py:50 and kitti.py:101, at ed9b417.
@pytest.mark.parametrize(
    ("name", "features", "ends"),
    [
        ("clevr_distance", clevr, (8.0, 8.5, 9.0, 9.5, 10.0)),
        ("kitti_distance", lambda depth: kitti((0, depth)), (8.0, 20.0, 999.0)),
    ],
)
def test_an_interval_holds_its_end(name, features, ends):
    label = LABELS[name].compute
    beyond = np.nextafter(np.float32(ends), np.float32(np.inf))
    assert [label(features(end)) for end in ends] == list(range(len(ends)))
    assert [label(features(depth)) for depth in beyond] == list(range(1, len(ends) + 1))
