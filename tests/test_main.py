"""The command: what it exits with, what it says, and how it resumes."""

import contextlib
import errno
import itertools
import os
import re
import shlex
import shutil
import sys
import threading
import time
import types

import jax
import numpy as np
import pytest
from PIL import Image

from tests.runs import LIMIT_SECONDS, ROOT, read_metrics, start_command
from tests.shared_programs import shared_programs  # noqa: F401
from tests.states import everything_in
from vit_jax import main, sweep
from vit_jax.checkpoint import restore_params
from vit_jax.console import python_command
from vit_jax.errors import ConfigError
from vit_jax.optimizer.schedules import make_schedule
from vit_jax.training import claim
from vit_jax.training.metrics_files import MetricsWriter

# Runs that differ in nothing that is compiled share their programs: change little.
pytestmark = pytest.mark.usefixtures("shared_programs")
TINY = ("--config=tests/tiny.py", "--config.model.depth=1", "--config.total_steps=2")
FAKE = (
    *TINY,
    "--config.data.source=fake",
    "--config.data.num_train_examples=64",
    "--config.data.num_eval_examples=40",
    "--config.model.num_classes=3",
)
LONGER = "--config.total_steps=6"


@pytest.fixture
def command(capsys):
    """Runs the command in this process: its exit code, and what it wrote to the console."""

    def run(*arguments):
        code = main.main(arguments)
        return code, capsys.readouterr().err

    return run


def error_of(output):
    """The one message of a run that failed."""
    assert "Traceback" not in output
    errors = [line for line in output.splitlines() if line.startswith("E ")]
    assert len(errors) == 1, output
    assert output.rstrip().endswith(errors[0]), output  # Nothing after it, nor more lines of it.
    return errors[0]


@pytest.fixture
def image_folder(tmp_path):
    """A function that makes a folder of so many 8 x 8 images of each class."""

    def make(**classes):
        root = tmp_path / "images"
        root.mkdir()
        for label, (name, count) in enumerate(classes.items()):
            (root / name).mkdir()
            for number in range(count):
                pixels = np.full((8, 8), 40 * number + 100 * label, np.uint8)
                Image.fromarray(pixels).save(root / name / f"{number}.png")
        return root

    return make


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TINY, "--config.bath_size=3"), r"config\.bath_size: no such key; .*: batch_size"),
        ((*TINY, "--config.batch_size=many"), "expected a whole number"),
        ((*TINY, "--config.batch_size=12"), r"batch_size=12 is not.* 8 \(devices.*8 or 16"),
        ((*TINY, "--config.optimizer.accumulation_steps=3"), r"accumulation_steps\) = 24"),
        ((*TINY, "--config.model.image_size=9"), r"9.*not divisible by .*2"),
        ((*TINY, "--config.objective.loss=hinge"), "config.objective.loss='hinge'.*softmax"),
        ((*TINY, "--config.mesh.fsdp=3"), "8 devices"),
        ((*TINY, "--config.data.source=digit"), "did you mean 'digits'"),
        ((*TINY, "--batch_size=3"), "unrecognized arguments: --batch_size=3"),
        ((*TINY, "--config.seed", "3"), r"--config\.seed: expected --config\.KEY=VALUE"),
        ((*TINY, "now"), "unrecognized arguments: now"),
        (("--config=configs/nothing.py",), "there is no file configs/nothing.py"),
        (("--config=configs/vit.py:b17",), "'b17' is not one of"),
        ((), "--config"),
    ],
)
def test_mistakes_in_the_command_are_named(command, tmp_path, arguments, message):
    code, output = command(*arguments, f"--workdir={tmp_path / 'run'}")
    assert code == 2
    assert re.search(message, error_of(output))
    assert not (tmp_path / "run").exists()


def test_a_directory_is_needed_but_not_for_a_dry_run(command):
    code, output = command(*TINY)
    assert code == 2
    assert "--workdir=DIR" in error_of(output)
    code, output = command("--config=configs/vit.py:h14,jft300m", "--dry_run")
    assert code == 0
    assert "ViT-H/14 for 18291 classes" in output
    assert "E " not in [line[:2] for line in output.splitlines()]


