"""`python -m vit_jax.report`: one run of the tiny config, whole and with its data gone."""

import json
import re
import types

import pytest

from tests import tiny
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import report, train
from vit_jax.config_file import load_config
from vit_jax.earlier import by_present_names
from vit_jax.errors import ConfigError, NonFiniteLossError
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.regression import Regression
from vit_jax.pages import Section
from vit_jax.training.resuming import as_json

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")


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
    assert '<p class="note">ViT-Ti/2; 3 updates.</p>' in page
    assert "On digits, of the checkpoint at step 3." in page
    assert "Beside each picture it is bright where attention ends up (rollout)." in page
    last = read_metrics(finished)[-1]
    assert f"<td>accuracy</td><td>{last['eval/accuracy']:.5g}</td>" in page
    assert f"<td>loss</td><td>{last['eval/loss']:.5g}</td>" in page


def test_without_its_data_the_report_has_the_rest_and_says_so(finished):
    path = finished / "config.json"
    before = path.read_text()
    record = json.loads(before)
    record["config"]["data"]["source"] = "folder:/nowhere"
    try:
        path.write_text(json.dumps(record))
        assert report.run([str(finished)]) == 0
    finally:
        path.write_text(before)
    page = (finished / "report.html").read_text()
    assert "<h2>Loss</h2>" in page
    assert "Left out: " in page
    assert "/nowhere" in page


def test_a_config_is_compared_to_its_recipe(finished):
    record = json.loads((finished / "config.json").read_text())
    config, versions = report.config_sections(record, "tests/tiny.py")
    assert dict(row[:2] for row in config.table[1:])["total_steps"] == "3"
    assert {row[0] for row in config.table[1:]} <= {"total_steps", "best_metric"}
    assert "jax" in dict(versions.table)


def test_each_key_has_the_runs_value_then_the_recipes():
    recorded = as_json(load_config("tests/tiny.py"))
    recorded |= {"seed": 7, "later": {"key": "é"}, "earlier_key": 1}
    record = {"config": recorded, "versions": {"numpy": "2", "jax": "1"}}
    for recipe, against in ((None, "default"), ("tests/tiny.py", "tests/tiny.py")):
        config, versions = report.config_sections(record, recipe)
        assert config.table[0] == ("key", "this run", against)
        rows = {key: values for key, *values in config.table[1:]}
        assert rows["seed"] == ["7", "0"]
        assert rows["later.key"] == ['"é"', "–"]
        number = len(by_present_names(recorded))
        assert config.text == (
            f"The {len(rows)} of {number} keys whose value is not that of {against}."
        )
        assert ("model.depth" in rows) == (recipe is None)
    assert len(rows) == 3
    assert versions.table == [("package", "version"), ("jax", "1"), ("numpy", "2")]


@pytest.mark.parametrize("error", [ConfigError, NonFiniteLossError])
def test_the_model_that_is_looked_at_is_the_one_that_was_asked_for(monkeypatch, caplog, error):
    asked = []

    def parse_flags(arguments):
        asked.append(arguments)
        raise error("enough")

    monkeypatch.setattr(report.evaluate, "parse_flags", parse_flags)
    flags = ["RUN", "--checkpoint=best", "--ema", "--option=gelu=erf", "--option=depth=1"]
    for given in (["RUN"], flags):
        (section,) = report.judged_sections(report.parse_flags(given))
        assert (section.title, section.text) == ("Mistakes", "Left out: enough")
    assert asked == [["RUN", "--checkpoint=latest"], flags]
    assert caplog.messages == ["Mistakes are left out: enough"] * 2
    assert caplog.records[0].levelname == "WARNING"


@pytest.mark.parametrize(
    ("evaluator", "numbers", "message"),
    [
        (Regression(), {"count": 3}, "the model is no classifier"),
        (Classification(), {"count": 0}, "none of the evaluation images can be read"),
    ],
)
def test_what_has_no_mistakes_is_told(monkeypatch, evaluator, numbers, message):
    setting = types.SimpleNamespace(loss="softmax")
    for name, value in (
        ("plan", None),
        ("load_task", types.SimpleNamespace(model=None)),
        ("open_setting", (setting, {})),
        ("asked_evaluators", (evaluator,)),
    ):
        monkeypatch.setattr(report.evaluate, name, lambda *given, value=value, **_: value)
    monkeypatch.setattr(Classification, "open", lambda *given: None)
    monkeypatch.setattr(
        Classification, "judge_all", lambda *given, **_: lambda params: (numbers, (1,))
    )
    (section,) = report.judged_sections(report.parse_flags(["RUN"]))
    assert message in section.text


RECORD = {"step": 1200, "train/loss": 1.0, "time/steps": 9.0}


@pytest.mark.parametrize(
    ("records", "done", "curves"),
    [([], "no updates yet", []), ([{"step": 1}, RECORD], "1,200 updates", ["Loss", "Time"])],
)
def test_the_page_of_a_run_that_goes_on(tmp_path, monkeypatch, caplog, records, done, curves):
    config = {"config": {"model": {"name": "ViT-Ti/2"}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    monkeypatch.setattr(report, "judged_sections", lambda flags: [Section("Mistakes", "Some.")])
    with caplog.at_level("INFO", logger="vit_jax"):
        assert report.run([str(tmp_path)]) == 0
    assert caplog.messages == [f"{tmp_path}/report.html has the report."]
    assert caplog.records[0].levelname == "INFO"
    page = (tmp_path / "report.html").read_text()
    assert f"<h1>Run {tmp_path}</h1>" in page
    assert f'<p class="note">ViT-Ti/2; {done}.</p>' in page
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [*curves, "Mistakes", "Config", "Versions"]


def test_what_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json is missing: name a run's workdir\."):
        report.run([str(tmp_path)])
    for content, reason in (("{", "JSONDecodeError"), ('{"config": 3}', "AttributeError")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=rf"config.json cannot be read \({reason}"):
            report.run([str(tmp_path)])
