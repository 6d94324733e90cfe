"""Pretrained weights against their published accuracy, fetched from a stand-in for the Hub."""

import json
from types import SimpleNamespace

import pytest

import vit_jax
from tests.models.filled import filled_model
from vit_jax import evaluate, verify
from vit_jax.errors import NonFiniteLossError
from vit_jax.weights import pretrained

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
OTHER = "vit_small_patch16_224.augreg_in21k_ft_in1k"
SIZES = {"image_size": 8, "channels": 1, "width": 32, "depth": 1, "num_heads": 2, "mlp_width": 32}


@pytest.fixture
def hub_with_a_model(hub_server, tmp_path):
    model = filled_model("ViT-Ti/2", num_classes=10, **SIZES)
    vit_jax.save_model(model, tmp_path / "export", format="vit_jax")
    files = {path.name: path.read_bytes() for path in (tmp_path / "export").iterdir()}
    hub_server.add(f"timm/{NAME}", files)
    return hub_server


def publish(monkeypatch, top1):
    entries = [
        entry._replace(top1=top1) if entry.timm_name == NAME else entry
        for entry in pretrained.PRETRAINED
    ]
    monkeypatch.setattr(pretrained, "PRETRAINED", tuple(entries))


def test_an_accuracy_is_compared_with_the_published_one(
    hub_with_a_model, monkeypatch, tmp_path, capsys
):
    file = tmp_path / "results.json"
    flags = ["--source=digits", "--split=test[:64]", f"--json={file}"]
    assert evaluate.main([f"hf:timm/{NAME}", *flags]) == 0
    accuracy = 100 * json.loads(file.read_text())[0]["accuracy"]
    capsys.readouterr()

    publish(monkeypatch, accuracy - 0.05)
    assert verify.main([NAME, *flags]) == 0
    printed = capsys.readouterr().out
    assert f"{accuracy:.3f}" in printed
    assert "+0.050" in printed
    assert json.loads(file.read_text())[0]["model"] == f"hf:timm/{NAME}"
    assert verify.main([f"hf:timm/{NAME}", "--tolerance=0.01", *flags]) == 1
    publish(monkeypatch, accuracy + 0.05)  # Lower than published is another accuracy, too.
    assert verify.main([NAME, "--tolerance=0.01", *flags]) == 1
    assert "-0.050" in capsys.readouterr().out
    publish(monkeypatch, accuracy - 0.05)
    # One that is not there does not keep the others from being measured.
    assert verify.main([NAME, OTHER, *flags]) == 2
    assert "+0.050" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [("ViT-B/17", "are not known"), ("ViT-B/16 orig_in21k", "have no published top-1")],
)
def test_what_has_no_published_accuracy(name, message, capsys, monkeypatch):
    entries = [entry for entry in pretrained.PRETRAINED if entry.tag != "orig_in21k_ft_in1k"]
    monkeypatch.setattr(pretrained, "PRETRAINED", tuple(entries))
    assert verify.main([name, "--source=digits"]) == 2
    end = "see python -m vit_jax.models --pretrained."
    assert f"'{name}': such weights {message}; {end}" in capsys.readouterr().err


def test_without_an_accuracy_nothing_is_compared(hub_with_a_model, monkeypatch, capsys):
    """It would be taken for 0 %."""
    publish(monkeypatch, 50.0)
    flags = ["--source=digits", "--split=test[:64]", "--evaluators=knn(k=1)"]
    assert verify.main([NAME, *flags]) == 2
    captured = capsys.readouterr()
    assert "--evaluators measures no accuracy to compare" in captured.err
    assert "50.000" not in captured.out


@pytest.fixture
def measured(monkeypatch):
    """What was measured of weights a, b and c, and written, where nothing is fetched."""
    published = {"a": 62.5, "b": 74.0, "c": 70.0}
    here = {"a": 0.6, "b": 0.75, "c": 0.7}
    found = SimpleNamespace(names=[], written=[])

    def evaluated(plans, flags):
        name = plans[0].rpartition("/")[2]
        found.names.append(name)
        return SimpleNamespace(accuracy=here[name], count=1000 * len(found.names))

    def entry(name):
        return pretrained.PRETRAINED[0]._replace(timm_name=name, top1=published[name])

    flags = SimpleNamespace(json="j", csv="c")
    monkeypatch.setattr(verify, "find", lambda names: [*map(entry, names)])
    monkeypatch.setattr(verify.evaluate, "parse_flags", lambda arguments: flags)
    monkeypatch.setattr(verify.evaluate, "plan", lambda reference, flags: reference)
    monkeypatch.setattr(verify.evaluate, "evaluate", evaluated)
    monkeypatch.setattr(
        verify,
        "write_results",
        lambda results, *files: found.written.append((len(results), *files)),
    )
    return found


def test_each_is_measured_once_and_has_its_row(measured, capsys):
    verify.main(["ab", "bc"])
    assert measured.names == ["a", "b", "c"]
    assert measured.written == [(1, "j", "c"), (2, "j", "c"), (3, "j", "c")]
    header, *rows, source = capsys.readouterr().out.splitlines()
    assert header.split() == ["weights", "published", "%", "here", "%", "difference", "images"]
    assert [row.split() for row in rows] == [
        ["hf:timm/a", "62.500", "60.000", "-2.500", "1,000"],
        ["hf:timm/b", "74.000", "75.000", "+1.000", "2,000"],
        ["hf:timm/c", "70.000", "70.000", "+0.000", "3,000"],
    ]
    assert source == f"published: of {pretrained.TOP1_SOURCE}"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["abc", "--tolerance=1.0"], 1),
        (["bc", "--tolerance=1.0"], 0),
        (["bc", "--tolerance=0.999"], 1),
        (["c"], 0),
        (["c", "--tolerance=0"], 2),
        (["c", "--tolerance=x"], 2),
    ],
)
def test_one_that_is_far_is_enough_and_a_difference_of_the_tolerance_is_within(
    measured, arguments, code
):
    assert verify.main(arguments) == code


def test_the_tolerance_is_that_of_the_documents():
    assert verify.TOLERANCE == 0.1


def test_a_model_whose_logits_are_not_finite_does_not_stop_the_others(
    measured, monkeypatch, capsys
):
    def diverged(plans, flags):
        raise NonFiniteLossError("the logits are not finite")

    monkeypatch.setattr(verify.evaluate, "evaluate", diverged)
    assert verify.main(["bc"]) == 2
    assert capsys.readouterr().err.count("the logits are not finite") == 2
