"""`python -m vit_jax.report`: one run of the tiny config, whole and with its data gone."""

import json

import pytest

from tests import tiny
from vit_jax import report, train
from vit_jax.errors import ConfigError


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    config = tiny.get_config()
    config.total_steps = 3
    train.run(config, str(directory))
    return directory


def test_the_report_of_a_run(finished, tmp_path):
    output = tmp_path / "page.html"
    assert report.run([str(finished), f"--output={output}"]) == 0
    page = output.read_text()
    for title in ("Loss", "Learning rate", "Time", "Confusion", "Hardest classes", "Versions"):
        assert f"<h2>{title}</h2>" in page
    assert "<td>360</td>" in page  # Of the evaluation images.
    assert "<td>model.depth</td><td>2</td><td>12</td>" in page
    assert "3 updates" in page


def test_without_its_data_the_report_has_the_rest_and_says_so(finished, tmp_path):
    path = finished / "config.json"
    before = path.read_text()
    record = json.loads(before)
    record["config"]["data"]["source"] = "folder:/nowhere"
    try:
        path.write_text(json.dumps(record))
        assert report.run([str(finished), f"--output={tmp_path / 'page.html'}"]) == 0
    finally:
        path.write_text(before)
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Loss</h2>" in page
    assert "Left out: " in page
    assert "/nowhere" in page


def test_a_config_is_compared_to_its_recipe(finished):
    record = json.loads((finished / "config.json").read_text())
    config, versions = report.config_sections(record, "tests/tiny.py")
    assert dict(row[:2] for row in config.table[1:])["total_steps"] == "3"
    assert {row[0] for row in config.table[1:]} <= {"total_steps", "best_metric"}
    assert "jax" in dict(versions.table)


def test_what_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="name a run's workdir"):
        report.run([str(tmp_path)])
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        report.run([str(tmp_path)])
