"""Our training step against timm's (eager, compiled) and a plain Flax one, on the same device, in turns.

    PYTHONPATH=. python benchmarks/side_by_side.py [--model=Ti] [--batch_size=16] [--rounds=9]
        [--threads=2] [--dtype=float32] [--ways=ours,flax,timm,timm_compiled] [--output=FILE.json]
        [--timm_python=/path/to/python] [--timm_path=DIR]

Each way is a process that trains ViT-SIZE/16 at 224 px with AdamW on one synthetic batch, without dropout;
one works at a time, a round after the other, and the rest sleep. timm may lie in an environment of its own,
with what else its imports need in --timm_path. Printed for each: seconds of a step, the median, lowest and
highest of the rounds; CPU seconds of all threads; both as multiples of timm's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

SIZES = {  # Width, heads, of 12 blocks.
    "Ti": (192, 3),
    "S": (384, 6),
    "B": (768, 12),
}
TIMM_NAMES = {"Ti": "tiny", "S": "small", "B": "base"}
CLASSES, PIXELS, PATCH, DEPTH = 1000, 224, 16, 12
RATE, DECAY = 1e-3, 0.1
REST_SECONDS = 0.3  # Before a turn: threads of the last one may still spin.
WARM_UP = 2


def ours(flags):
    """The step of `vit_jax.main`, in a process with its allocator."""
    from vit_jax.allocator import keep_freed_memory

    keep_freed_memory()
    from vit_jax.benchmark.step import open_experiment, synthetic_batch
    from vit_jax.config import default_config
    from vit_jax.training.state import initial_state

    config = default_config()
    config.model.update(
        {"name": f"ViT-{flags.model}/{PATCH}", "num_classes": CLASSES, "dtype": flags.dtype}
    )
    config.data.update({"source": "fake", "num_train_examples": 1000})
    config.update({"batch_size": flags.batch_size, "total_steps": 10_000})
    config.optimizer.update({"name": "adamw", "learning_rate": RATE, "weight_decay": DECAY})
    experiment = open_experiment(config, "synthetic")
    state = initial_state(experiment.initialize, 0, experiment.state)
    batch = synthetic_batch(experiment)
    compiled = experiment.step.lower(state, {}, batch).compile()

    def step():
        nonlocal state
        state, metrics = compiled(state, {}, batch)
        return float(metrics["loss"])

    return step


def flax(flags):
    """A step as Flax's tutorials write it: a module for each block, `nnx.jit`, optax."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    width, heads = SIZES[flags.model]

    class Block(nnx.Module):
        def __init__(self, rngs):
            kinds = {"dtype": flags.dtype, "rngs": rngs}
            self.norm1, self.norm2 = nnx.LayerNorm(width, **kinds), nnx.LayerNorm(width, **kinds)
            self.attention = nnx.MultiHeadAttention(heads, width, decode=False, **kinds)
            self.dense1 = nnx.Linear(width, 4 * width, **kinds)
            self.dense2 = nnx.Linear(4 * width, width, **kinds)

        def __call__(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.dense2(nnx.gelu(self.dense1(self.norm2(x))))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.patches = nnx.Conv(
                3, width, (PATCH, PATCH), strides=PATCH, dtype=flags.dtype, rngs=rngs
            )
            self.token = nnx.Param(jnp.zeros((1, 1, width)))
            self.positions = nnx.Param(jnp.zeros((1, 1 + (PIXELS // PATCH) ** 2, width)))
            self.blocks = nnx.List([Block(rngs) for _ in range(DEPTH)])
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.head = nnx.Linear(width, CLASSES, rngs=rngs)

        def __call__(self, images):
            x = self.patches(images).reshape(len(images), -1, width)
            token = jnp.broadcast_to(self.token[...], (len(images), 1, width)).astype(x.dtype)
            x = jnp.concatenate([token, x], 1) + self.positions[...].astype(x.dtype)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x[:, 0].astype(jnp.float32)))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(RATE, weight_decay=DECAY), wrt=nnx.Param)
    images = jax.random.normal(jax.random.key(0), (flags.batch_size, PIXELS, PIXELS, 3))
    labels = jnp.arange(flags.batch_size) % CLASSES

    @nnx.jit
    def update(model, optimizer):
        def loss(model):
            losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
            return losses.mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return lambda: float(update(model, optimizer))


def timm(flags, *, compiled=False):
    """timm's model with PyTorch's AdamW."""
    import torch
    from timm import create_model

    torch.manual_seed(0)
    torch.set_num_threads(flags.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = f"vit_{TIMM_NAMES[flags.model]}_patch{PATCH}_{PIXELS}"
    model = create_model(name, num_classes=CLASSES).to(device).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    images = torch.randn(flags.batch_size, 3, PIXELS, PIXELS, device=device)
    labels = torch.arange(flags.batch_size, device=device) % CLASSES
    half = torch.autocast(device, torch.bfloat16, enabled=flags.dtype == "bfloat16")

    def step():
        optimizer.zero_grad()
        with half:
            loss = torch.nn.functional.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def timm_compiled(flags):
    """The same through `torch.compile`."""
    return timm(flags, compiled=True)


WAYS = {way.__name__: way for way in (ours, flax, timm, timm_compiled)}


def work(flags):
    """A process of one way: a line of JSON for each line on standard input."""
    step = WAYS[flags.worker](flags)
    for _ in range(WARM_UP):
        step()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        cpu, start = time.process_time(), time.perf_counter()
        loss = step()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "loss": loss}), flush=True)


