"""launch/gke: the manifests against Kubernetes' schemas, the launcher against a stand-in for kubectl."""

import importlib.util
import re
import shlex
import signal
import sys
import time

import kubernetes_validate
import pytest
import yaml

from tests.runs import LIMIT_SECONDS, ROOT
from vit_jax.devices.distributed import Cluster, resolve

LAUNCHER = (sys.executable, ROOT / "launch/gke/run.py")
RUN = ("--config=a b.py", '--config.note=it\'s "$HOME" # no comment')
COMMON = ("--name=b16", "--image=registry/image:1", "--bucket=bucket")
GPU = (*COMMON, "--accelerator=nvidia-h100-80gb", "--hosts=2")
TPU = (*COMMON, "--accelerator=tpu-v5-lite-podslice", "--topology=4x4", "--namespace=team")
KUBERNETES = "1.29"  # The oldest whose Jobs have all that the manifests use as stable or beta.

# Answers of kubectl: one after another, the last one again and again.
KUBECTL = """
pods, results = {pods!r}, {results!r}
if arguments[1] == "apply":
    open({manifest!r}, "w").write(sys.stdin.read())
if arguments[1:3] == ["get", "pods"]:
    print(pods[min(count(), len(pods)) - 1])
if arguments[1:3] == ["get", "job/b16"]:
    print(results[min(count(), len(results)) - 1])
"""


@pytest.fixture
def launch(stubs, tmp_path):
    """Runs the launcher with these answers; its exit code, the Service and the Job."""

    def run(*flags, pods=("b16-0-x Running",), results=("Complete",)):
        file = tmp_path / "manifest.yaml"
        stubs.add("kubectl", KUBECTL.format(pods=pods, results=results, manifest=str(file)))
        code, _, errors = stubs.run(*LAUNCHER, *flags, "--", *RUN)
        assert file.exists(), errors
        service, job = yaml.safe_load_all(file.read_text())
        return code, service, job

    return run


def pod_of(job):
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.mark.parametrize("flags", [GPU, TPU], ids=["gpu", "tpu"])
def test_the_manifests_are_valid(launch, flags):
    for document in launch(*flags)[1:]:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("flags", [GPU, TPU], ids=["gpu", "tpu"])
def test_pods_find_each_other_and_get_the_arguments(launch, flags):
    code, service, job = launch(*flags)
    assert code == 0
    pod, container = pod_of(job)
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["metadata"]["name"] == pod["subdomain"] == job["metadata"]["name"] == "b16"
    assert job["spec"]["completionMode"] == "Indexed"
    as_run = [argument.replace("$$", "$") for argument in container["args"]]  # By Kubernetes.
    assert as_run == ["--coordinator_timeout=3600", *RUN]
    assert "$$HOME" in container["args"][-1]
    assert container["image"] == "registry/image:1"
    driver = pod["volumes"][-1]["csi"]
    assert driver["driver"] == "gcsfuse.csi.storage.gke.io"
    assert driver["volumeAttributes"] == {"bucketName": "bucket", "mountOptions": "implicit-dirs"}
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"gke-gcsfuse/volumes": "true"}  # Or the driver is not there.
    assert container["volumeMounts"][-1]["mountPath"] == "/bucket"
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert mounted == [volume["name"] for volume in pod["volumes"]]
    assert pod["serviceAccountName"] == "default"
    assert pod["terminationGracePeriodSeconds"] == 120  # To save; Kubernetes' own is 30.
    accelerator = next(iter(container["resources"]["limits"]))
    assert {(each["key"], each["operator"], each["effect"]) for each in pod["tolerations"]} == {
        (key, "Exists", "NoSchedule") for key in (accelerator, "cloud.google.com/gke-spot")
    }
    # Pods look for each other before they are ready.
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_gpu_pods_know_who_they_are(launch):
    _, _, job = launch(*GPU)
    pod, container = pod_of(job)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    found = resolve(Cluster(), environment | {"JOB_COMPLETION_INDEX": "1"})
    assert found == Cluster("b16-0.b16:8476", 2, 1)
    assert container["ports"] == [{"containerPort": 8476}]
    memory = (container["volumeMounts"][0]["mountPath"], pod["volumes"][0]["emptyDir"])
    assert memory == ("/dev/shm", {"medium": "Memory"})


