"""Config files, and keys set on the command line."""

import pytest

from vit_jax.config import default_config, flatten, lookup, model_options
from vit_jax.config_file import PARSERS, chosen_keys, describe, load_config, other_units
from vit_jax.errors import ConfigError

DIGITS = "configs/digits.py"


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        path = tmp_path / "mine.py"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=7", "seed", 7),
        ("optimizer.learning_rate=3e-4", "optimizer.learning_rate", 3e-4),
        ("optimizer.learning_rate=1", "optimizer.learning_rate", 1.0),
        ("optimizer.name=sgd", "optimizer.name", "sgd"),
        ("optimizer.b2=0.95", "optimizer.b2", 0.95),
        ("schedule.boundaries=(0.3,0.6)", "schedule.boundaries", (0.3, 0.6)),
        (
            "optimizer.rate_multipliers=(('^head/',10.0),)",
            "optimizer.rate_multipliers",
            (("^head/", 10.0),),
        ),
        ("data.flip=true", "data.flip", True),
        ("data.flip=False", "data.flip", False),
        ("data.flip=TRUE", "data.flip", True),
        ("model.class_token=TRUE", "model.class_token", True),
        ("data.train_crop=inception(0.2, 1)", "data.train_crop", "inception(0.2, 1)"),
        ("data.augmentation=a(b=1) | c", "data.augmentation", "a(b=1) | c"),
        ("data.source=folder:/a=b", "data.source", "folder:/a=b"),
        ("data.train_split=train[:98%]", "data.train_split", "train[:98%]"),
        ("init=", "init", ""),
        ("data.classes=('cat','dog')", "data.classes", ("cat", "dog")),
        ("data.classes=()", "data.classes", ()),
        ("sweep.learning_rates=0.1,1", "sweep.learning_rates", (0.1, 1)),
        ("sweep.learning_rates=[0.1]", "sweep.learning_rates", (0.1,)),
        ("model.dropout_rate=0.1", "model.dropout_rate", 0.1),
        ("model.image_size=64", "model.image_size", 64),
        ("model.image_size=64,32", "model.image_size", (64, 32)),
        ("model.image_size=(64, 32)", "model.image_size", (64, 32)),
        ("model.patch_size=(8,4)", "model.patch_size", (8, 4)),
        ("model.class_token=false", "model.class_token", False),
        ("model.pooling=average", "model.pooling", "average"),
    ],
)
def test_keys_are_read_by_their_type(override, key, value):
    config = load_config(DIGITS, [override])
    found = config
    for part in key.split("."):
        found = found[part]
    assert found == value
    assert type(found) is type(value)


def test_every_key_can_be_set_on_the_command_line():
    config = default_config()
    for key in flatten(config):
        section, _, name = key.rpartition(".")
        place = lookup(config, section) if section else config
        assert place.get_type(name) in PARSERS, key


