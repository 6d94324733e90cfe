"""The grammar of crops and augmentations."""

import pickle

import pytest

from vit_jax.errors import ConfigError
from vit_jax.grammar import parse
from vit_jax.kinds import Amount, Count, Share


def blur(image, rng, /, radius: Amount = 2.0, times: Count = 1):
    """Softens the image.

    Of no recipe.
    """
    return image, rng, radius, times


def erase(image, rng, /, probability: Share):
    """Takes a part away."""
    return image, rng, probability


def nothing(image, rng, /):
    """Does nothing."""
    return image, rng


TABLE = {"blur": blur, "erase": erase, "nothing": nothing}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ", []),
        ("nothing", ["nothing"]),
        ("nothing()", ["nothing"]),
        ("blur", ["blur(radius=2.0, times=1)"]),
        ("blur(3)", ["blur(radius=3, times=1)"]),
        ("blur(0.5, times=4)", ["blur(radius=0.5, times=4)"]),
        (
            " erase( probability = 0.25 ) |blur",
            ["erase(probability=0.25)", "blur(radius=2.0, times=1)"],
        ),
        (
            "blur | nothing | blur(1)",
            ["blur(radius=2.0, times=1)", "nothing", "blur(radius=1, times=1)"],
        ),
    ],
)
def test_texts_are_read_in_order_with_every_argument(text, expected):
    operations = parse(text, TABLE, "config.data.x")
    assert [str(operation) for operation in operations] == expected
    # What is printed can be read again.
    assert parse(" | ".join(expected), TABLE, "config.data.x") == operations


def test_an_operation_calls_its_function_and_can_be_sent_to_a_process():
    (operation,) = parse("blur(times=3)", TABLE, "config.data.x")
    for one in (operation, pickle.loads(pickle.dumps(operation))):
        assert one("image", "rng") == ("image", "rng", 2.0, 3)
    assert operation.describe() == "blur(radius=2.0, times=3): Softens the image."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blurr", r"'blurr' is not one of blur, erase, nothing; the nearest: blur"),
        (
            "blur(radios=1)",
            r"unexpected keyword argument 'radios'; the form is blur\(radius=2.0, times=1\)",
        ),
        ("blur(1, 2, 3)", r"too many positional arguments; the form is blur\(radius"),
        ("blur(1, radius=2)", "multiple values for argument 'radius'"),
        ("erase", r"missing a required argument: 'probability'; the form is erase\(probability\)"),
        ("blur(image=1)", "unexpected keyword argument 'image'"),
        ("blur(-1)", "radius of blur must be a number, at least 0, not -1"),
        ("blur('2')", "must be a number, at least 0, not '2'"),
        ("blur(1e999)", "must be a number, at least 0, not inf"),
        ("blur(True)", "must be a number, at least 0, not True"),
        ("blur(times=1.5)", "times of blur must be a whole number, at least 0, not 1.5"),
        ("erase(1.5)", "probability of erase must be a number from 0 to 1, not 1.5"),
        ("blur(", "expected NAME or NAME"),
        ("blur(radius=1, radius=2)", "each argument once"),
        ("blur, erase", "expected NAME or NAME"),
        ("blur + erase(1)", "expected NAME or NAME"),
        ("blur(radius)", "expected NAME or NAME"),
        ("blur(**{})", "expected NAME or NAME"),
        ("blur(*[1])", "expected NAME or NAME"),
        ("blur | 3", "expected NAME or NAME"),
        ("a.blur", "expected NAME or NAME"),
        ("__import__('os')", "is not one of"),
    ],
)
def test_mistakes_are_named_with_the_key(text, message):
    with pytest.raises(ConfigError, match=message) as error:
        parse(text, TABLE, "config.data.x")
    assert f"config.data.x={text!r}" in str(error.value)
