"""Records of results: which data they say they are of, and which of them a run keeps."""

import dataclasses
import json

import pytest

from vit_jax.config import default_config
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.results import ResultsFile, describe_result
from vit_jax.records import read_records


@pytest.mark.parametrize(
    ("text", "source", "split"),
    [
        ("knn(k=3)", "digits", "test[:9]"),
        ("knn(k=3, source='digits')", "digits", "test[:9]"),
        ("knn(k=3, source='fake')", "fake", ""),  # The source's own.
        ("knn(k=3, split='val')", "digits", "val"),
        ("knn(k=3, source='fake', split='val')", "fake", "val"),
    ],
)
def test_a_record_names_the_data_that_was_measured(text, source, split):
    data = default_config().data
    data.source, data.eval_split, data.train_split = "digits", "test[:9]", "train"
    (evaluator,) = read_evaluators(text)
    found = describe_result(
        evaluator, data, {"accuracy": 0.5}, step=7, averaged=True, seconds=1.23456
    )
    assert found.pop("arguments") == dataclasses.asdict(evaluator)
    assert found == {
        "step": 7,
        "name": "knn",
        "protocol": "NearestNeighbors",
        "version": 1,
        "source": source,
        "split": split,
        "averaged": True,
        "seconds": 1.235,
        "numbers": {"accuracy": 0.5},
    }


def test_the_version_is_that_of_the_protocol():
    class Second(Classification):
        VERSION = 2

    found = describe_result(
        Second(), default_config().data, {}, step=None, averaged=False, seconds=0
    )
    assert (found["version"], found["protocol"], found["step"]) == (2, "Second", None)


def test_results_of_updates_that_are_done_again_are_cut(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (None, 3, 4, 5)))
    ResultsFile(tmp_path, 4).append({"step": 8})
    assert [one["step"] for one in read_records(str(path))] == [None, 3, 4, 8]
