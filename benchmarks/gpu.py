"""One GPU: is fused attention right, what does the card reach, how fast are training and inference?

    benchmarks/gpu.sh OUTPUT.json [WHEELS]

runs the cases below in their order until nine minutes are nearly over. A JSON file has what each gave;
it is written after each, and cases that it has are not run again. `--table` prints it. The estimate of
`vit_jax.plan`, for the program that was run, stands beside what was measured. `--tiny` shrinks all, to
try the script on a CPU.
"""

import argparse
import dataclasses
import fnmatch
import functools
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import storage
from vit_jax.benchmark.inference import measure_inference
from vit_jax.benchmark.speed import SYNTHETIC, Timing
from vit_jax.benchmark.step import first_batch, measure_step, open_experiment
from vit_jax.config_file import load_config
from vit_jax.errors import UserError
from vit_jax.models.attention import cudnn_attention
from vit_jax.tables import format_table
from vit_jax.training.state import initial_state

STARTED, DONE, FAILED, CRASHED = "started", "done", "failed", "crashed"
TIMING = Timing(seconds=4, repeats=5)
PRODUCT, COPY = 8192, 2**30  # Side of the matrices, bytes.
SHRUNKEN = ("width=32", "depth=2", "num_heads=2", "mlp_width=64", "image_size=32")
HEAD_WIDTH = 64

# Preset, images, overrides. Dropout is off, and the rest as `auto` chooses, unless they say otherwise.
TRAINING = [
    ("b16", 128, ()),
    ("b16", 256, ()),
    ("b16", 256, ("model.dropout_rate=0.1",)),
    ("b16", 512, ()),
    ("l16", 64, ()),
    ("h14", 32, ()),
    ("b16", 128, ("model.attention=xla",)),
    ("b16", 128, ("model.scan_unroll=1",)),
    ("b16", 128, ("model.remat=none",)),
    ("b16", 128, ("model.remat=full",)),
    ("b16", 64, ("model.name=R50+ViT-B/16",)),
    ("b16", 32, ("model.image_size=384",)),
]
INFERENCE = [("b16", 512, ()), ("b16", 128, ("model.image_size=384",))]


@dataclasses.dataclass(frozen=True)
class Scale:
    """Full size, or shrunken: then sizes are these parts of what they are."""

    tiny: bool = False

    def overrides(self, batch_size, overrides):
        """Of the config."""
        shared = ["model.dtype=bfloat16", "model.dropout_rate=0.0", "data.source=fake"]
        shared += [f"model.{option}" for option in SHRUNKEN] if self.tiny else []
        size = 4 if self.tiny else batch_size
        mine = [o for o in overrides if not (self.tiny and o.startswith("model.image_size"))]
        return [*shared, f"batch_size={size}", *mine]

    @property
    def timing(self):
        """How long to measure each."""
        return Timing(seconds=0.05, repeats=2) if self.tiny else TIMING

    def of(self, size):
        """A size of the calibration."""
        return max(64, size >> 10) if self.tiny else size


def configured(preset, batch_size, overrides, scale):
    """The config of a case."""
    return load_config(f"configs/vit.py:{preset}", scale.overrides(batch_size, overrides))


def train(preset, batch_size, overrides, scale):
    """The speed of the step."""
    config = configured(preset, batch_size, overrides, scale)
    return measure_step(config, SYNTHETIC, scale.timing).as_json()


def infer(preset, batch_size, overrides, scale):
    """The speed of the forward pass."""
    config = configured(preset, batch_size, overrides, scale)
    return measure_inference(config, SYNTHETIC, scale.timing).as_json()


