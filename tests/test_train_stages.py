"""The trainer's own lines, with stand-ins for what they call: what each is given, and what must come first."""

import contextlib
import threading
import types

import pytest
from etils import epath

from tests.stages import config_with
from vit_jax import train
from vit_jax.errors import PreemptedError


class Events(list):
    """What was called, in order."""

    def noting(self, name, result=None):
        def call(*given, **options):
            self.append((name, *given, *([options] if options else [])))
            return result

        return call

    @contextlib.contextmanager
    def around(self, name):
        self.append((name, "begins"))
        yield
        self.append((name, "ends"))

    def given(self, name):
        """What each call of that name was given."""
        return [event[1:] for event in self if event[0] == name]

    def positions(self, *names):
        return [position for position, event in enumerate(self) if event[0] in names]

    def inside(self, name):
        """The names of all calls while something of that name went on."""
        begins, ends = (
            [at for at in self.positions(name) if self[at][1] == what]
            for what in ("begins", "ends")
        )
        spans = zip(begins, ends, strict=True)
        return [event[0] for begin, end in spans for event in self[begin + 1 : end]]

    def come_before(self, earlier, later):
        """Whether all calls of the one name come before all of the other."""
        return max(self.positions(earlier)) < min(self.positions(later))


# ------------------------------------------------------------------------------------ the loop


class Loop:
    """Updates 4 to 6, of which 5 is evaluated and 6 is the last."""

    def __init__(self, monkeypatch, *, every=0, due=(5,), best=(), stop_at=0, over_at=0):
        events = self.events = Events()
        self.step = 3

        def compiled(state, frozen, batch):
            self.step = batch
            events.append(("update", state, frozen, batch))
            return f"state {batch}", f"metrics {batch}"

        def lower(*given):
            events.append(("lower", *given))
            return types.SimpleNamespace(compile=events.noting("compiled", compiled))

        def draw(start):
            events.append(("batches", start))
            yield from range(start + 1, 99)

        config = types.SimpleNamespace(seed=11)
        durations = types.SimpleNamespace(total=6, checkpoint_every=every)
        self.experiment = types.SimpleNamespace(
            config=config,
            durations=durations,
            step=types.SimpleNamespace(lower=lower),
            objective="objective",
            mesh="mesh",
            batches=draw,
        )
        preview = lambda batch, step: ("picture", batch, step)  # noqa: E731
        monkeypatch.setattr(train, "make_preview", events.noting("make_preview", preview))
        monkeypatch.setattr(train.distributed, "gather", events.noting("meet"))
        monkeypatch.setattr(
            train, "saved_if_it_fails", lambda *what: events.around(("guard", *what))
        )
        log = types.SimpleNamespace(
            **{name: events.noting(name) for name in ("start", "add", "drain", "write", "flush")},
            write_image=events.noting("image"),
            spending=lambda kind: events.around(str(kind)),
        )
        results = (NUMBERS, {"eval/map": "map"})
        self.evaluation = types.SimpleNamespace(
            due=lambda step: step in due, measure=events.noting("measure", results)
        )
        loop = self

        class Patience:
            see = staticmethod(events.noting("see"))

            @property
            def over(self):
                return 0 < over_at <= loop.step

        self.checkpoints = types.SimpleNamespace(
            latest_step=3,
            is_best=lambda numbers: bool(numbers) and self.step in best,
            save=events.noting("save"),
        )
        profiler = types.SimpleNamespace(
            before=events.noting("before"),
            after=events.noting("after"),
            close=events.noting("close profiler"),
        )
        self.tools = train.Tools(
            self.evaluation,
            self.checkpoints,
            log,
            profiler,
            Patience(),
            lambda: self.step == stop_at,
        )
        self.log = log

    def run(self):
        train.train(self.experiment, "state 3", "frozen", self.tools)
        return self.events


STEPS = (4, 5, 6)
NUMBERS = {"eval/x": 0.25}


