"""A suite: tasks and seeds, killed and gone on with, split, and its table."""

import math

import pytest

from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import suite, train
from vit_jax.config_file import load_config
from vit_jax.errors import ConfigError, PreemptedError

CONFIG = "tests/tiny.py"


@pytest.fixture
def made(monkeypatch):
    """The runs that were made, which come to a number of their task and seed."""
    made = []

    def run(config, directory, *, stop, chosen):
        assert chosen - {"total_steps", "total_epochs", "total_examples"} == {*run.chosen, "seed"}
        made.append((directory.rsplit("/", 2)[1], config.seed, config.total_steps))
        if len(made) == run.killed_at:
            raise PreemptedError("stopped")
        return {"step": 1, "eval/accuracy": 0.1 * len(made[-1][0]) + 0.02 * config.seed}

    run.killed_at, run.chosen = 0, ()
    monkeypatch.setattr(train, "run", run)
    made_run = run
    return made, made_run


@pytest.fixture
def file(tmp_path):
    tasks = {"natural": {"a": CONFIG, "bb": CONFIG}, "other": {"ccc": CONFIG}}
    (tmp_path / "suite.py").write_text(f"SUITE = {tasks!r}\n")
    return str(tmp_path / "suite.py")


TABLE = [
    ["group", "task", "result", "in", "%"],
    ["natural", "a", "11.00", "±", "1.41"],
    ["natural", "bb", "21.00", "±", "1.41"],
    ["other", "ccc", "31.00", "±", "1.41"],
    ["natural", "mean", "16.00"],
    ["other", "mean", "31.00"],
    ["all", "mean", "21.00"],
]


