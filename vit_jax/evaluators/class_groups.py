"""Data whose classes are not the model's: a subset of them, or several of the model's in one.

A file says so, of lines "the data's name of a class, a tab, the model's name", as everywhere
(`vit_jax.class_mapping`); here a class of the data may have several lines, one for each of the
model's classes that count as it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.class_mapping import read_pairs
from vit_jax.data.classes import ClassesDifferError
from vit_jax.errors import ConfigError

NONE = -1  # Instead of a class of the data.


@dataclasses.dataclass(frozen=True)
class ClassGroups:
    """The data's class that each of the model's counts as.

    Attributes:
      owner: int32 [K], of each of the model's classes; `NONE`: it counts as none.
      num_classes: of the data, G.
      restricted: whether only classes that count as one are predicted; else any, and it is wrong.
    """

    owner: np.ndarray
    num_classes: int
    restricted: bool

    @property
    def known(self) -> np.ndarray:
        """The data's classes that the model knows, ascending; images of others do not count."""
        return np.setdiff1d(self.owner, [NONE])

    def allowed(self, logits: jax.Array) -> jax.Array:
        """The logits [B, K] of what may be predicted; -inf for the rest."""
        return jnp.where(self.owner >= 0, logits, -jnp.inf) if self.restricted else logits

    def is_own(self, labels: jax.Array) -> jax.Array:
        """Whether each of the model's classes counts as the label: [B] -> bool [B, K]."""
        return jnp.asarray(self.owner) == labels[:, None]

    def merge(self, probabilities: jax.Array) -> jax.Array:
        """Probabilities of the data's classes: [B, K] -> [B, G]."""
        members = self.owner[:, None] == np.arange(self.num_classes)
        return jnp.matmul(probabilities, jnp.float32(members), precision="highest")


def read_groups(
    path: str,
    key: str,
    data_names: Sequence[str],
    model_names: Sequence[str],
    num_classes: int,
    *,
    restricted: bool,
) -> ClassGroups:
    """The groups that a file says; classes of a model without names are called 0, 1, 2, ...

    Raises ConfigError if it cannot be read, or names a class that the model does not have.
    """
    known = set(data_names)
    pairs = [pair for pair in read_pairs(path, key).values() if pair[0] in known]
    if not pairs:
        raise ConfigError(
            f"{key}={path}: none of its lines begins with a class of the data, whose first is "
            f"{data_names[0]!r}."
        )
    return make_groups(
        f"{key}={path}", pairs, data_names, model_names, num_classes, restricted=restricted
    )


def make_groups(
    origin: str,
    pairs: Iterable[tuple[str, str]],
    data_names: Sequence[str],
    model_names: Sequence[str],
    num_classes: int,
    *,
    restricted: bool,
) -> ClassGroups:
    """The groups of pairs (the data's name, the model's name).

    Raises ClassesDifferError for a name that the model does not have, ConfigError if one of its
    classes would count as two; `origin` begins the messages.
    """
    names = model_names or [str(number) for number in range(num_classes)]
    model = {name: number for number, name in enumerate(names)}
    data = {name: number for number, name in enumerate(data_names)}
    owner = np.full(num_classes, NONE, np.int32)
    for data_name, model_name in pairs:
        if model_name not in model:
            raise ClassesDifferError(
                f"{origin}: {data_name!r} should be the model's class {model_name!r}, which is none "
                f"of its {num_classes:,}; the first is {names[0]!r}. A file of lines NAME HERE, tab, "
                "NAME IN THE MODEL says what it is called there: classes='FILE'."
            )
        number, before = data[data_name], owner[model[model_name]]
        if before not in (NONE, number):
            raise ConfigError(
                f"{origin}: the model's class {model_name!r} counts as {data_names[before]!r} and as "
                f"{data_name!r}: keep one of the lines."
            )
        owner[model[model_name]] = number
    return ClassGroups(owner, len(data_names), restricted)