@pytest.mark.parametrize("module", [main, sweep])
def test_the_config_is_printed_without_a_run(module, capsys):
    assert module.main((*TINY, "--print_config")) == 0
    output = capsys.readouterr()
    assert "* total_steps = 2\n" in output.out
    assert "  seed = 0\n" in output.out
    assert output.err == ""
    assert module.main((*TINY, "--print_config", "--config.batch_size=0")) == 2
    assert "config.batch_size=0: must be" in error_of(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("classes", "message"),
    [({}, "at least 2 class folders.*none"), ({"cat": 3}, "at least 2 class folders.*cat")],
)
def test_folders_without_two_classes_are_named(command, tmp_path, image_folder, classes, message):
    root = image_folder(**classes)
    source = f"--config.data.source=folder:{root}"
    code, output = command(*TINY, source, f"--workdir={tmp_path / 'run'}")
    assert code == 2
    assert re.search(message, error_of(output))
    assert str(root) in output
    assert not (tmp_path / "run").exists()


def test_home_and_variables_stand_in_every_path(command, tmp_path, image_folder, monkeypatch):
    pictures, hour_ago = image_folder(cat=4, dog=3), time.time() - 3600
    for folder in (pictures, *pictures.iterdir()):  # No index is kept of folders that may change.
        os.utime(folder, (hour_ago, hour_ago))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PICTURES", pictures.name)
    monkeypatch.chdir(tmp_path)
    config = f"--config={ROOT / 'tests' / 'tiny.py'}"
    places = ("--config.data.source=folder:~/$PICTURES", "--config.data.index_dir=${HOME}/index")
    sizes = ("--config.data.num_train_examples=0", "--config.data.num_eval_examples=0")
    arguments = (config, *FAKE[1:], *places, *sizes, "--workdir=~/$PICTURES.run")
    for said in ("Done after 2 updates", "Resuming after step 2"):
        code, output = command(*arguments)
        assert code == 0, output
        assert said in output
    assert {path.name for path in tmp_path.iterdir()} == {"images", "images.run", "index"}


def test_a_disk_that_is_full_is_one_sentence(command, finished, monkeypatch):
    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.jsonl")

    workdir, arguments = finished
    monkeypatch.setattr(MetricsWriter, "flush", flush)
    code, output = command(*arguments, LONGER)
    assert code == 2
    assert "No space left on device: 'metrics.jsonl'. Mend that" in error_of(output)
    assert saved_steps(workdir) == [2]


def test_a_missing_folder_is_named(command, tmp_path):
    source = f"--config.data.source=folder:{tmp_path / 'nothing'}"
    code, output = command(*TINY, source, f"--workdir={tmp_path / 'run'}")
    assert code == 2
    assert f"{tmp_path / 'nothing'}: no such folder" in error_of(output)


def test_a_dataset_smaller_than_the_batch_trains(command, tmp_path, image_folder):
    source = f"--config.data.source=folder:{image_folder(cat=4, dog=3)}"
    sizes = "--config.data.num_train_examples=0", "--config.data.num_eval_examples=0"
    code, output = command(*FAKE, source, *sizes, f"--workdir={tmp_path / 'run'}")
    assert code == 0, output
    last = read_metrics(tmp_path / "run")[-1]
    assert last["train/epoch"] > 9  # 2 updates of 32 images, of 6 or fewer.
    assert 1 <= last["eval/count"] <= 3


def test_a_directory_that_cannot_be_written_is_named(command, tmp_path):
    (tmp_path / "file").write_text("")  # Root may write anywhere but below a file.
    code, output = command(*TINY, f"--workdir={tmp_path / 'file' / 'run'}")
    assert code == 2
    assert "cannot be written" in error_of(output)


def test_missing_imagenet_ends_in_one_message_with_both_ways_out(tmp_path):
    process = start_command(
        "--config=configs/vit.py:b16",
        f"--config.data.data_dir={tmp_path}",
        f"--workdir={tmp_path / 'run'}",
    )
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 2, output
    message = error_of(output)
    for text in ("imagenet2012", "tfds build imagenet2012", "--config.data.source=folder:DIR"):
        assert text in message
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "run").exists()  # Made before the model is compiled.


