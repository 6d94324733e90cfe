"""Labels that are computed from a TFDS dataset's features, as VTAB defines them (arXiv 1910.04867).

`config.data.label` names one of `LABELS`, or any integer feature of the dataset.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Features = Mapping[str, Any]

CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)  # Metres; beyond the last: no vehicle.
KITTI_VEHICLES = 3  # Its first object types: car, van, truck.
NO_VEHICLE = 1000.0


class Label(NamedTuple):
    """A label that is computed from some of the features."""

    features: tuple[str, ...]
    num_classes: int
    compute: Callable[[Features], int]
    pixel_scale: int = 1  # What stored pixels are multiplied by.


def clevr_count(features: Features) -> int:
    """The number of objects, 3 to 10, from 0."""
    return len(features["objects"]["pixel_coords"]) - 3


def clevr_distance(features: Features) -> int:
    """The interval of the nearest object's distance to the camera."""
    nearest = min(depth for _, _, depth in features["objects"]["pixel_coords"])
    return interval(nearest, CLEVR_DISTANCES)


def kitti_distance(features: Features) -> int:
    """The interval of the nearest vehicle's distance; the last one if there is none."""
    objects = features["objects"]
    placed = zip(objects["type"], objects["location"], strict=True)
    distances = [location[2] for kind, location in placed if kind < KITTI_VEHICLES]
    return interval(min(distances, default=NO_VEHICLE), KITTI_DISTANCES)


def interval(value: float, starts: tuple[float, ...]) -> int:
    """The last interval that starts below `value`."""
    return int(np.flatnonzero(np.asarray(starts, np.float32) < np.float32(value))[-1])


def sixteenth(feature: str, steps: int) -> Callable[[Features], int]:
    """The one of 16 equal intervals that one of `steps` values lies in."""
    return lambda features: int(features[feature]) * 16 // steps


LABELS = {
    "clevr_count": Label(("objects",), 8, clevr_count),
    "clevr_distance": Label(("objects",), 6, clevr_distance),
    "kitti_distance": Label(("objects",), 4, kitti_distance),
    "dsprites_location": Label(
        ("label_x_position",), 16, sixteenth("label_x_position", 32), pixel_scale=255
    ),
    "dsprites_orientation": Label(
        ("label_orientation",), 16, sixteenth("label_orientation", 40), pixel_scale=255
    ),
}