def compare_attention(length, scale):
    """Fused attention's largest errors, of values and gradients, as shares of the largest value.

    Both forms are compared with the plain one in float32. `beyond` is the largest value of the result
    and of gradients in the padding of an even length: it must be 0.
    """
    heads, batch = (2, 2) if scale.tiny else (12, 8)
    keys = jax.random.split(jax.random.key(length), 4)
    *padded, weights = (
        jax.random.normal(key, (batch, length + 1, heads, HEAD_WIDTH), jnp.bfloat16) for key in keys
    )
    fused = functools.partial(
        cudnn_attention,
        lengths=(length, length),
        implementation="xla" if jax.default_backend() == "cpu" else "cudnn",
    )

    def plain(query, key, value):
        logits = jnp.einsum(
            "bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32, precision="highest"
        )
        probabilities = jax.nn.softmax(logits / HEAD_WIDTH**0.5).astype(value.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", probabilities, value, precision="highest")

    def results(attend, dtype, operands):
        def loss(*arrays):
            y = attend(*arrays).astype(jnp.float32)
            return (y * weights[:, : y.shape[1]].astype(jnp.float32)).sum(), y

        arrays = [x.astype(dtype) for x in operands]
        gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
        return [np.asarray(x, np.float32) for x in (y, *gradients)]

    operands = [x[:, :length] for x in padded]
    exact = results(plain, jnp.float32, operands)

    def errors(attend):
        found = zip(results(attend, jnp.bfloat16, operands), exact, strict=True)
        return [float(np.abs(one - other).max() / np.abs(other).max()) for one, other in found]

    beyond = [np.abs(x[:, length:]).max() for x in results(fused, jnp.bfloat16, padded)]
    return {"fused": errors(fused), "plain": errors(plain), "beyond": list(map(float, beyond))}


def fastest(function, *arguments):
    """Seconds of the fastest of some runs."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


def calibrate(scale):
    """FLOP/s of a large bfloat16 product, bytes/s of a copy."""
    side, size = scale.of(PRODUCT), scale.of(COPY)
    matrix = jnp.ones((side, side), jnp.bfloat16)
    product = fastest(jax.jit(lambda x: x @ x), matrix)
    copy = fastest(jax.jit(lambda x: x + 1), jnp.ones(size // 4, jnp.float32))
    return {"flops_per_second": 2 * side**3 / product, "bytes_per_second": 2 * size / copy}


def trace_best(document, folder, scale):
    """A profile of three steps of the fastest case of B/16."""
    cases = document["cases"]
    speeds = {
        index: cases[name]["result"]["images_per_second"]
        for index, name in enumerate(names_of(TRAINING, "train"))
        if TRAINING[index][0] == "b16" and cases.get(name, {}).get("status") == DONE
    }
    best = max(speeds, key=speeds.get)
    experiment = open_experiment(configured(*TRAINING[best], scale), SYNTHETIC)
    state = initial_state(experiment.initialize, 0, experiment.state)
    batch = first_batch(experiment, SYNTHETIC)
    compiled = experiment.step.lower(state, {}, batch).compile()
    state, metrics = compiled(state, {}, batch)
    jax.block_until_ready(metrics)
    with jax.profiler.trace(folder):
        for _ in range(3):
            state, metrics = compiled(state, {}, batch)
        jax.block_until_ready(metrics)
    return {"of": names_of(TRAINING, "train")[best], "folder": folder}


def names_of(cases, what):
    """The name of each case of a list."""
    return [" ".join([what, preset, f"batch_size={b}", *o]) for preset, b, o in cases]


def all_cases(document, output, scale):
    """Name -> a function that returns what JSON can hold, in the order of their worth."""
    cases = {
        "attention 197": functools.partial(compare_attention, 197, scale),
        "attention 577": functools.partial(compare_attention, 577, scale),
        "calibration": functools.partial(calibrate, scale),
    }
    training = zip(names_of(TRAINING, "train"), TRAINING, strict=True)
    cases |= {name: functools.partial(train, *case, scale) for name, case in training}
    inference = zip(names_of(INFERENCE, "infer"), INFERENCE, strict=True)
    cases |= {name: functools.partial(infer, *case, scale) for name, case in inference}
    cases["profile"] = functools.partial(trace_best, document, f"{output}.profile", scale)
    return cases


def run(output, deadline, scale, only="*"):
    """Runs what the file lacks, of names that match a pattern, until the deadline."""
    path = pathlib.Path(output)
    document = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    document["device"] = jax.devices()[0].device_kind
    document["versions"] = {"jax": jax.__version__, "python": sys.version.split()[0]}

    def record(name, **found):
        document["cases"][name] = found
        storage.write(path, json.dumps(storage.without_nan(document), indent=1).encode())

    for name, case in document["cases"].items():
        if case["status"] == STARTED:
            record(name, status=CRASHED)
    for name, measure in all_cases(document, output, scale).items():
        known = name in document["cases"]
        if known or time.time() > deadline or not fnmatch.fnmatch(name, only):
            continue
        start = time.time()
        record(name, status=STARTED)
        try:
            result = measure()
        except (UserError, jax.errors.JaxRuntimeError, ValueError) as error:
            record(name, status=FAILED, error=str(error).splitlines()[0][:300])
        else:
            record(name, status=DONE, result=result, seconds=time.time() - start)
        print(f"{name}: {document['cases'][name]['status']}", file=sys.stderr, flush=True)


def table(document):
    """A line for each case."""
    others, rows = (
        [],
        [("case", "images/s", "ms", "estimate, ms", "MFU", "peak, GiB", "compile, s")],
    )
    for name, case in document["cases"].items():
        found = case.get("result", {})
        if case["status"] != DONE:
            rows.append((name, case["status"], case.get("error", ""), *[""] * 4))
        elif "images_per_second" in found:
            program, peak, mfu = found["program"], found["peak_memory_bytes"], found["mfu"]
            estimate = program["estimate_seconds"]
            rows.append(
                (
                    name,
                    f"{found['images_per_second']:,.0f}",
                    f"{1e3 * found['step_seconds']:.1f}",
                    "" if estimate is None else f"{1e3 * estimate:.1f}",
                    "" if mfu is None else f"{mfu:.1%}",
                    "" if peak is None else f"{peak / 2**30:.1f}",
                    f"{program['compile_seconds']:.0f}",
                )
            )
        else:
            others.append(f"{name}: {json.dumps(found)}")
    versions = " ".join(map(" ".join, document["versions"].items()))
    return "\n".join([f"{document['device']}, {versions}", *others, format_table(rows)])


def main():
    """Runs the cases, or prints their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="the JSON file")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds since 1970")
    parser.add_argument("--only", default="*", help="a glob of cases, such as 'train b16*'")
    parser.add_argument("--tiny", action="store_true", help="everything shrunken")
    parser.add_argument("--table", action="store_true", help="print what the file has")
    flags = parser.parse_args()
    if flags.table:
        print(table(json.loads(pathlib.Path(flags.output).read_text())))
    else:
        run(flags.output, flags.deadline, Scale(flags.tiny), flags.only)


if __name__ == "__main__":
    main()