@pytest.mark.parametrize(
    ("topology", "flags", "hosts", "chips"),
    [
        *(("4x4", (), 4, 4), ("2x2", (), 1, 4), ("2x2x4", (), 4, 4), ("1x1", (), 1, 1)),
        ("2x4", ("--devices=8",), 1, 8),
    ],
)
def test_a_slice_has_a_pod_on_each_host(launch, topology, flags, hosts, chips):
    accelerator = "--accelerator=tpu-v5-lite-podslice"
    _, _, job = launch(*COMMON, accelerator, f"--topology={topology}", *flags)
    pod, container = pod_of(job)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == hosts
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    assert container["resources"]["requests"] == {"google.com/tpu": chips}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": topology,
    }
    # libtpu's, by Google's examples of slices of several hosts.
    assert [each["containerPort"] for each in container["ports"]] == [8471, 8431, 8482]


@pytest.mark.parametrize("flags", [GPU, TPU], ids=["gpu", "tpu"])
def test_what_happens_after_a_pod_failed(launch, flags):
    _, _, job = launch(*flags, "--restarts=7", "--service_account=own")
    assert pod_of(job)[0]["serviceAccountName"] == "own"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    by_code = {
        code: rule["action"]
        for rule in rules
        if "onExitCodes" in rule
        for code in rule["onExitCodes"]["values"]
    }
    assert by_code == {2: "FailJob", 3: "FailJob", 75: "Ignore"}
    assert all(rule["onExitCodes"]["operator"] == "In" for rule in rules if "onExitCodes" in rule)
    (evicted,) = (rule for rule in rules if "onPodConditions" in rule)
    assert evicted["action"] == "Ignore"
    assert evicted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert job["spec"]["backoffLimit"] == 7
    assert pod_of(job)[0]["restartPolicy"] == "Never"  # Or the rules do not hold.


def test_the_log_of_each_pod_of_process_0_is_shown_once(stubs, launch):
    pods = ("", "b16-0-a Pending", "b16-0-a Running", "b16-0-a Failed", "b16-0-b Running")
    results = ("", "", "", "", "SuccessCriteriaMet Complete")
    assert launch(*TPU, pods=pods, results=results)[0] == 0
    calls = [call[1:] for call in stubs.calls]
    assert all(call[0] == "--namespace=team" for call in calls)
    assert [call[1:] for call in calls if call[1] == "logs"] == [
        ["logs", "--follow", "b16-0-a"],
        ["logs", "--follow", "b16-0-b"],
    ]
    assert calls[0] == ["--namespace=team", "apply", "--filename=-"]
    # Of the pods that there were of process 0 the newest, which replaced those that failed.
    assert calls[1][1:] == [
        *("get", "pods", "--selector=run=b16,batch.kubernetes.io/job-completion-index=0"),
        "--sort-by=.metadata.creationTimestamp",
        "--output=jsonpath={.items[-1:].metadata.name} {.items[-1:].status.phase}",
    ]
    types = "--output=jsonpath={.status.conditions[*].type}"
    assert calls[-1][1:] == ["get", "job/b16", types]