def test_each_update_goes_on_from_the_last_with_its_own_batch(monkeypatch):
    loop = Loop(monkeypatch)
    events, drain = loop.run(), loop.log.drain
    assert events.given("batches") == [(3,)]
    assert events.given("lower") == [("state 3", "frozen", 4)]
    assert events.given("update") == [(f"state {step - 1}", "frozen", step) for step in STEPS]
    assert events.given("add") == [(step, f"metrics {step}") for step in STEPS]
    assert events.given("before") == [(step,) for step in STEPS]
    assert events.given("after") == [(step, drain) for step in STEPS]
    assert events.given("see") == [(step, NUMBERS if step == 5 else {}) for step in STEPS]
    assert events.given("start") == [(3,)]


def test_what_a_run_shows_measures_and_saves(monkeypatch):
    loop = Loop(monkeypatch)
    events = loop.run()
    assert events.given("make_preview") == [("objective", 11, "mesh")]
    augmented = (4, "train/augmented_batch", ("picture", 4, 4))
    assert events.given("image") == [augmented, (5, "eval/map", "map")]
    assert events.given("measure") == [(5, "state 5", "frozen")]
    assert events.given("write") == [(5, NUMBERS)]
    assert events.given("save") == [(6, "state 6", {})]
    guard = ("guard", 5, "state 5", loop.log, loop.tools.checkpoints)
    assert events.inside(guard) == ["measure"]  # An evaluation that fails costs no update.


def test_where_the_time_goes_is_counted(monkeypatch):
    events = Loop(monkeypatch).run()
    assert events.given("data_wait") == [("begins",), ("ends",)] * len(STEPS)
    assert events.inside("data_wait") == ["batches"]
    assert events.inside("compile") == ["lower", "compiled", "meet"]
    assert "measure" in events.inside("evaluation")
    assert "save" in events.inside("saving")
    assert events.come_before("compiled", "start")  # The first rate is one of updates.
    assert events.come_before("start", "update")


def test_nothing_of_an_infinite_loss_is_measured_or_saved(monkeypatch):
    """`drain` raises for it: it comes after the last update, before either."""
    events = Loop(monkeypatch).run()
    for position in events.positions("measure", "save"):
        before = Events(events[:position])
        assert max(before.positions("drain")) > max(before.positions("add"))


def test_records_are_on_the_disk_before_the_checkpoint_that_would_cut_them(monkeypatch):
    events = Loop(monkeypatch, every=5).run()
    for position in events.positions("save"):
        before = Events(events[:position])
        assert max(before.positions("flush")) > max(before.positions("add", "write", "image"))


def test_a_trace_has_whole_updates(monkeypatch):
    events = Loop(monkeypatch).run()
    around = [event[:2] for event in events if event[0] in ("before", "after")]
    assert around == [(name, step) for step in STEPS for name in ("before", "after")]
    # It ends by waiting for the numbers that were added.
    parts = ("before", "update", "add", "after")
    assert all(list(at) == sorted(at) for at in zip(*map(events.positions, parts), strict=True))


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({}, [6]),
        ({"every": 2}, [4, 6]),
        ({"every": 5}, [5, 6]),
        ({"best": (5,)}, [5, 6]),
        ({"best": (4,)}, [6]),  # It was not measured.
        ({"over_at": 5}, [5]),  # The patience is, and so is the run.
        ({"over_at": 3}, []),  # Nothing is left to do.
    ],
)
def test_when_the_state_is_saved(monkeypatch, options, saved):
    events = Loop(monkeypatch, **options).run()
    assert [event[1] for event in events if event[0] == "save"] == saved
    assert events[-1] == ("close profiler",)
    numbers = {event[1]: event[3] for event in events if event[0] == "save"}
    assert numbers == {step: NUMBERS if step == 5 else {} for step in saved}


@pytest.mark.parametrize(("stop_at", "ends"), [(4, True), (5, True), (6, False)])
def test_a_run_that_is_stopped_saves_and_says_how_to_go_on(monkeypatch, stop_at, ends):
    loop = Loop(monkeypatch, stop_at=stop_at)
    if ends:
        with pytest.raises(PreemptedError) as error:
            loop.run()
        assert str(error.value) == (
            f"Stopped after step {stop_at}, which is saved. Start the same command again to go on."
        )
    else:
        loop.run()
    (saved,) = [event for event in loop.events if event[0] == "save"]
    assert saved[1:3] == (stop_at, f"state {stop_at}")
    assert loop.events[-1] == ("close profiler",)