def test_rectangular_images_reach_the_model():
    config = load_config(DIGITS, ["model.image_size=16,8", "model.patch_size=(4,2)"])
    options = model_options(config, num_classes=10)
    assert (options.image_size, options.patch_size) == ((16, 8), (4, 2))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bath_size=3", "config.bath_size: no such key; the nearest: batch_size"),
        ("optimizer.lr=3", "no such key.*optimizer.learning_rate"),
        ("learning_rate=3", "the nearest: .*optimizer.learning_rate"),
        ("modell.width=3", "the nearest: model.width"),
        ("model=3", "no such key"),
        ("seed.x=3", "the nearest: seed"),
        ("zzz=3", "no such key; the nearest: "),
        ("batch_size=big", "config.batch_size=big: expected a whole number"),
        ("batch_size=1.5", "expected a whole number"),
        ("batch_size=", "expected a whole number"),
        ("optimizer.b1=high", "expected a number"),
        ("data.flip=maybe", "expected true or false"),
        ("data.classes=cat", "expected a tuple such as"),
        ("data.classes=('cat')", "expected a tuple such as"),
        ("sweep.learning_rates=0.1", "expected a tuple such as"),
        ("loss=sigmoid", "config.loss: no such key any more; it is --config.objective.loss now"),
        ("mixing.form=deit", "it is --config.objective.mixing.form now"),
    ],
)
def test_unknown_keys_and_wrong_types_are_named(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(DIGITS, [override])


@pytest.mark.parametrize(
    "override",
    [
        "batch_size=" + "9" * 5000,
        "optimizer.b1=" + "x" * 100_000,
        "sweep.learning_rates=" + "(" * 100_000,
        "model.image_size=" + "(" * 100_000,
        "data.mean=(" + "9" * 5000 + ",)",
        "x" * 100_000 + "=1",
    ],
    ids=lambda override: override[:20],
)
def test_long_values_are_shown_in_part(override):
    with pytest.raises(ConfigError) as error:
        model_options(load_config(DIGITS, [override]), num_classes=10)
    assert override[:15] in str(error.value)
    assert len(str(error.value)) < 700


def test_a_duration_replaces_the_files_in_other_units():
    assert load_config(DIGITS).total_steps == 400
    config = load_config(DIGITS, ["total_examples=1000", "warmup_steps=3"])
    assert (config.total_examples, config.total_epochs, config.total_steps) == (1000, 0, 0)
    assert (config.warmup_steps, config.warmup_epochs) == (3, 0)
    assert config.eval_every_steps == 100


def test_the_last_of_equal_keys_wins():
    assert load_config(DIGITS, ["seed=1", "seed=2"]).seed == 2


def test_an_own_objective_s_option_may_stand_before_its_name():
    own = "objective.name=tests.objectives.brightness:Brightness"
    for overrides in (["objective.scale=0.25", own], [own, "objective.scale=0.25"]):
        assert load_config(DIGITS, overrides).objective.scale == 0.25


def test_arguments_follow_a_colon(file):
    path = file(
        "from vit_jax.config import default_config",
        "def get_config(arguments):",
        "    config = default_config()",
        "    config.note = arguments",
        "    return config",
    )
    assert load_config(f"{path}:b16,imagenet:x").note == "b16,imagenet:x"
    with pytest.raises(ConfigError, match=r"digits.py takes no arguments: leave out :b16"):
        load_config(f"{DIGITS}:b16")


HEAD = (
    "from vit_jax.config import default_config",
    "def get_config():",
    "    c = default_config()",
)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*HEAD, "    c.bath_size = 3"], 'line 4: .*"bath_size" does not exist.*batch_size'),
        ([*HEAD, "    c.batch_size = '3'"], "line 4: .*batch_size.*int"),
        ([*HEAD, "    c.seed = 3"], "must return a ConfigDict, not None"),
        (["def get_config(:"], r"mine.py: .*line 1"),
        (["import no_such_package"], "line 1: No module named 'no_such_package'"),
        (["x = 1"], "get_config"),
        (["1 / 0"], "line 1: division by zero"),
        ([*HEAD, "    return c, 1"], r"must return a ConfigDict, not \("),
        ([*HEAD, "    return {}['seed']"], "line 4: KeyError 'seed'$"),
        ([*HEAD, "    assert c.seed == 3"], "line 4: AssertionError$"),
        (["exit()"], "line 1: SystemExit"),
        (
            [
                "import ml_collections",
                "def get_config():",
                "    return ml_collections.ConfigDict()",
            ],
            "must return the default config, with changes",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(file, lines, message):
    path = file(*lines)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(path)
    assert path in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert "Other fields" not in str(error.value)


def test_another_file_than_one_of_python_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 3")
    with pytest.raises(ConfigError, match=rf"--config={path}:b16: {path} is not a Python file"):
        load_config(f"{path}:b16")
    with pytest.raises(ConfigError, match=rf"--config={tmp_path}: there is no file {tmp_path}\."):
        load_config(str(tmp_path))


def test_a_recipe_s_own_message_stays_as_it_is():
    with pytest.raises(ConfigError, match=r"^'b17' is not one of"):
        load_config("configs/vit.py:b17")


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"there is no file configs/digitz\.py"):
        load_config("configs/digitz.py:b16")