def start(way, flags):
    """Starts the process of a way, on so many cores."""
    environment, python = dict(os.environ), sys.executable
    environment |= {"OMP_NUM_THREADS": str(flags.threads), "JAX_PLATFORMS": flags.platform}
    if way.startswith("timm"):
        python = flags.timm_python or python
        environment["PYTHONPATH"] = flags.timm_path
    passed = [
        f"--{name}={getattr(flags, name)}" for name in ("model", "batch_size", "dtype", "threads")
    ]
    command = [python, __file__, f"--worker={way}", *passed]
    if flags.platform == "cpu" and hasattr(os, "sched_setaffinity"):
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: flags.threads]))
        command = ["taskset", "-c", cores, *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def answer(process):
    """The next line of a way, past what libraries print; None where it has ended."""
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    return None


def measure(flags):
    """The rounds of each way that starts."""
    processes, rounds = {}, {}
    for way in flags.ways.split(","):
        process = start(way, flags)
        if answer(process) is None:
            print(f"{way}: does not start (see above)", file=sys.stderr)
        else:
            processes[way], rounds[way] = process, []
    for number in range(flags.rounds):
        ways = list(processes)
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            time.sleep(REST_SECONDS)
            processes[way].stdin.write("\n")
            processes[way].stdin.flush()
            rounds[way].append(answer(processes[way]))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return rounds


def summary(rounds):
    """The figures of each way."""
    found = {}
    for way, results in rounds.items():
        seconds, cpu = ([r[name] for r in results] for name in ("seconds", "cpu_seconds"))
        found[way] = {
            "seconds": statistics.median(seconds),
            "seconds_range": [min(seconds), max(seconds)],
            "cpu_seconds": statistics.median(cpu),
            "losses": [r["loss"] for r in results],
        }
    for way in found.values():
        for name in ("seconds", "cpu_seconds"):
            if "timm" in found:
                way[f"{name}_of_timm"] = way[name] / found["timm"][name]
    return found


def main():
    """Runs the rounds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="Ti", help="ViT-SIZE/16")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="and cores, on a CPU")
    parser.add_argument("--platform", default="cpu", help="JAX's: cpu, cuda, tpu")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--timm_python", default="", help="of an environment with timm")
    parser.add_argument("--timm_path", default="", help="PYTHONPATH of that environment")
    parser.add_argument("--output", help="a JSON file")
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        work(flags)
        return
    found = summary(measure(flags))
    for way, figures in found.items():
        lowest, highest = figures["seconds_range"]
        ratios = [figures.get(f"{name}_of_timm") for name in ("seconds", "cpu_seconds")]
        shown = "" if None in ratios else f"  {ratios[0]:.2f} and {ratios[1]:.2f} × timm's"
        print(
            f"{way:14} {figures['seconds']:.3f} s ({lowest:.3f} to {highest:.3f}), "
            f"CPU {figures['cpu_seconds']:.2f} s{shown}"
        )
    if flags.output:
        document = {"flags": vars(flags), "ways": found}
        pathlib.Path(flags.output).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
