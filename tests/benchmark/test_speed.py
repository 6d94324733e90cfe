"""Speeds of repeats: how many runs make one, what is derived, the largest batch that fits."""

import dataclasses
import types

import jax
import pytest

from vit_jax import figures
from vit_jax.benchmark import inference, loop
from vit_jax.benchmark import speed as speed_lib
from vit_jax.benchmark import step as step_lib
from vit_jax.benchmark.inference import largest_batch
from vit_jax.benchmark.loop import UntilMeasured, speeds_of
from vit_jax.benchmark.speed import Program, Speed, Timing, grouped, repeat
from vit_jax.benchmark.step import synthetic_batch
from vit_jax.training import clock as clock_lib

PROGRAM = Program(
    compile_seconds=2.0, temporary_bytes=2**30, resident_bytes=2**29, estimate_seconds=0.5
)
SPEED = Speed(
    what="step",
    model="ViT-B/16",
    image_size=(224, 192),
    batch_size=64,
    dtype="bfloat16",
    device="H",
    devices=2,
    data="synthetic",
    execution={"remat": "dots"},
    repeats=(90.0, 150.0, 80.0),
    flops_per_image=1e9,
    peak_flops=4e11,
    first_step_seconds=3.0,
    peak_memory_bytes=None,
    program=PROGRAM,
)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only as a test says."""
    now = [0.0]
    monkeypatch.setattr(speed_lib.time, "perf_counter", lambda: now[0])
    return now


def test_a_repeat_lasts_its_share_of_the_time(clock):
    """Two batches lie ready and cost nothing; each further run takes a quarter of a second."""
    ran = []

    def run(count):
        clock[0] += 0.25 * max(0, sum(ran) + count - 2) - 0.25 * max(0, sum(ran) - 2)
        ran.append(count)

    speeds = repeat(run, images=8, timing=Timing(seconds=30, repeats=3))
    assert ran == [1, 2, 4, 40, 40, 40]
    assert speeds == (32.0, 32.0, 32.0)


def test_the_median_stands_for_the_repeats():
    assert SPEED.images_per_second == 90
    assert SPEED.mfu == 90 * 1e9 / 4e11
    assert dataclasses.replace(SPEED, peak_flops=None).mfu is None
    made = SPEED.as_json()
    assert made["images_per_second_range"] == (80, 150)
    assert made["step_seconds"] == 64 / 90
    assert made["program"]["temporary_bytes"] == 2**30
    text = SPEED.describe()
    assert "90.0, 22.5% MFU; 80.0 to 150.0 in 3 repeats" in text
    assert "711.1 ms; 500.0 ms by the estimate" in text
    assert "an unknown amount at most, 1.00 GiB of temporaries" in text
    assert "ViT-B/16 at 224x192 px in bfloat16: remat dots" in text
    assert "2 x H, a batch of 64, synthetic data" in text
    assert "3.0 s to the first step's end, of them 2.0 s to compile" in text
    larger = dataclasses.replace(SPEED, largest_batch=4096, peak_memory_bytes=3 * 2**29)
    assert "a batch of 4,096 fits" in larger.describe()
    assert "1.50 GiB at most, 1.00 GiB of temporaries" in larger.describe()
    assert "data wait" not in text
    assert "6.0% of the time" in dataclasses.replace(SPEED, data_wait=0.06).describe()


def measured(experiment, **given):
    """In place of `speed_of`: what was measured, without what describes the run."""
    return given


def stand_in(monkeypatch, module, **functions):
    """A measure compiles and trains; here each of its parts is a function that only counts."""
    for name, function in functions.items():
        monkeypatch.setattr(module, name, function)


TRAINING = {
    "open_experiment": lambda config, data: Run(),
    "initial_state": lambda initialize, seed, state: seed,
    "load_frozen": lambda objective, frozen: "frozen",
    "speed_of": measured,
}


def test_inference_is_run_as_often_as_it_is_counted(monkeypatch):
    seen = []

    def predict(params, batch):
        seen.append((params, batch))

    def repeat(run, images, timing):
        assert seen == [("params", 0)], "the first is not measured"
        run(3)
        return images, timing

    experiment = types.SimpleNamespace(options=types.SimpleNamespace(macs=lambda: 5))
    stand_in(
        monkeypatch,
        inference,
        open_experiment=lambda config, data: experiment,
        compiler=lambda experiment: lambda size: (predict, f"of {size}"),
        initial_parameters=lambda experiment: "params",
        pixels=lambda experiment, data: (batch for batch in range(9)),
        repeat=repeat,
        speed_of=measured,
    )
    config = types.SimpleNamespace(batch_size=16)
    found = inference.measure_inference(config, "real", Timing(2, 1))
    assert seen == [("params", batch) for batch in range(4)]
    assert found.pop("first_step_seconds") > 0
    assert found == {
        "what": "eval",
        "data": "real",
        "repeats": (16, Timing(2, 1)),
        "program": "of 16",
        "flops_per_image": 10,
        "largest_batch": None,
    }


@dataclasses.dataclass
class Run:
    initialize: str = "initialize"
    state: object = 0
    objective: str = "objective"
    frozen: str = "shapes"
    step: object = "step"
    batch: str = "shape"
    flops_per_image: float = 7.0


def test_a_step_is_run_as_often_as_it_is_counted(monkeypatch):
    def train_step(state, frozen, batch):
        assert (frozen, batch) == ("frozen", "a batch")
        return state + 1, f"metrics of {state}"

    def repeat(run, images, timing):
        run(3)
        run(2)
        return images, timing

    states = []
    stand_in(
        monkeypatch,
        step_lib,
        **TRAINING,
        first_batch=lambda experiment, data: "a batch",
        compile_program=lambda *given: (train_step, given),
        repeat=repeat,
    )
    monkeypatch.setattr(step_lib.jax, "block_until_ready", states.append)
    config = types.SimpleNamespace(seed=100, batch_size=16)
    found = step_lib.measure_step(config, "real", Timing(2, 1))
    assert states == [f"metrics of {state}" for state in (100, 103, 105)]
    assert found.pop("first_step_seconds") > 0
    assert found == {
        "what": "step",
        "data": "real",
        "repeats": (16, Timing(2, 1)),
        "program": ("step", 100, "frozen", "a batch"),
        "flops_per_image": 7.0,
    }


def test_a_loop_ends_when_it_has_records_enough_and_starts_with_its_first(monkeypatch):
    kinds = [f"time/{kind}" for kind in clock_lib.Kind]
    rising = range(1, 7)
    records = [
        {"train/examples": 8 * n, **{name: 10.0 * n + i for i, name in enumerate(kinds)}}
        for n in rising
    ]
    given = []
    log = types.SimpleNamespace(clock="clock", close=lambda: given.append("closed"))
    stand_in(
        monkeypatch,
        loop,
        **TRAINING,
        endless=lambda experiment, data: experiment,
        compile_program=lambda *asked: ("compiled", asked),
        open_log=lambda experiment, directory, start: log,
        Profiler=lambda *asked: None,
        train=lambda *asked: given.append(asked),
        read_records=lambda path: records,
    )
    config = types.SimpleNamespace(seed=100, log_every_steps=5, profile=None)
    found = loop.measure_loop(config, "real", Timing(2, 4))
    (experiment, state, frozen, tools), closed = given
    assert (state, frozen, closed) == (100, "frozen", "closed")
    assert experiment.step.lower(1, 2).compile() == "compiled"
    until = tools.patience
    assert (until.clock, until.seconds) == ("clock", 2)
    assert until.steps == 5 * 5 + clock_lib.STEPS_IN_FLIGHT + 1
    assert found["first_step_seconds"] == sum(10.0 + i for i in range(len(kinds)))
    assert found["repeats"] == (8 / 20,) * 4
    assert found["data_wait"] == 0.5
    assert found["program"] == ("step", 100, "frozen", "shape")


def test_intervals_are_joined_to_repeats():
    assert grouped([4, 4, 4, 4, 4], [1, 1, 2, 2, 9], 2) == (4.0, 2.0)
    assert grouped([4, 4], [1, 2], 5) == (4.0, 2.0)


def test_a_loop_s_speed_is_that_between_its_records():
    """The first step's, and that of the interval which it begins, are left out."""
    records = [
        {"train/examples": 8 * step, "time/steps": 9.0 + step, "time/data_wait": wait}
        for step, wait in ((1, 5.0), (2, 5.5), (4, 5.5), (6, 6.5))
    ]
    assert speeds_of(records, 2) == ((16 / 2.0, 16 / 3.0), 1.0 / 5.0)