def test_files_in_the_working_directory_are_found(file, monkeypatch, tmp_path):
    file(*HEAD, "    c.seed = 5", "    return c", "assert __name__ != '__main__'")
    monkeypatch.chdir(tmp_path)
    assert load_config("mine.py").seed == 5
    assert default_config().seed == 0


def test_the_packages_own_files_are_found_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/digits.py").model.name == "ViT-Ti/2"
    files = ("configs/nothing.py", "other/digits.py", "digits.py", "/configs/digits.py")
    for absent in (*files, "configs/studies"):
        with pytest.raises(ConfigError, match=f"there is no file {absent}"):
            load_config(absent)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "digits.py").write_text(
        "\n".join([*HEAD, "    c.seed = 5", "    return c"])
    )
    assert load_config("configs/digits.py").seed == 5
    assert load_config("configs/vit.py:b16").batch_size == 4096


def test_what_differs_from_the_defaults_is_marked():
    lines = describe(load_config(DIGITS, ["optimizer.b2=0.95"])).splitlines()
    assert len(lines) == len(flatten(default_config()))
    for line in ("* optimizer.b2 = 0.95", "* model.name = 'ViT-Ti/2'", "  seed = 0"):
        assert line in lines


@pytest.mark.parametrize(
    ("line", "name"),
    [("config.loss = 'sigmoid'", "loss"), ("config.mixing.form = 'deit'", "mixing")],
)
def test_a_file_for_an_earlier_version_is_told_the_new_key(tmp_path, line, name):
    file = tmp_path / "old.py"
    file.write_text(
        "from vit_jax.config import default_config\n"
        f"def get_config():\n  config = default_config()\n  {line}\n  return config\n"
    )
    with pytest.raises(
        ConfigError, match=rf"line 4: .*config.{name} is config.objective.{name} now"
    ):
        load_config(str(file))


def test_what_overrides_set():
    assert other_units("warmup_steps") == ["warmup_epochs", "warmup_examples"]
    assert other_units("eval_every_epochs") == ["eval_every_steps", "eval_every_examples"]
    for key in ("log_every_steps", "total", "optimizer.accumulation_steps", "total_seconds"):
        assert other_units(key) == []
    keys = chosen_keys(["total_steps=3", "data.source=folder:/a=b"])
    assert keys == {"total_steps", "total_epochs", "total_examples", "data.source"}


def test_a_line_far_inside_is_the_files_own(file):
    path = file(*HEAD, "    def inner():", "        c.seed = 'x'", "    inner()", "    return c")
    with pytest.raises(ConfigError, match=r"mine\.py, line 5: "):
        load_config(path)


def test_unknown_keys_are_told_the_nearest_and_their_section():
    with pytest.raises(ConfigError) as error:
        load_config(DIGITS, ["mesh.dat=1"])
    message = str(error.value)
    listed = message.partition("the nearest: ")[2].rstrip(".").split(", ")
    assert listed[0] == "mesh.data"
    assert {"mesh.fsdp", "mesh.tensor", "mesh.slices"} <= {*listed}
    assert len({*listed}) == len(listed) >= 4
    with pytest.raises(ConfigError) as error:
        load_config(DIGITS, ["sed=1"])
    assert len(str(error.value).partition("the nearest: ")[2].split(", ")) == 3


def test_marks_are_beside_what_differs():
    changed = describe(load_config(DIGITS, ["seed=0", "data.flip=true"])).splitlines()
    marked = {line[2:].partition(" = ")[0] for line in changed if line.startswith("* ")}
    assert {"data.source", "model.width", "batch_size"} & marked == {"data.source", "model.width"}
    assert not {"seed", "data.flip"} & marked
