"""The trainer's own lines, with stand-ins for what they call: what is called, when, and with what."""

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

    def names(self):
        return [event[0] for event in self]


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
            return types.SimpleNamespace(compile=events.noting("compile", compiled))

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
        results = ({"eval/x": 0.25}, {"eval/map": "map"})
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


def test_an_update_and_all_that_follows_it_come_in_their_order(monkeypatch):
    loop = Loop(monkeypatch)
    log, tools = loop.log, loop.tools
    guard = ("guard", 5, "state 5", log, tools.checkpoints)
    assert loop.run() == [
        ("make_preview", "objective", 11, "mesh"),
        ("data_wait", "begins"),
        ("batches", 3),
        ("data_wait", "ends"),
        ("image", 4, "train/augmented_batch", ("picture", 4, 4)),
        ("compile", "begins"),
        ("lower", "state 3", "frozen", 4),
        ("compile",),
        ("meet", 0),
        ("compile", "ends"),
        ("start", 3),
        ("before", 4),
        ("update", "state 3", "frozen", 4),
        ("add", 4, "metrics 4"),
        ("after", 4, log.drain),
        ("see", 4, {}),
        ("data_wait", "begins"),
        ("data_wait", "ends"),
        ("before", 5),
        ("update", "state 4", "frozen", 5),
        ("add", 5, "metrics 5"),
        ("after", 5, log.drain),
        ("drain",),
        ("evaluation", "begins"),
        (guard, "begins"),
        ("measure", 5, "state 5", "frozen"),
        (guard, "ends"),
        ("evaluation", "ends"),
        ("write", 5, {"eval/x": 0.25}),
        ("image", 5, "eval/map", "map"),
        ("see", 5, {"eval/x": 0.25}),
        ("data_wait", "begins"),
        ("data_wait", "ends"),
        ("before", 6),
        ("update", "state 5", "frozen", 6),
        ("add", 6, "metrics 6"),
        ("after", 6, log.drain),
        ("see", 6, {}),
        ("drain",),
        ("saving", "begins"),
        ("flush",),
        ("save", 6, "state 6", {}),
        ("saving", "ends"),
        ("close profiler",),
    ]


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
    assert events.names()[-1] == "close profiler"
    numbers = {event[1]: event[3] for event in events if event[0] == "save"}
    assert numbers == {step: {"eval/x": 0.25} if step == 5 else {} for step in saved}


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
    assert loop.events.names()[-1] == "close profiler"


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


def test_what_a_run_does_before_it_trains(stages):
    config, known = types.SimpleNamespace(init="given"), stages.config
    assert train.run(config, "DIR", chosen=("a",)) == {"step": 3}
    *events, (_, *last), held = stages.events
    assert events == [
        ("config_lib__validate", config),
        ("check_path", "DIR"),
        ("workdir__check_apart_from_weights", "DIR", "given"),
        ("as_recorded", config, "DIR", ("a",)),
        ("with_architecture", known, {"cached_only": False}),
        ("sharding__build_mesh", "mesh of"),
        ("check_batch", known, "mesh"),
        ("open_dataset", known, {"required": True, "index_dir": "DIR/index"}),
        ("find_beginning", known, "DIR", stages.dataset),
        ("make_experiment", known, "mesh", stages.dataset, "weights"),
        ("fitted", stages.experiment),
        ("describe_run", stages.experiment),
        ("with_index", "data of", "DIR/index"),
        ("open_evaluation", stages.experiment, "data with index"),
        ("check_run", stages.dataset, "data"),
        ("distributed__check_same", "training examples", 77),
        ("check evaluation",),
        ("workdir__open_directory", "DIR"),
        (("held", "opened"), "begins"),
    ]
    assert held == (("held", "opened"), "ends")
    assert last[:4] == [stages.experiment, stages.evaluation, "fitted beginning", "DIR"]
    assert not last[4].is_set()
    stop = threading.Event()
    train.run(config, "DIR", stop=stop)
    assert stages.events[-2][5] is stop


@pytest.mark.parametrize("source", ["source", None])
def test_a_dry_run_touches_no_workdir_and_asks_nothing_of_the_network(stages, source, caplog):
    stages.dataset.source = source
    with caplog.at_level("INFO", logger="vit_jax"):
        assert train.run("config", "DIR", dry_run=True) == {}
    expected = [
        ("config_lib__validate", "config"),
        ("with_architecture", "config", {"cached_only": True}),
        ("sharding__build_mesh", "mesh of"),
        ("check_batch", stages.config, "mesh"),
        ("open_dataset", stages.config, {"required": False, "index_dir": ""}),
        ("find_beginning", stages.config, "", stages.dataset),
        ("make_experiment", stages.config, "mesh", stages.dataset, "weights"),
        ("fitted", stages.experiment),
        ("describe_run", stages.experiment),
    ]
    opened = [
        ("with_index", "data of", ""),
        ("open_evaluation", stages.experiment, "data with index"),
        ("check_run", stages.dataset, "data"),
    ]
    assert stages.events == (expected + opened if source else expected)
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
    resuming = {"resuming": start > 0}
    tools = train.Tools("recorded", checkpoints, log, "profiler", "patience", "stop")
    assert events == [
        ("workdir__enable_compilation_cache", directory),
        ("Checkpoints", directory, {"keep": 3, "best_metric": "eval/x"}),
        ("workdir__record_config", directory, config, "inputs", "eval/x", resuming),
        ("begin", experiment, checkpoints),
        ("load_frozen", "objective", "shapes"),
        *([("write_model_file", directory, "model")] if process == 0 else []),
        ("open_log", experiment, directory, start),
        (("watching", 0.5, "clock"), "begins"),
        ("Profiler", config.profile, directory),
        ("open_patience", directory, "eval/x", 4, start),
        ("recorded_in", directory, start),
        ("stopping_after", "event"),
        ("train", experiment, "state", "frozen", tools),
        ("close log",),
        ("close checkpoints",),
        (("watching", 0.5, "clock"), "ends"),
    ]
