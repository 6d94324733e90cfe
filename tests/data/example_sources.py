"""Sources that tests read from, and how these become batches."""

import dataclasses

import numpy as np

from vit_jax.data.loading.chunks import Loading
from vit_jax.data.loading.order import Order
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


def loading(source, transform, batch_size, seed, block=1, **options):
    """Batches of the source's examples, in an order of their own."""
    return Loading(source, transform, Order(len(source), seed, block), batch_size, **options)
