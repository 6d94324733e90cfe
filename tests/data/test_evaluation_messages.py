"""Errors about evaluation data name who asked for it: an evaluator, or a key."""

import re

import pytest

from vit_jax.config import default_config
from vit_jax.data.classes import ClassesDifferError
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.errors import UserError


def opened(eval_split="", class_names=(), run_source="digits", **evaluator):
    """What an evaluator of a run on the digits opens."""
    config = default_config().data
    config.update(source=run_source, eval_split=eval_split)
    data = EvaluationData(config, None, (8, 8, 1), class_names, 10, 8, None)
    return data.open(**evaluator)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "nosuch:x"}, "an evaluator's source='nosuch:x': unknown kind 'nosuch'"),
        ({"source": "folder:/nosuch"}, "an evaluator's source=folder:/nosuch: no such folder"),
        ({"source": "idx:/nosuch"}, "an evaluator's source='idx:/nosuch': No IDX files"),
        ({"source": "fake", "split": "b"}, "an evaluator's source='fake', split='b': fake has no"),
        ({"split": "b"}, "an evaluator's split='b': digits has no split 'b'"),
        ({"split": "b", "eval_split": "a"}, "an evaluator's split='b': digits has no split 'b'"),
        ({"eval_split": "a"}, "config.data.eval_split='a': digits has no split 'a'"),
    ],
)
def test_they_name_it(arguments, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}") as error:
        opened(**arguments)
    assert "config.data.source" not in str(error.value)


def test_classes_that_differ_name_the_source_they_are_of():
    with pytest.raises(ClassesDifferError, match=r"^digits: class 0 of the data, '0', is not"):
        opened(class_names=tuple("abcdefghij"))


def test_what_names_a_key_is_left():
    with pytest.raises(UserError, match=r"^config.data.source='nosuch:x': unknown kind"):
        opened(eval_split="a", run_source="nosuch:x")