def test_help_names_the_flags(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        command("--help")
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--config", "--workdir", "--dry_run", "--config.KEY=VALUE"):
        assert flag in text


# ------------------------------------------------------------------------------------ resuming


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    assert main.main((*FAKE, f"--workdir={workdir}")) == 0
    return workdir


@pytest.fixture
def finished(command, finished_once, tmp_path):
    """The workdir of a run of two updates, and the command that made it."""
    workdir = tmp_path / "run"
    shutil.copytree(finished_once, workdir)
    return workdir, (*FAKE, f"--workdir={workdir}")


def test_the_end_says_what_came_out_and_where_it_lies(command, finished):
    workdir, arguments = finished
    _, output = command(*arguments)
    accuracy = read_metrics(workdir)[-1]["eval/accuracy"]
    assert f"Done after 2 updates. Accuracy on 40 evaluation images: {accuracy:.2%}." in output
    for name in ("metrics.jsonl", "checkpoints", "model.json"):
        assert f"{workdir}/{name}" in output
        assert (workdir / name).exists()


def saved_steps(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdecimal())


def test_a_finished_run_does_nothing_more(command, finished):
    workdir, arguments = finished
    metrics = (workdir / "metrics.jsonl").read_bytes()
    saved = (workdir / "checkpoints" / "2").stat().st_mtime_ns
    for more in ((), ("--config.total_steps=1",)):
        code, output = command(*arguments, *more)
        assert code == 0, output
        assert (workdir / "metrics.jsonl").read_bytes() == metrics
        assert (workdir / "checkpoints" / "2").stat().st_mtime_ns == saved
        assert saved_steps(workdir) == [2]


def test_an_end_without_evaluation_is_no_error(command, finished):
    # The latest checkpoint may lie beyond an end that was set earlier, without a record of its own.
    workdir, arguments = finished
    (workdir / "metrics.jsonl").unlink()
    code, output = command(*arguments)
    assert code == 0, output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.width=64", "config.model.width=32, not 64"),
        ("model.name=ViT-S/2", "config.model.name='ViT-Ti/2', not 'ViT-S/2'"),
        ("batch_size=64", "config.batch_size=32, not 64"),
        ("seed=1", "config.seed=0, not 1"),
        ("data.source=digits", "config.data.source='fake', not 'digits'"),
        ("optimizer.name=sgd", "config.optimizer.name='adamw', not 'sgd'"),
    ],
)
def test_another_run_in_the_same_directory_is_refused(command, finished, change, message):
    workdir, arguments = finished
    before = (workdir / "config.json").read_text(), (workdir / "model.json").read_text()
    code, output = command(*arguments, "--config.model.num_classes=10", f"--config.{change}")
    assert code == 2
    assert message in error_of(output)
    assert before == ((workdir / "config.json").read_text(), (workdir / "model.json").read_text())
    assert saved_steps(workdir) == [2]


def test_more_steps_go_on_with_the_schedule_of_the_new_length(command, finished):
    workdir, arguments = finished
    first = read_metrics(workdir)
    code, output = command(*arguments, LONGER)
    assert code == 0, output
    assert "config.total_steps was 2 before this resume and is 6 now" in output
    assert "Resuming after step 2" in output
    records = read_metrics(workdir)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[:2] == first
    schedule = make_schedule("cosine", base=1e-3, total_steps=6, warmup_steps=3)
    found = [record["train/learning_rate"] for record in records]
    np.testing.assert_allclose(found, [schedule(step) for step in range(6)], rtol=1e-6)
    assert saved_steps(workdir)[-1] == 6


def test_a_preset_that_changed_since_goes_on_with_the_recorded_numbers(command, finished, tmp_path):
    """What is set on the command line changes; what the machine needs is the config's."""
    workdir, arguments = finished
    changed = tmp_path / "tiny_of_today.py"
    changed.write_text(
        "from tests import tiny\n"
        "def get_config():\n"
        "    config = tiny.get_config()\n"
        "    config.optimizer.learning_rate = 0.5\n"
        "    config.optimizer.b2 = 0.5\n"
        "    config.schedule.name = 'linear'\n"
        "    config.batch_size = 64\n"
        "    config.data.num_threads = 3\n"
        "    return config\n"
    )
    same = tmp_path / "same"
    shutil.copytree(workdir, same)
    code, output = command(*arguments, LONGER, f"--workdir={same}")
    assert code == 0, output
    rest = [argument for argument in arguments if not argument.startswith("--config=")]
    code, output = command(f"--config={changed}", *rest, LONGER)
    assert code == 0, output
    (line,) = (line for line in output.splitlines() if "The run goes on as" in line)
    for text in (
        "config.batch_size=32 (not 64), config.optimizer.b2=0.999 (not 0.5), "
        "config.optimizer.learning_rate=0.001 (not 0.5)",
        "config.schedule.name='cosine' (not 'linear')",
    ):
        assert text in line
    assert "config.total_steps was 2 before this resume and is 6 now" in output
    assert "config.data.num_threads was 0 before this resume and is 3 now" in output
    for key in ("train/loss", "train/learning_rate"):
        assert [r[key] for r in read_metrics(workdir)] == [r[key] for r in read_metrics(same)]


