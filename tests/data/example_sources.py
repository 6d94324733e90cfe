"""Sources that tests read from."""

import dataclasses

import numpy as np

from vit_jax.data.sources.examples import Example, Source


@dataclasses.dataclass(frozen=True)
class Numbered(Source):
    """Images that hold their index."""

    size: int
    class_names = ("even", "odd")

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = np.full((1, 1, 1), index % 256, np.uint8)
        return Example(image, index % 2, self.name_of(index))

    def name_of(self, index):
        return f"numbered/{index}"