def test_the_largest_batch_is_a_power_of_two_on_each_device():
    tried = []

    def needed(batch):
        tried.append(batch)
        return 100 + 10 * batch if batch < 64 else None

    assert largest_batch(needed, devices=2, capacity=500) == 32
    assert tried == [2, 4, 8, 16, 32, 64]
    assert largest_batch(needed, devices=2, capacity=300) == 16
    assert largest_batch(needed, devices=8, capacity=100) == 0
    assert largest_batch(needed, devices=2, capacity=260) == 16, "just so much"
    assert largest_batch(lambda batch: 1, devices=2, capacity=1) == 2 * 2**16


def test_what_does_not_fit_is_known_by_the_compilers_error():
    def compile_for(batch):
        if batch > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: " if batch < 9 else "INTERNAL: ")
        return None, PROGRAM

    needed = inference.bytes_of(compile_for)
    assert (needed(4), needed(8)) == (2**30 + 2**29, None)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        needed(16)
    message = str(inference.does_not_fit(2**30, 2**29))
    assert message.startswith(
        "One image on each device needs 1.00 GiB of memory, and it has 0.50 GiB:"
    )


def test_plots_are_of_one_device_over_the_size():
    small = dataclasses.replace(SPEED, image_size=(64, 32), repeats=(500.0,), largest_batch=512)
    other = dataclasses.replace(SPEED, model="R50", largest_batch=None)
    speeds = [dataclasses.replace(SPEED, largest_batch=64), small, other]
    for paint, label, expected in (
        (
            inference.paint_speed,
            "images/s on H",
            {"ViT-B/16": [[64, 250], [224, 45]], "R50": [[224, 45]]},
        ),
        (inference.paint_largest, "largest batch on H", {"ViT-B/16": [[64, 256], [224, 32]]}),
    ):
        with figures.painted(lambda axes, paint=paint: paint(axes, speeds), figures.SIZE) as figure:
            (axes,) = figure.axes
            assert {line.get_label(): line.get_xydata().tolist() for line in axes.lines} == expected
            assert (axes.get_ylabel(), axes.get_yscale()) == (label, "log")
            assert axes.get_xlabel() == "image size (pixels)"