def test_two_parts_equal_one_run_at_an_epochs_boundary(command, finished, tmp_path):
    # 64 images in batches of 32: the first part is exactly one epoch, and all warm-up.
    workdir, arguments = finished
    for directory in (workdir, tmp_path / "whole"):
        code, output = command(*arguments, LONGER, f"--workdir={directory}")
        assert code == 0, output
    parted, whole = read_metrics(workdir), read_metrics(tmp_path / "whole")
    for key in ("step", "train/loss", "train/grad_norm", "train/learning_rate", "train/epoch"):
        assert [record[key] for record in parted] == [record[key] for record in whole]
    assert parted[-1]["eval/loss"] == whole[-1]["eval/loss"]
    jax.tree.map(
        np.testing.assert_array_equal, restore_params(workdir), restore_params(tmp_path / "whole")
    )


def test_averaging_may_be_switched_on_and_off_again(command, finished):
    workdir, arguments = finished
    code, output = command(*arguments, "--config.total_steps=3", "--config.ema_decay=0.9")
    assert code == 0, output
    assert "has no averaged parameters: they start from here" in output
    assert "eval_ema/accuracy" in read_metrics(workdir)[-1]
    assert restore_params(workdir, ema=True).keys() == restore_params(workdir).keys()
    code, output = command(*arguments, LONGER, "--config.ema_decay=0")
    assert code == 0, output
    assert "config.ema_decay was 0.9 before this resume and is 0.0 now" in output
    assert "eval_ema/accuracy" not in read_metrics(workdir)[-1]


def test_clip_and_decay_may_change(command, finished):
    _, arguments = finished
    changes = ("optimizer.grad_clip_norm=0", "optimizer.weight_decay=0")
    code, output = command(*arguments, *(f"--config.{change}" for change in changes))
    assert code == 0, output
    assert "config.optimizer.grad_clip_norm was 1.0" in output


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_the_last_checkpoint(command, finished):
    workdir, arguments = finished
    before = restore_params(workdir)
    code, output = command(*arguments, LONGER, "--config.optimizer.learning_rate=1e30")
    assert code == 3
    message = error_of(output)
    step = int(re.search(r"The loss of step (\d+) is", message)[1])
    assert 3 <= step <= 6
    assert "config.optimizer.learning_rate" in message
    assert saved_steps(workdir) == [2]
    jax.tree.map(np.testing.assert_array_equal, restore_params(workdir), before)
    assert all(np.isfinite(r["train/loss"]) for r in read_metrics(workdir))
    # Mended, the run goes on; the rate that it had last is recorded.
    code, output = command(*arguments, LONGER, "--config.optimizer.learning_rate=1e-3")
    assert code == 0, output
    assert [record["step"] for record in read_metrics(workdir)] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_is_written_at_the_end_in_any_case(command, tmp_path):
    arguments = (*FAKE, f"--workdir={tmp_path}", "--config.checkpoint_every_steps=1000")
    code, output = command(*arguments, "--config.total_steps=0", "--config.total_epochs=1")
    assert code == 0, output
    assert saved_steps(tmp_path) == [2]