# -------------------------------------------------------------------------------- a run's stages


def stand_in(monkeypatch, events, **found):
    """Has each of these names of the module note its call and return what it finds."""
    for name, result in found.items():
        owner, _, attribute = name.rpartition("__")
        owner = getattr(train, owner) if owner else train
        monkeypatch.setattr(owner, attribute, events.noting(name, result))


@pytest.fixture
def stages(monkeypatch):
    events = Events()
    examples = types.SimpleNamespace(num_examples=77)
    dataset = types.SimpleNamespace(source="source", num_examples=77)
    experiment = types.SimpleNamespace(dataset=examples)
    evaluation = types.SimpleNamespace(data="data", check_same=events.noting("check evaluation"))
    beginning = types.SimpleNamespace(
        source="weights", fitted=events.noting("fitted", "fitted beginning")
    )
    known = types.SimpleNamespace(mesh="mesh of", data="data of", init="weights")
    stand_in(
        monkeypatch,
        events,
        config_lib__validate=None,
        check_path=None,
        workdir__check_apart_from_weights=None,
        as_recorded=types.SimpleNamespace(**vars(known)),
        with_architecture=known,
        sharding__build_mesh="mesh",
        check_batch=None,
        open_dataset=dataset,
        find_beginning=beginning,
        make_experiment=experiment,
        describe_run="described",
        with_index="data with index",
        open_evaluation=evaluation,
        check_run=None,
        distributed__check_same=None,
        workdir__open_directory="opened",
        run_experiment={"step": 3},
    )
    monkeypatch.setattr(train.claim, "held", lambda path: events.around(("held", path)))
    return types.SimpleNamespace(
        events=events, dataset=dataset, experiment=experiment, evaluation=evaluation, config=known
    )


def test_each_part_of_a_run_is_made_of_the_others(stages):
    config, known = types.SimpleNamespace(init="given"), stages.config
    assert train.run(config, "DIR", chosen=("a",)) == {"step": 3}
    made = {event[0]: list(event[1:]) for event in stages.events}
    *given, stop = made.pop("run_experiment")
    assert given == [stages.experiment, stages.evaluation, "fitted beginning", "DIR"]
    assert not stop.is_set()
    assert made.pop(("held", "opened")) == ["ends"]
    assert made == {
        "config_lib__validate": [config],
        "check_path": ["DIR"],
        "workdir__check_apart_from_weights": ["DIR", "given"],
        "as_recorded": [config, "DIR", ("a",)],
        "with_architecture": [known, {"cached_only": False}],
        "sharding__build_mesh": ["mesh of"],
        "check_batch": [known, "mesh"],
        "open_dataset": [known, {"required": True, "index_dir": "DIR/index"}],
        "find_beginning": [known, "DIR", stages.dataset],
        "make_experiment": [known, "mesh", stages.dataset, "weights"],
        "fitted": [stages.experiment],
        "describe_run": [stages.experiment],
        "with_index": ["data of", "DIR/index"],
        "open_evaluation": [stages.experiment, "data with index"],
        "check_run": [stages.dataset, "data"],
        "distributed__check_same": ["training examples", 77],
        "check evaluation": [],
        "workdir__open_directory": ["DIR"],
    }
    stop = threading.Event()
    train.run(config, "DIR", stop=stop)
    assert stages.events.given("run_experiment")[1][-1] is stop


def test_what_is_refused_is_refused_before_anything_is_touched(stages):
    train.run(types.SimpleNamespace(init="given"), "DIR")
    events = stages.events
    assert events[0][0] == "config_lib__validate"
    for check in ("check_path", "workdir__check_apart_from_weights"):
        assert events.come_before(check, "as_recorded")  # Which reads the workdir.
    assert events.come_before("check_batch", "open_dataset")  # Which may take minutes.
    for check in ("check_run", "distributed__check_same", "check evaluation"):
        assert events.come_before(check, "workdir__open_directory")
    assert events.inside(("held", "opened")) == ["run_experiment"]