def test_a_figure_of_batches_is_written_where_any_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "plot", lambda paint: figures.Picture(b"png", b"svg"))
    known = dataclasses.replace(SPEED, largest_batch=64)
    for speeds, count in (([SPEED], 2), ([SPEED, known], 4)):
        files = inference.write_plots(speeds, str(tmp_path))
        assert len(files) == count
        assert {path.rpartition(".")[2] for path in files} == {"png", "svg"}
    assert (tmp_path / "largest_batch.svg").read_bytes() == b"svg"


def test_the_loop_goes_on_until_both_the_time_and_the_records_are_enough():
    clock = types.SimpleNamespace(seconds=1.0)
    until = UntilMeasured(clock, seconds=2.0, steps=10)
    for step, seconds, over in ((9, 9.0, False), (10, 1.9, False), (10, 2.0, True)):
        clock.seconds = seconds
        until.see(step, {})
        assert until.over == over


def test_what_is_given_away_is_not_held_twice():
    values = jax.numpy.ones(1024)
    for donated, held in (((), 8192), ((0,), 4096)):
        function = jax.jit(lambda x: x + 1, donate_argnums=donated)
        _, program = speed_lib.compile_program(function, values)
        assert program.resident_bytes == held


def test_the_peak_is_that_of_all_devices(monkeypatch):
    monkeypatch.setattr(speed_lib.hardware, "peak_flops", lambda device: device)
    assert speed_lib.peak_of_all([5.0, 5.0, 5.0]) == 15
    assert speed_lib.peak_of_all([None]) is None


def test_a_synthetic_batch_is_like_a_real_one():
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {
        "image": ((64, 4, 4, 3), "uint8"),
        "label": ((64,), "int32"),
        "mask": ((64,), "bool"),
        "index": ((64,), "int32"),
    }

    def batch(classes=5, seed=0, label=(64,)):
        given = {**shapes, "label": (label, "int32")}
        return synthetic_batch(
            types.SimpleNamespace(
                config=types.SimpleNamespace(seed=seed),
                dataset=types.SimpleNamespace(num_classes=classes),
                batch={
                    name: jax.ShapeDtypeStruct(*shape, sharding=where)
                    for name, shape in given.items()
                },
            )
        )

    found = batch()
    assert {name: (x.shape, x.dtype) for name, x in found.items()} == shapes
    assert (found["image"].min(), found["image"].max()) == (0, 255)
    assert set(found["label"].tolist()) == set(range(5))
    assert set(batch(label=(64, 5))["label"].ravel().tolist()) == {0, 1}
    assert found["mask"].all()
    assert found["index"].tolist() == [*range(64)]
    assert not (found["image"] == batch(seed=1)["image"]).all()


def test_a_program_holds_its_arguments_and_its_temporaries():
    assert PROGRAM.bytes == 2**30 + 2**29
    assert dataclasses.replace(PROGRAM, temporary_bytes=None).bytes is None