def test_a_damaged_checkpoint_is_set_aside_and_the_run_goes_on_from_an_older_one(command, finished):
    workdir, arguments = finished
    keep = "--config.keep_checkpoints=2"
    code, output = command(*arguments, LONGER, keep)
    assert code == 0, output
    whole = read_metrics(workdir)
    damaged = next((workdir / "checkpoints" / "6" / "params").glob("ocdbt*/d/*"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    more = (*arguments, "--config.total_steps=7", keep)
    code, output = command(*more)
    assert code == 2
    assert "checkpoints/6 is damaged" in error_of(output)
    assert "--checkpoint=2 goes on from it" in error_of(output)
    code, output = command(*more, "--checkpoint=3")
    assert code == 2
    assert re.search("no such checkpoint; it has: 2, 6", error_of(output))
    code, output = command(*arguments, LONGER, keep, "--checkpoint=2")
    assert code == 0, output
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {"2", "6", "6.damaged"}
    again = read_metrics(workdir)
    for key in ("step", "train/loss"):
        assert [record[key] for record in again] == [record[key] for record in whole]


def test_a_second_run_in_the_same_directory_is_refused_and_changes_nothing(command, finished):
    workdir, arguments = finished
    saving = workdir / "checkpoints" / "3.orbax-checkpoint-tmp"
    saving.mkdir()
    before = everything_in(workdir)
    with claim.held(workdir):
        for more in ((LONGER,), ("--checkpoint=2",)):
            code, output = command(*arguments, *more)
            assert code == 2
            assert "is in use by another run: process" in error_of(output)
    assert everything_in(workdir) == before


# ------------------------------------------------------------------------------------- signals


@pytest.fixture
def stopped(monkeypatch):
    """A signal comes during the first update."""

    @contextlib.contextmanager
    def stop_signal():
        event = threading.Event()
        event.set()
        yield event

    monkeypatch.setattr(main, "stop_signal", stop_signal)


def test_a_signal_saves_and_exits_with_75_unless_the_run_is_done(command, tmp_path, stopped):
    arguments = (*FAKE, f"--workdir={tmp_path}")
    code, output = command(*arguments)
    assert code == 75
    assert "Stopped after step 1, which is saved. Start the same command again" in output
    assert saved_steps(tmp_path) == [1]
    # Another one, during the last update: the evaluation at the end is still made.
    code, output = command(*arguments)
    assert code == 0
    assert "Resuming after step 1" in output
    assert saved_steps(tmp_path) == [2]
    first, last = read_metrics(tmp_path)
    assert "eval/count" not in first
    assert last["eval/count"] == 40


@pytest.mark.parametrize("call", [1, 2, 3])
def test_whenever_a_signal_comes_what_is_said_to_be_saved_is_saved(
    command, tmp_path, monkeypatch, call
):
    answers = itertools.chain([False] * (call - 1), itertools.repeat(True))
    stop = types.SimpleNamespace(is_set=lambda: next(answers))
    monkeypatch.setattr(main, "stop_signal", lambda: contextlib.nullcontext(stop))
    code, output = command(*FAKE, f"--workdir={tmp_path}")
    step = (
        2 if code == 0 else int(re.search(r"Stopped after step (\d+), which is saved", output)[1])
    )
    assert saved_steps(tmp_path) == [step]


@pytest.mark.parametrize("flags", [[], ["--checkpoint=3"], ["--checkpoint=3", "--dry_run"]])
def test_a_run_is_given_what_the_command_says(monkeypatch, tmp_path, caplog, flags):
    """And goes back to a checkpoint before, with the workdir its own, but not in a dry run."""
    events, dry = [], "--dry_run" in flags

    def run(config, workdir, *, dry_run, stop, chosen):
        events.append("run")
        assert (config.seed, config.batch_size, workdir) == (5, 32, str(tmp_path))
        assert (dry_run, stop, {*chosen}) == (dry, "stop", {"seed"})
        return {} if dry else {"step": 4}

    def go_back(workdir, step):
        events.append("go back")
        assert (workdir, step) == (str(tmp_path), 3)

    @contextlib.contextmanager
    def held(workdir):
        assert workdir == str(tmp_path)
        events.append("hold")
        yield
        events.append("free")

    monkeypatch.setattr(main, "connect", lambda flags: events.append("connect"))
    monkeypatch.setattr(main, "tell_once", lambda: events.append("tell once"))
    monkeypatch.setattr(main, "validate", lambda config: events.append("validate"))
    monkeypatch.setattr(main, "go_back", go_back)
    monkeypatch.setattr(main, "stop_signal", lambda: contextlib.nullcontext("stop"))
    monkeypatch.setattr(main.claim, "held", held)
    monkeypatch.setattr(main, "summary", lambda results, workdir: f"{results} in {workdir}")
    arguments = ["--config=tests/tiny.py", "--config.seed=5", f"--workdir={tmp_path}", *flags]
    with caplog.at_level("INFO", logger="vit_jax"):
        assert main.train_command(run, arguments, "name", "what", "final") == 0
    at = {event: number for number, event in enumerate(events)}
    assert at["connect"] < at["run"]
    assert at["tell once"] < at["run"]
    assert ("go back" in at) == (bool(flags) and not dry)
    if "go back" in at:
        assert at["connect"] < at["hold"] < at["go back"] < at["free"], "all see the same"
        assert at["validate"] < at["go back"], "nothing is renamed for a config that cannot work"
        assert at["free"] < at["run"], "which takes the workdir itself"
    assert caplog.messages == ([] if dry else [f"{{'step': 4}} in {tmp_path}/final"])
    caplog.clear()
    with caplog.at_level("INFO", logger="vit_jax"):
        main.train_command(run, arguments, "name", "what")
    assert caplog.messages == ([] if dry else [f"{{'step': 4}} in {tmp_path}"])


def test_flags_of_a_run(tmp_path):
    flags, overrides = main.parse_flags(
        ["--config=c.py", "--config.seed=3", "--workdir=DIR", "--checkpoint=7"], "name", "what"
    )
    assert (flags.config, flags.workdir, flags.checkpoint) == ("c.py", "DIR", 7)
    assert (flags.dry_run, flags.print_config, overrides) == (False, False, ["seed=3"])
    for only in ("--dry_run", "--print_config"):
        flags, _ = main.parse_flags(["--config=c.py", only], "name", "what")
        assert getattr(flags, only.strip("-")) is True
        assert (flags.workdir, flags.checkpoint) == (None, None)
    for number in ("0", "-1", "two"):
        with pytest.raises(ConfigError, match="--checkpoint"):
            main.parse_flags(["--config=c.py", f"--checkpoint={number}"], "name", "what")


@pytest.mark.parametrize(
    ("classes", "loss", "numbers", "expected"),
    [
        (10, "softmax", {}, ""),
        (10, "binary", {"eval/accuracy": 0.125}, " Accuracy on 1,040 evaluation images: 12.50%."),
        (
            10,
            "softmax",
            {"eval/accuracy": 0.125, "eval_ema/accuracy": 0.5},
            " Accuracy on 1,040 evaluation images: 12.50%, of the averaged parameters 50.00%.",
        ),
        (0, "softmax", {"eval/accuracy": 0.125}, ""),  # Of features.
        (2, "huber", {"eval/rmse": 0.5}, ""),
    ],
)
def test_a_summary_says_how_well_and_what_for(
    monkeypatch, tmp_path, classes, loss, numbers, expected
):
    (tmp_path / "model.json").touch()
    model = types.SimpleNamespace(options={"num_classes": classes}, loss=loss)
    monkeypatch.setattr(main, "read_model_file", lambda workdir: model)
    results = {"step": 12_345, "eval/count": 1_040, **numbers}
    first, *rows = main.summary(results, str(tmp_path)).splitlines()
    assert first == f"Done after 12,345 updates.{expected}"
    found = [row.split(maxsplit=1)[0] for row in rows]
    assert found[:2] == [f"{tmp_path}/metrics.jsonl", f"{tmp_path}/checkpoints"]
    use = "embed" if not classes else "measure" if loss == "huber" else "classify"
    (row,) = [row for row in rows if f" {use} pictures " in row]
    module = "vit_jax.predict" if classes else "vit_jax.embed"
    how = python_command("-m", module, str(tmp_path))
    assert row.endswith(f"{how} FILE..." + ("" if classes else " --output=FILE.npy"))
    assert rows[-2].split(maxsplit=2)[2] == f"model = vit_jax.load_model({str(tmp_path)!r})"


def test_the_commands_of_the_summary_run_as_they_stand():
    lines = main.summary({"step": 3}, "runs [v1]/a b's").splitlines()
    predict = next(line.partition("pictures")[2] for line in lines if "vit_jax.predict" in line)
    program, *words = shlex.split(predict)
    assert program in (sys.executable, "python")
    assert words == ["-m", "vit_jax.predict", "runs [v1]/a b's", "FILE..."]
    init = next(line for line in lines if "--config.init" in line).partition("here")[2]
    assert shlex.split(init)[0] == "--config.init=runs [v1]/a b's"