def test_the_image_has_what_a_run_needs():
    """And extras of the package that there are; no checkout's own files."""
    lines = (ROOT / "launch/gke/Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert {"vit_jax", "configs", "setup.py", "requirements.lock", "README.md"} <= {*copied}
    assert all((ROOT / name).exists() for name in copied)
    accelerators = re.split(", | or ", re.search(r"ACCELERATOR is (.+?)\.", lines[0])[1])
    extras = (ROOT / "setup.py").read_text()
    assert all(f'"{name}": ["jax[{name}]"]' in extras for name in accelerators)
    (default,) = (line for line in lines if line.startswith("ARG "))
    assert default.removeprefix("ARG ACCELERATOR=") in accelerators
    assert lines[-1] == 'ENTRYPOINT ["python", "-m", "vit_jax.main"]'
    assert {"USER 1000", "ENV PYTHONUNBUFFERED=1"} < {*lines}
    ignored = (ROOT / "launch/gke/Dockerfile.dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} < {*ignored}


def test_a_failed_job_fails(launch):
    assert launch(*GPU, results=("FailureTarget Failed",))[0] == 1


def test_ctrl_c_leaves_the_run_alone(stubs):
    stubs.add(
        "kubectl",
        "if 'logs' in arguments: time.sleep(600)\nprint('b16-0-a Running', flush=True)",
    )
    process = stubs.start(*LAUNCHER, *GPU, "--", *RUN)
    while not any("logs" in call for call in stubs.calls):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_what_is_deleted(stubs):
    stubs.add("kubectl")
    delete = ["delete", "job/b16", "service/b16", "--ignore-not-found"]
    code, output, _ = stubs.run(*LAUNCHER, "--name=b16", "--delete", "--dry_run")
    assert (code, shlex.split(output)) == (0, ["kubectl", "--namespace=default", *delete])
    assert not stubs.called
    assert stubs.run(*LAUNCHER, "--name=b16", "--delete")[0] == 0
    assert stubs.calls == [["kubectl", "--namespace=default", *delete]]


def test_a_dry_run_calls_nothing(stubs):
    stubs.add("kubectl")
    code, output, _ = stubs.run(*LAUNCHER, *TPU, "--dry_run", "--", *RUN)
    assert code == 0
    assert not stubs.called
    assert output.startswith("kubectl --namespace=team apply --filename=- <<'END'\n")
    manifest = output.split("<<'END'\n")[1].split("\nEND\n")[0]
    assert [document["kind"] for document in yaml.safe_load_all(manifest)] == ["Service", "Job"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--name=B16", *GPU[1:]), "--name=B16: expected"),
        ((*COMMON[:2], *GPU[3:]), "--bucket is needed"),
        (("--name=b16", *GPU[2:]), "--image is needed"),
        (GPU[:3], "--accelerator is needed"),
        ((*COMMON, "--accelerator=tpu-v6e-slice"), "needs --topology"),
        ((*TPU, "--topology=4"), "--topology=4: expected such as 4x4"),
        ((*TPU, "--topology=4x0"), "--topology=4x0: expected such as 4x4"),
        ((*GPU, "--host=2"), "unrecognized arguments: --host=2"),
        ((*TPU, "--topology=4y4"), "--topology=4y4: expected such as 4x4"),
        ((*GPU, "--hosts=0"), "--hosts must be at least 1"),
        ((*GPU, "--restarts=-1"), "--restarts must be at least 0"),
        (GPU, "kubectl is not installed"),
    ],
)
def test_mistakes_are_named(stubs, flags, message):
    code, _, errors = stubs.run(*LAUNCHER, *flags, "--", *RUN, PATH="")
    assert code == 2
    assert message in errors


@pytest.fixture(scope="module")
def launcher():
    spec = importlib.util.spec_from_file_location("launch_gke", LAUNCHER[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(("a", True), ("a" * 52, True), ("a" * 53, False), ("b-16", True), ("b16-", False)),
        *(("1b", False), ("b_16", False), ("", False)),
    ],
)
def test_names_that_pods_can_have(launcher, name, is_one):
    """With `-0` and the like behind it, a label of a DNS name: 63 characters, none of them upper."""
    given = [f"--name={name}", *GPU[1:], "--dry_run", "--", *RUN]
    if is_one:
        assert launcher.parse_arguments(given)[0].name == name
    else:
        with pytest.raises(SystemExit):
            launcher.parse_arguments(given)


@pytest.mark.parametrize("flag", ["hosts", "devices", "restarts"])
def test_the_least_that_flags_take(flag, launcher):
    least = {"hosts": 1, "devices": 1, "restarts": 0}[flag]
    given = [*GPU, "--dry_run", f"--{flag}={least}", "--", *RUN]
    flags, run = launcher.parse_arguments(given)
    assert (getattr(flags, flag), run) == (least, [*RUN])
    given[-4] = f"--{flag}={least - 1}"
    with pytest.raises(SystemExit):
        launcher.parse_arguments(given)
