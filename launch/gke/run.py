#!/usr/bin/env python3
"""Trains on GPU or TPU nodes of Google Kubernetes Engine, over evictions to the end.

    python launch/gke/run.py --name=b16 --image=IMAGE --bucket=BUCKET \\
        --accelerator=tpu-v5-lite-podslice --topology=4x4 -- ARGUMENTS
    python launch/gke/run.py --name=b16 --image=IMAGE --bucket=BUCKET \\
        --accelerator=nvidia-h100-80gb --hosts=2 -- ARGUMENTS
    python launch/gke/run.py --name=b16 --delete

ARGUMENTS are those of `python -m vit_jax.main`. The bucket is mounted at /bucket, for data and for
--workdir=/bucket/DIR. The run is an Indexed Job with a headless Service, from the files beside this
one; kubectl must be set up for the cluster. The image comes from launch/gke/Dockerfile. The log of
process 0 is shown until the run ends; the run does not need this script to go on. Exit codes: 0 if
the Job completes, 1 if it fails, 2 for mistakes, 130 after Ctrl-C. See docs/launch.md.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from string import Template

HERE = Path(__file__).parent
COORDINATOR_PORT = 8476
SECONDS_BETWEEN_LOOKS = float(os.environ.get("SECONDS_BETWEEN_LOOKS", 10))
SECONDS_TO_MEET = 3600  # Nodes may have to be added first, pods to wait before they start again.


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This launcher's flags, and what follows `--`."""
    description, details = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --name=NAME [flags] -- ARGUMENTS",
        allow_abbrev=False,
    )
    parser.add_argument("--name", required=True, help="of the run: letters, digits, hyphens")
    parser.add_argument("--image", help="of the container, as pushed to a registry")
    parser.add_argument("--bucket", help="of Google Cloud Storage, mounted at /bucket")
    parser.add_argument("--accelerator", help="a node label's value, such as nvidia-h100-80gb")
    parser.add_argument("--topology", help="of a TPU slice, such as 4x4")
    parser.add_argument("--hosts", type=int, help="nodes (default: 1, or by --topology)")
    parser.add_argument("--devices", type=int, help="a node (default: 8 GPUs or 4 TPU chips)")
    parser.add_argument("--service_account", default="default", help="of Kubernetes (%(default)s)")
    parser.add_argument("--namespace", default="default", help="(%(default)s)")
    parser.add_argument("--restarts", type=int, default=100, help="of failed pods (%(default)s)")
    parser.add_argument("--delete", action="store_true", help="delete the Job and the Service")
    parser.add_argument("--dry_run", action="store_true", help="only print commands and manifests")
    arguments = list(arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    flags, run = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?", flags.name):
        parser.error(f"--name={flags.name}: expected up to 52 lower-case letters, digits, hyphens")
    for flag in () if flags.delete else ("image", "bucket", "accelerator"):
        if not getattr(flags, flag):
            parser.error(f"--{flag} is needed")
    if not flags.delete and not run:
        parser.error("name the run after --: -- --config=FILE --workdir=/bucket/DIR")
    if not flags.delete and "tpu" in flags.accelerator and not flags.topology:
        parser.error(f"--accelerator={flags.accelerator} needs --topology, such as 4x4")
    if flags.topology and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", flags.topology):
        parser.error(f"--topology={flags.topology}: expected such as 4x4 or 2x2x4")
    for flag, least in (("hosts", 1), ("devices", 1), ("restarts", 0)):
        if getattr(flags, flag) is not None and getattr(flags, flag) < least:
            parser.error(f"--{flag} must be at least {least}")
    if not flags.dry_run and not shutil.which("kubectl"):
        parser.error("kubectl is not installed, or not on PATH")
    return flags, run


def manifest(flags: argparse.Namespace, run: Sequence[str]) -> str:
    """The Service and the Job, in YAML; values are JSON, which is YAML, so that quoting is exact."""
    devices = flags.devices or (4 if flags.topology else 8)
    chips = math.prod(map(int, flags.topology.split("x"))) if flags.topology else devices
    hosts = flags.hosts or max(chips // devices, 1)
    escaped = [argument.replace("$", "$$") for argument in run]  # Kubernetes replaces $(NAME), $$.
    values = {
        **{key: getattr(flags, key) for key in ("name", "image", "bucket", "accelerator")},
        **{key: getattr(flags, key) for key in ("topology", "service_account", "restarts")},
        "hosts": hosts,
        "hosts_text": str(hosts),
        "devices": min(devices, chips),
        "coordinator": f"{flags.name}-0.{flags.name}:{COORDINATOR_PORT}",
        "arguments": [f"--coordinator_timeout={SECONDS_TO_MEET}", *escaped],
    }
    values = {key: json.dumps(value) for key, value in values.items()}
    files = ("service.yaml", "tpu.yaml" if flags.topology else "gpu.yaml")
    return "---\n".join(Template((HERE / file).read_text()).substitute(values) for file in files)


def commands(flags: argparse.Namespace) -> dict[str, list[str]]:
    """The calls of kubectl, by what they are for."""
    kubectl = ["kubectl", f"--namespace={flags.namespace}"]
    job = f"job/{flags.name}"
    first = f"--selector=run={flags.name},batch.kubernetes.io/job-completion-index=0"
    newest = "{.items[-1:].metadata.name} {.items[-1:].status.phase}"
    return {
        "apply": [*kubectl, "apply", "--filename=-"],
        "pod": [
            *(*kubectl, "get", "pods", first, "--sort-by=.metadata.creationTimestamp"),
            f"--output=jsonpath={newest}",
        ],
        "logs": [*kubectl, "logs", "--follow"],
        "result": [*kubectl, "get", job, "--output=jsonpath={.status.conditions[*].type}"],
        "delete": [*kubectl, "delete", job, f"service/{flags.name}", "--ignore-not-found"],
    }


def output(command: Sequence[str]) -> list[str]:
    """The words that a command prints; none if it fails, for the next look may succeed."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.split()


def follow(calls: dict[str, list[str]]) -> int:
    """Shows the log of process 0, pod after pod, until the Job ends; returns the exit code."""
    shown = set()
    while True:
        name, phase = (*output(calls["pod"]), "", "")[:2]
        if phase not in ("", "Pending") and name not in shown:
            shown.add(name)
            subprocess.run([*calls["logs"], name], check=False)
        result = output(calls["result"])
        if "Complete" in result:
            return 0
        if "Failed" in result:
            return 1
        time.sleep(SECONDS_BETWEEN_LOOKS)


def main(arguments: Sequence[str]) -> int:
    """Starts the run and shows its log; returns the exit code."""
    flags, run = parse_arguments(arguments)
    calls = commands(flags)
    if flags.delete:
        if not flags.dry_run:
            return subprocess.run(calls["delete"], check=False).returncode
        print(shlex.join(calls["delete"]))
        return 0
    text = manifest(flags, run)
    if flags.dry_run:
        print(f"{shlex.join(calls['apply'])} <<'END'\n{text}END")
        for command in (calls["pod"], [*calls["logs"], f"POD of {flags.name}"], calls["result"]):
            print(shlex.join(command))
        return 0
    code = subprocess.run(calls["apply"], input=text, text=True, check=False).returncode
    return code or follow(calls)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # The run goes on without this script.
        sys.exit(128 + signal.SIGINT)