@pytest.mark.parametrize("source", ["source", None])
def test_a_dry_run_touches_no_workdir_and_asks_nothing_of_the_network(stages, source, caplog):
    stages.dataset.source = source
    with caplog.at_level("INFO", logger="vit_jax"):
        assert train.run("config", "DIR", dry_run=True) == {}
    touching = {"check_path", "workdir__check_apart_from_weights", "as_recorded"}
    touching |= {"workdir__open_directory", ("held", "opened"), "run_experiment"}
    called = {event[0] for event in stages.events}
    assert not touching & called
    assert stages.events.given("with_architecture") == [("config", {"cached_only": True})]
    (opened,) = stages.events.given("open_dataset")
    assert opened == (stages.config, {"required": False, "index_dir": ""})
    assert stages.events.given("find_beginning") == [(stages.config, "", stages.dataset)]
    # Without the data there is nothing to evaluate on.
    assert stages.events.given("with_index") == ([("data of", "")] if source else [])
    assert ("open_evaluation" in called) == ("check_run" in called) == bool(source)
    assert caplog.messages == ["described"]


@pytest.mark.parametrize(("start", "process"), [(0, 0), (0, 1), (7, 0)])
def test_a_run_opens_its_files_as_the_config_says(monkeypatch, start, process):
    events = Events()
    config = config_with(keep_checkpoints=3, watchdog_minutes=0.5, stop_after=4)
    directory = epath.Path("DIR")
    log = types.SimpleNamespace(clock="clock", last_record={"step": 9})
    log.close = events.noting("close log")
    checkpoints = types.SimpleNamespace(latest_step=start, close=events.noting("close checkpoints"))
    beginning = types.SimpleNamespace(state=events.noting("begin", "state"))
    evaluation = types.SimpleNamespace(best_metric="eval/x")
    evaluation.recorded_in = events.noting("recorded_in", "recorded")
    experiment = types.SimpleNamespace(
        config=config, inputs="inputs", objective="objective", frozen="shapes", model_file="model"
    )
    stand_in(
        monkeypatch,
        events,
        workdir__enable_compilation_cache=None,
        Checkpoints=checkpoints,
        workdir__record_config=None,
        load_frozen="frozen",
        write_model_file=None,
        open_log=log,
        Profiler="profiler",
        open_patience="patience",
        stopping_after="stop",
        train=None,
    )
    monkeypatch.setattr(train, "watching", lambda *what: events.around(("watching", *what)))
    monkeypatch.setattr(train.jax, "process_index", lambda: process)
    found = train.run_experiment(experiment, evaluation, beginning, "DIR", "event")
    assert found == {"step": 9}
    tools = train.Tools("recorded", checkpoints, log, "profiler", "patience", "stop")
    watched = ("watching", 0.5, "clock")
    made = {event[0]: list(event[1:]) for event in events if event[0] != watched}
    assert made == {
        "workdir__enable_compilation_cache": [directory],
        "Checkpoints": [directory, {"keep": 3, "best_metric": "eval/x"}],
        "workdir__record_config": [directory, config, "inputs", "eval/x", {"resuming": start > 0}],
        "begin": [experiment, checkpoints],
        "load_frozen": ["objective", "shapes"],
        **({"write_model_file": [directory, "model"]} if process == 0 else {}),
        "open_log": [experiment, directory, start],
        "Profiler": [config.profile, directory],
        "open_patience": [directory, "eval/x", 4, start],
        "recorded_in": [directory, start],
        "stopping_after": ["event"],
        "train": [experiment, "state", "frozen", tools],
        "close log": [],
        "close checkpoints": [],
    }
    assert {"train", "close log", "close checkpoints"} <= set(
        events.inside(watched)
    )  # These may hang.
    assert events.come_before("train", "close log")
    assert events.come_before("close log", "close checkpoints")  # Whose error is the one to tell.
    assert events.come_before("workdir__enable_compilation_cache", "begin")  # Which compiles.
    assert events.come_before("Checkpoints", "open_log")
