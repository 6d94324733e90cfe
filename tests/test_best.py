"""The best checkpoint: by the metric asked for, and with the parameters that were scored."""

import json
import types

import pytest

import vit_jax
from tests import tiny
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import train
from vit_jax.checkpoint import find_checkpoint
from vit_jax.errors import PreemptedError
from vit_jax.evaluate import main
from vit_jax.main import summary
from vit_jax.records import read_records

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Four updates at a high rate, measured after each, with averages; `best_metric` is auto."""
    folder = tmp_path_factory.mktemp("best")
    config = tiny.get_config()
    config.total_steps, config.eval_every_steps, config.warmup_steps = 4, 1, 0
    config.ema_decay, config.optimizer.learning_rate = 0.3, 0.02
    train.run(config, folder)
    return folder


def test_the_averages_are_scored_and_every_command_loads_them(workdir, tmp_path, capsys):
    records = {record["step"]: record for record in read_metrics(workdir)}
    best = max(records, key=lambda step: records[step]["eval_ema/accuracy"])
    assert find_checkpoint(workdir, "best") == (best, True)
    assert main([str(workdir), "--checkpoint=best", f"--json={tmp_path / 'r.json'}"]) == 0
    assert f"{best} average" in capsys.readouterr().out
    assert main([str(workdir)]) == 0
    assert f"{workdir}  4               digits" in capsys.readouterr().out
    (result,) = json.loads((tmp_path / "r.json").read_text())
    assert (result["checkpoint"], result["ema"]) == (best, True)
    kept = read_records(str(workdir / "results.jsonl"))[-2:]
    assert [(one["step"], one["averaged"]) for one in kept] == [(best, True), (4, False)]
    assert result["loss"] == pytest.approx(records[best]["eval_ema/loss"], rel=1e-5)
    assert records[best]["eval_ema/loss"] != pytest.approx(records[best]["eval/loss"], rel=1e-4)
    by_name, by_flag = (
        vit_jax.load_model(workdir, checkpoint=step, ema=ema)
        for step, ema in (("best", False), (best, True))
    )
    assert (by_name.head.kernel[...] == by_flag.head.kernel[...]).all()


def test_the_summary_names_the_best_and_the_averages(workdir):
    records = {record["step"]: record for record in read_metrics(workdir)}
    best, accuracy = max(
        ((step, record["eval_ema/accuracy"]) for step, record in records.items()),
        key=lambda pair: pair[1],
    )
    lines = summary(records[4], str(workdir)).splitlines()
    average = records[4]["eval_ema/accuracy"]
    assert lines[0].endswith(f", of the averaged parameters {average:.2%}.")
    (row,) = (line for line in lines if "the best" in line)
    assert row.split(maxsplit=1) == [
        f"{workdir}/checkpoints/{best}",
        f"the best averaged parameters: eval_ema/accuracy {accuracy:.5g}",
    ]


def test_another_metric_is_not_compared_with_the_one_before(workdir, tmp_path):
    config = tiny.get_config()
    config.total_steps, config.eval_every_steps, config.warmup_steps = 6, 1, 0
    config.keep_checkpoints = 5
    answers = iter([False, False, True])  # The loop asks once a step.
    with pytest.raises(PreemptedError, match="after step 3"):
        train.run(config, tmp_path, stop=types.SimpleNamespace(is_set=lambda: next(answers)))
    config.best_metric = "-eval/loss"
    train.run(config, tmp_path)
    losses = {r["step"]: r["eval/loss"] for r in read_metrics(tmp_path) if r["step"] > 3}
    best = min(losses, key=losses.get)
    assert find_checkpoint(tmp_path, "best") == (best, False)
    row = f"{tmp_path}/checkpoints/{best}  the best parameters: eval/loss {losses[best]:.5g}"
    assert row in summary({"step": 6}, str(tmp_path))
