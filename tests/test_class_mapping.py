"""The file that says what a model calls the data's classes."""

import numpy as np
import pytest

from vit_jax.class_mapping import ClassMapping, chosen_mapping, read_class_mapping
from vit_jax.errors import ConfigError

MODEL = ("bird", "cat", "dog")


def mapping_of(tmp_path, content):
    path = tmp_path / "classes.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_class_mapping(str(path), "config.init_head_map")


def test_classes_are_renamed_and_may_share_one(tmp_path):
    mapping = mapping_of(
        tmp_path, "\ufeffn01\tcat\r\nn02\tcat\n\n \nÄhre n03\tbird\nunused\tnone\nn01\tcat\n"
    )
    found = mapping.find(("n02", "Ähre n03", "dog", "n01", "cow"), MODEL, 3)
    np.testing.assert_array_equal(found, [1, 0, 2, 1, -1])
    assert found.dtype == np.int32


def test_classes_of_a_model_without_names_are_numbers(tmp_path):
    mapping = mapping_of(tmp_path, "cat\t20999\ndog\t0\n")
    np.testing.assert_array_equal(mapping.find(("dog", "cat"), (), 21843), [0, 20999])


def test_without_a_file_names_stay(tmp_path):
    np.testing.assert_array_equal(ClassMapping().find(("dog", "cow"), MODEL, 3), [2, -1])


def test_bytes_that_are_no_text_name_a_folder(tmp_path):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    np.testing.assert_array_equal(
        mapping_of(tmp_path, b"caf\xe9\tdog\n").find((name,), MODEL, 3), [2]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a cat\n", r"line 1 is 'a cat': .* name of a class, one tab, the model's name\.$"),
        ("a\tcat\nb\tdog\tx\n", "line 2 is"),
        ("\tcat\n", "line 1 is"),
        ("a\t\n", "line 1 is"),
        ("a\tcat\na\tdog\n", "line 2 maps 'a' to 'dog', an earlier one to 'cat'"),
        ("\n", r"is empty; expected a class of the data in each line\.$"),
        (b"\x00\x01", "is no text file"),
    ],
)
def test_lines_of_another_form_are_named(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message) as error:
        mapping_of(tmp_path, content)
    assert str(error.value).startswith(f"config.init_head_map={tmp_path}/classes.tsv")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"config.init_head_map=.*x.tsv: no such file"):
        read_class_mapping(str(tmp_path / "x.tsv"), "config.init_head_map")


@pytest.mark.parametrize(
    ("content", "data", "model", "message"),
    [
        (
            "a\tcow\n",
            ("a",),
            MODEL,
            r"'a' is mapped to 'cow', which is none of .* 3 classes: 'bird'",
        ),
        (
            "a\t3\n",
            ("a",),
            (),
            r"'a' is mapped to '3', which is none of .* 3 classes: '0', '1', '2'",
        ),
        (
            "a\tcat\n",
            ("b",),
            MODEL,
            r"none of its lines begins with a class of the data.*'b'; .*'a'",
        ),
        ("a\tx\n", ("a",), tuple("bcdef"), r"5 classes: 'b', 'c', 'd', 'e', 'f'\.$"),
        ("a\tx\n", ("a",), tuple("bcdefg"), r"6 classes: 'b', 'c', 'd', 'e', 'f', \.\.\. \(6\)\.$"),
        ("a\tcat\n", ("a",), ("cat", "cat", "dog"), "2 classes of the model are called 'cat'"),
        ("a\tcat\n", ("a", "dog", "dog"), MODEL, "2 classes of the data are called 'dog'"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, content, data, model, message):
    with pytest.raises(ConfigError, match=message):
        mapping_of(tmp_path, content).find(data, model, 3)


def test_an_option_names_a_file_or_says_that_names_stay(tmp_path):
    assert chosen_mapping("", "config.init_head_map") is None
    by_name = chosen_mapping("names", "config.init_head_map")
    assert (by_name.names, by_name.origin) == ({}, "config.init_head_map=names")
    (tmp_path / "classes.tsv").write_text("a\tcat\n")
    found = chosen_mapping(f"{tmp_path}/classes.tsv", "classes")
    assert (found.names, found.origin) == ({"a": "cat"}, f"classes={tmp_path}/classes.tsv")
    with pytest.raises(ConfigError, match=r"^classes: 2 classes of the data are called 'dog'"):
        ClassMapping().find(("dog", "dog"), MODEL, 3)


def test_ambiguous_names_that_nobody_needs_are_no_matter(tmp_path):
    mapping = mapping_of(tmp_path, "a\tdog\n")
    np.testing.assert_array_equal(mapping.find(("a",), ("cat", "cat", "dog"), 3), [2])
