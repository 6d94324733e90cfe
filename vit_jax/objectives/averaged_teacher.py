"""A teacher that is the average of its student: state of an objective, kept with the run.

def state(self, params):
    return averaged_teacher.begin(params)

def update(self, state, params, auxiliary):
    return averaged_teacher.follow(state, params, momentum)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

TEACHER = "teacher"


def begin(params: dict) -> dict:
    """The first state: the student itself."""
    return {TEACHER: jax.tree.map(jnp.copy, params)}


def follow(state: dict, params: dict, momentum: float) -> dict:
    """The next state: `momentum` of the teacher, the rest of the student's new parameters."""
    teacher = jax.tree.map(
        lambda old, new: old + (1 - momentum) * (new - old), state[TEACHER], params
    )
    return {**state, TEACHER: teacher}
