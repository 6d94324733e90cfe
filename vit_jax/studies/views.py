"""What a study's figures show on their horizontal axis: a `View` each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from vit_jax.studies.runs import IMAGES_PER_SECOND

if TYPE_CHECKING:
    from vit_jax.studies.definition import Cell, Study

EXAFLOPS, EXAMPLES, EPOCHS = "train/exaflops", "train/examples", "train/epoch"
MARKS = "Points are means over seeds, bands reach from the lowest to the highest."
Position = Callable[["Study", "Cell", Mapping[str, float]], float | None]


class View(NamedTuple):
    """A figure of a study: each metric against something.

    Attributes:
      name: of its files.
      title, text: of its section.
      label: of the horizontal axis, with its unit.
      position: (study, cell, numbers of a record) -> where it stands on that axis; None: it does not.
      by_family: a line for each family of models, else for each model and schedule.
      every_record: a cell has a point for each of its evaluations, else for the last.
      scale: of the horizontal axis, "log" or "linear".
    """

    name: str
    title: str
    text: str
    label: str
    position: Position
    by_family: bool = False
    every_record: bool = False
    scale: str = "log"

    def lines(self, cell: Cell) -> tuple[str, ...]:
        """The names of the lines that a cell stands on."""
        return cell.families if self.by_family else (cell.name,)


def size_of(study: Study, cell: Cell, numbers: Mapping[str, float]) -> float | None:
    """A cell's training images; where it takes all, an epoch's, once it is done."""
    if len(study.sizes) == 1:
        return None
    epochs = numbers.get(EPOCHS)
    return cell.size or (round(numbers[EXAMPLES] / epochs) if epochs else None)


def of_most_images(name: str) -> Position:
    """A number by its name, of the cells with most images."""

    def position(study: Study, cell: Cell, numbers: Mapping[str, float]) -> float | None:
        largest = 0 if 0 in study.sizes else max(study.sizes)
        return numbers.get(name) if cell.size == largest else None

    return position


SIZE = View(
    "size",
    "Against the number of training images",
    f"{MARKS} A cross at the bottom is a cell that failed. (Figures 3 and 4 of the paper.)",
    "training images",
    size_of,
)
COMPUTE = View(
    "exaflops",
    "Against compute",
    f"{MARKS} Compute is that of training: three times the forward pass's multiply-adds, two "
    "operations each; of the cells with most images. (Figures 5, 8 and 13 of the paper.)",
    "training compute (exaFLOPs)",
    of_most_images(EXAFLOPS),
    by_family=True,
)
TRAINING = View(
    "training",
    "During training",
    f"{MARKS} Of the cells with most images, at each evaluation. (Figure 9 of the paper.)",
    "epochs",
    of_most_images(EPOCHS),
    every_record=True,
    scale="linear",
)
SPEED = View(
    "speed",
    "Against speed",
    f"{MARKS} Speed is that of inference on one device, from pixels to logits; of the cells with most "
    "images. (Figure 13, right, of the paper.)",
    "inference speed (images/s)",
    of_most_images(IMAGES_PER_SECOND),
    by_family=True,
)