def table_of(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("killed_at", range(1, 7))
def test_killed_anywhere_it_repeats_no_finished_run_and_has_the_same_table(
    file, made, tmp_path, capsys, killed_at
):
    runs, run = made
    run.killed_at = killed_at
    command = [file, f"--workdir={tmp_path}/w", "--seeds=2", "--config.total_steps=7"]
    assert suite.main(command) == 75
    capsys.readouterr()
    run.killed_at = 0
    assert suite.main(command) == 0
    assert table_of(capsys) == TABLE
    assert runs.pop(killed_at - 1) in runs[killed_at - 1 :], "the one that was killed, once more"
    assert sorted(runs) == [(task, seed, 7) for task in ("a", "bb", "ccc") for seed in (0, 1)]
    assert suite.main(command) == 0
    assert len(runs) == 6


def test_a_table_for_a_paper():
    rows = [("natural", "oxford_pet", "91.00 ± 0.50"), ("all", "mean", "–")]
    assert suite.as_latex(rows).splitlines() == [
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"natural & oxford\_pet & 91.00 $\pm$ 0.50 \\",
        r"all & mean & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_what_is_no_number_is_a_result_all_the_same(tmp_path):
    trial = suite.Trial("a", CONFIG, 3)
    assert trial.directory("w") == "w/a/3"
    assert suite.read_result(trial, str(tmp_path)) is None
    (tmp_path / "a/3").mkdir(parents=True)
    (tmp_path / "a/3/suite_result.json").write_text('{"metric": "x", "value": null}')
    assert math.isnan(suite.read_result(trial, str(tmp_path)))
    assert suite.summarize([0.5]) == "50.00"
    assert suite.summarize([0.25, 0.5, 0.75]) == "50.00 ± 25.00"


@pytest.mark.parametrize(
    ("text", "array", "share"),
    [
        ("", {}, (0, 1)),
        ("", {"ID": "7", "MIN": "5", "MAX": "9"}, (2, 5)),
        ("", {"ID": "3", "MIN": "0", "MAX": "3"}, (3, 4)),
        ("1/1", {"ID": "7", "MIN": "5", "MAX": "9"}, (0, 1)),
        ("", {"ID": "6", "MIN": "2", "MAX": "9", "STEP": "2", "COUNT": "4"}, (2, 4)),
        ("3/4", {}, (2, 4)),
    ],
)
def test_the_share_of_one_task(text, array, share):
    environment = {f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}
    assert suite.share_of(text, environment) == share


@pytest.mark.parametrize("text", ["3/2", "0/2", "-1/2", "2", "a/b", "1/"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ConfigError, match=f"^--share={text}: expected k/K"):
        suite.share_of(text, {})


def test_an_array_without_some_of_its_numbers_is_refused():
    """Nobody would train their parts: `--array=1,5`."""
    given = {"ID": "5", "MIN": "1", "MAX": "5", "STEP": "1", "COUNT": "2"}
    environment = {f"SLURM_ARRAY_TASK_{name}": value for name, value in given.items()}
    with pytest.raises(ConfigError, match=r"array 1-5 numbers are left out.*--share=k/K"):
        suite.share_of("", environment)
    assert suite.share_of("2/2", environment) == (1, 2)


@pytest.mark.parametrize(
    "array", [{"ID": "x"}, {"ID": "3"}, {"ID": "9", "MAX": "7"}, {"MAX": "7", "STEP": "0"}]
)
def test_an_array_that_makes_no_sense_is_a_message(array):
    environment = {f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}
    with pytest.raises(ConfigError, match=r"are of no Slurm array.*--share=k/K"):
        suite.share_of("", environment)


def test_a_mean_waits_for_all_of_its_tasks():
    tasks = {"natural": {"a": CONFIG, "bb": CONFIG}, "other": {"ccc": CONFIG}}
    rows = [*suite.rows_of(tasks, {"a": [0.5, 0.7], "bb": [], "ccc": [0.25]})]
    assert rows[1:] == [
        ("natural", "bb", "–"),
        ("other", "ccc", "25.00"),
        ("natural", "mean", "–"),
        ("other", "mean", "25.00"),
        ("all", "mean", "–"),
    ]


def test_parts_together_do_all_and_the_last_has_the_table(
    file, made, tmp_path, capsys, monkeypatch
):
    runs, _ = made
    command = [file, f"--workdir={tmp_path}/w", "--seeds=2", f"--latex={tmp_path}/t.tex"]
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "4")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert suite.main(command) == 0
    assert ["natural", "bb", "22.00"] in table_of(capsys), "of the one seed that is finished"
    assert len(runs) == 3
    assert suite.main([*command, "--share=2/2"]) == 0
    assert table_of(capsys) == TABLE
    assert len(set(runs)) == len(runs) == 6
    assert r"natural & bb & 21.00 $\pm$ 1.41 \\" in (tmp_path / "t.tex").read_text()


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("X = 1", (), "is no suite (KeyError('SUITE'))"),
        ("exit()", (), "is no suite (SystemExit(None))"),
        (
            "SUITE = {'g': {'a': 'tests/tiny.py'}, 'h': {'a': 'tests/tiny.py'}}",
            (),
            "each another one",
        ),
        ("SUITE = {'g': {'a/b': 'tests/tiny.py'}}", (), "suite.py: tasks need names"),
        ("SUITE = {'g': {'': 'tests/tiny.py'}}", (), "each another one, without '/'"),
        ("SUITE = {'g': {}}", (), "tasks need names"),
        ("SUITE = {'g': {'a': 3}}", (), "suite.py: each task needs a config, such as"),
        ("SUITE = {'g': ['a']}", (), "is no suite (AttributeError"),
        ("SUITE = 1 +", (), "is no suite (SyntaxError"),
        ("SUITE = {'g': 1 / 0}", (), "is no suite (ZeroDivisionError"),
        (
            "from vit_jax.errors import ConfigError\nraise ConfigError('mount the data first')",
            (),
            " mount the data first\n",
        ),
        ("SUITE = {'g': {'a': 'tests/tiny.py'}}", ("--config.seed=1",), "a suite sets it"),
        ("SUITE = {'g': {'a': 'tests/tiny.py'}}", ("--share=3/2",), "--share=3/2: expected k/K"),
        (
            "SUITE = {'g': {'a': 'tests/tiny.py'}}",
            ("--latex=/dev/null/t.tex",),
            "--latex=/dev/null/t.tex cannot",
        ),
    ],
)
def test_a_mistake_is_one_message_and_code_2(made, tmp_path, capsys, content, flags, message):
    (tmp_path / "suite.py").write_text(content)
    assert suite.main([f"{tmp_path}/suite.py", f"--workdir={tmp_path}/w", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_metric_that_no_run_measures_is_named(file, made, tmp_path, capsys):
    made[1].chosen = ("best_metric",)
    assert suite.main([file, f"--workdir={tmp_path}/w", "--config.best_metric=x"]) == 2
    assert "is not measured" in capsys.readouterr().err


def test_vtab_has_its_19_tasks_and_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tasks = suite.read_suite("configs/suites/vtab.py")
    assert [len(group) for group in tasks.values()] == [7, 4, 8]
    for group in tasks.values():
        for config in group.values():
            suite.load_config(config, [])


def test_with_sweep_each_run_chooses_its_rate_first(file, made, monkeypatch, tmp_path):
    swept = []

    def choose(config, directory, *, stop, chosen):
        swept.append((directory.rsplit("/", 2)[1], config.seed))
        return {"step": 1, "eval/accuracy": 0.5}

    monkeypatch.setattr(suite, "sweep", choose)
    assert suite.main([file, f"--workdir={tmp_path}/w", "--seeds=1", "--sweep"]) == 0
    assert swept == [("a", 0), ("bb", 0), ("ccc", 0)]
    assert not made[0]


# Table 2 of arXiv 1910.04867: VTAB's groups.
VTAB = {
    "natural": "caltech101 cifar100 dtd oxford_flowers102 oxford_iiit_pet sun397 svhn",
    "specialized": "camelyon eurosat resisc45 retinopathy",
    "structured": "clevr_count clevr_distance dmlab dsprites_location dsprites_orientation "
    "kitti_distance smallnorb_azimuth smallnorb_elevation",
}
# Table 5 of arXiv 2010.11929, at 384 px.
TRANSFER = {
    "imagenet": "imagenet2012",
    "small": "cifar10 cifar100 oxford_iiit_pet oxford_flowers102",
}


@pytest.mark.parametrize(("name", "groups"), [("vtab", VTAB), ("transfer", TRANSFER)])
def test_the_suites_here_have_the_papers_tasks(name, groups):
    tasks = suite.read_suite(f"configs/suites/{name}.py")
    assert {group: " ".join(names) for group, names in tasks.items()} == groups
    for trial in suite.trials_of(tasks, 1):
        config = load_config(trial.config, ["init=none"])
        assert config.sweep.learning_rates
        assert (config.model.name, config.model.image_size) == ("ViT-B/16", 384)
        assert config.ema_decay == 0
        if name == "transfer":
            assert config.data.source == f"tfds:{trial.task}"
        else:
            assert f"vtab.py:{trial.task}," in trial.config


@pytest.mark.usefixtures("on_one_device", "shared_programs")
def test_a_suite_of_real_runs(tmp_path, capsys):
    tasks = {"digits": {"one": CONFIG, "two": CONFIG}}
    (tmp_path / "suite.py").write_text(f"SUITE = {tasks!r}\n")
    flags = [f"--workdir={tmp_path}/w", "--seeds=1", "--config.total_steps=1"]
    assert suite.main([str(tmp_path / "suite.py"), *flags]) == 0
    table = table_of(capsys)
    assert table[1][1:] == ["one", table[2][-1]] == ["one", table[-1][-1]], "the same config twice"
