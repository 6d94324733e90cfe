"""The scripts of `benchmarks/`, shrunken, on a CPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.runs import ROOT


def start(*command, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, **environment}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_gpu_s_cases_go_into_one_file_and_one_table(tmp_path):
    """One that the CPU cannot do is told with its reason; one that took the process down is not run again."""
    output = tmp_path / "gpu.json"
    output.write_text(json.dumps({"cases": {"train b16 batch_size=512": {"status": "started"}}}))
    table = ""
    for only in ("attention*", "calibration", "train b16 batch_size=*28*", "infer*512", "profile"):
        table = start("benchmarks/gpu.sh", str(output), "", "--tiny", f"--only={only}")
    cases = json.loads(output.read_text())["cases"]
    statuses = {name: case["status"] for name, case in cases.items()}
    assert statuses.pop("train b16 batch_size=512") == "crashed"
    assert set(statuses.values()) == {"done"}, statuses
    for length in (197, 577):
        compared = cases[f"attention {length}"]["result"]
        assert max(compared["fused"]) < 0.03
        assert compared["beyond"] == [0, 0, 0, 0]
    assert cases["calibration"]["result"]["flops_per_second"] > 0
    trained = cases["train b16 batch_size=128"]["result"]
    assert trained["images_per_second"] > 0
    assert trained["batch_size"] == 4
    assert any((tmp_path / "gpu.json.profile").iterdir())
    shown = {name for name in cases if f"\n{name}" in table}
    assert shown == set(cases)
    assert "crashed" in table


@pytest.mark.slow
def test_ways_to_train_take_turns(tmp_path):
    output = tmp_path / "ways.json"
    flags = ("--batch_size=1", "--rounds=2", "--ways=ours,flax", f"--output={output}")
    text = start(sys.executable, "benchmarks/side_by_side.py", *flags)
    assert [line.split()[0] for line in text.splitlines()] == ["ours", "flax"]
    for way in json.loads(output.read_text())["ways"].values():
        assert way["losses"][1] < way["losses"][0]
        assert way["seconds"] > 0
        assert way["cpu_seconds"] > 0
