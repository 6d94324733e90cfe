"""The catalogue of pretrained weights, and names as timm and Hugging Face write them."""

import csv
import hashlib
import io
import re
from collections import Counter

import pytest

import vit_jax
from tests.published import random_model
from vit_jax.errors import ConfigError
from vit_jax.models import __main__ as models
from vit_jax.models import registry
from vit_jax.weights.pretrained import PRETRAINED, find_pretrained, start_of
from vit_jax.weights.timm_classes import ARCHITECTURES


def test_every_entry_is_of_a_model_here_and_no_two_are_taken_for_each_other():
    keys = [(entry.model, entry.tag, entry.image_size) for entry in PRETRAINED]
    assert len({*keys}) == len(keys) == len({entry.timm_name for entry in PRETRAINED})
    for entry in PRETRAINED:
        options = registry.model_options(entry.model, image_size=entry.image_size)
        assert options.image_size == (entry.image_size, entry.image_size)
        assert (entry.top1 is None) != entry.tag.endswith("in1k"), entry
        if found := re.search(r"_(\d{3})(_bit)?\.", entry.timm_name):
            assert int(found[1]) == entry.image_size


@pytest.mark.parametrize(
    ("model", "tag", "size", "name"),
    [
        ("ViT-B/16", "augreg_in21k", None, "vit_base_patch16_224.augreg_in21k"),
        ("ViT-B/16", "augreg_in21k_ft_in1k", 384, "vit_base_patch16_384.augreg_in21k_ft_in1k"),
        ("ViT-B/16", "augreg_in21k_ft_in1k", 512, "vit_base_patch16_224.augreg_in21k_ft_in1k"),
        ("vit_base_patch16", "deit3_in1k", (384, 384), "deit3_base_patch16_384.fb_in1k"),
    ],
)
def test_weights_are_found_by_model_and_tag(model, tag, size, name):
    assert find_pretrained(model, tag, size).reference == f"hf:timm/{name}"


@pytest.mark.parametrize(
    ("model", "tag", "message"),
    [
        ("ViT-B/16", "augreg", "pretrained='augreg' is unknown; the nearest: augreg.*orig_in21k"),
        ("ViT-e/14", "augreg", "ViT-e/14 has none here"),
        ("ViT-B16", "augreg_in21k", "model.name='ViT-B16' is unknown; the nearest: ViT-B/16"),
    ],
)
def test_unknown_weights_are_told_with_those_that_there_are(model, tag, message):
    with pytest.raises(ConfigError, match=message):
        vit_jax.load_model(model, pretrained=tag)


def test_weights_are_fetched_by_their_tag(hub_server, tmp_path):
    options = {"width": 192, "depth": 1, "num_classes": 2, "image_size": 32}
    model = random_model("ViT-Ti/16", **options)
    vit_jax.save_model(model, tmp_path, format="timm")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    hub_server.add("timm/vit_tiny_patch16_224.augreg_in21k", files)
    loaded = vit_jax.load_model("vit_tiny_patch16_224", pretrained="augreg_in21k")
    assert loaded.options == model.options


def test_the_list_is_searched_by_every_name():
    assert vit_jax.list_pretrained() == list(PRETRAINED)
    for pattern in ("vit-h/14", "vit_huge_patch14_224", "timm/vit_huge_patch14*"):
        assert {entry.model for entry in vit_jax.list_pretrained(pattern)} == {"ViT-H/14"}
    assert vit_jax.list_pretrained("no such") == []


def test_models_to_fine_tune_begin_with_the_papers_weights():
    assert start_of("ViT-B/16") == "hf:timm/vit_base_patch16_224.orig_in21k"
    assert start_of("ViT-S/16") == "hf:timm/vit_small_patch16_224.augreg_in21k"
    assert start_of("Axial-ViT-B/16") == ""


def test_the_table_of_weights(capsys):
    assert models.main(["--pretrained", "--csv", "ViT-B/16 augreg_in21k_ft*"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["pixels"], row["top-1 %"]) for row in rows] == [("224", "84.53"), ("384", "86.00")]
    assert models.main(["--pretrained", "ViT-B/16"]) == 0
    assert "results-imagenet.csv" in capsys.readouterr().out
    assert models.main(["--pretrained", "nothing"]) == 2
    assert "'nothing': no pretrained weights have such a name" in capsys.readouterr().err


@pytest.mark.parametrize(("ours", "theirs"), ARCHITECTURES.items())
def test_timms_names_are_understood(ours, theirs):
    assert registry.our_name(theirs) == ours
    assert registry.model_options(theirs) == registry.model_options(ours, image_size=224)


@pytest.mark.parametrize(
    ("name", "ours", "size"),
    [
        ("vit_base_patch16_384", "ViT-B/16", 384),
        ("google/vit-large-patch32-384", "ViT-L/32", 384),
        ("google/vit-base-patch16-224-in21k", "ViT-B/16", 224),
        ("deit_small_patch16_224", "ViT-S/16", 224),
        ("vit_so400m_patch14", "ViT-So400m/14", 224),
        ("mixer_b16_224", "Mixer-B/16", 224),
        ("resnetv2_101x3_bit", "BiT-R101x3", 224),
        ("vit_medium_patch16_256", "ViT-M/16", 256),
        ("vit_huge_patch14", "ViT-H/14", 224),
        ("vit_giant_patch14_224", "ViT-g/14", 224),
        ("vit_gigantic_patch14_448", "ViT-G/14", 448),
    ],
)
def test_names_of_other_libraries_stand_for_ours(name, ours, size):
    assert registry.our_name(name) == ours
    assert registry.model_options(name) == registry.model_options(ours, image_size=size)


def test_a_model_keeps_our_name():
    model = registry.abstract_model("vit_tiny_patch16_384", depth=1)
    assert (model.name, model.options.image_size) == ("ViT-Ti/16", (384, 384))


@pytest.mark.parametrize(
    "name",
    [
        *("vit_base_patch16_siglip_224", "vit_base_patch16_clip_224", "deit3_base_patch16_224"),
        *(
            "vit_b",
            "vit_base_patch16_384_own",
            "a/b/vit-base-patch16",
            "mixer_b16_big",
            "mixer_b16_",
        ),
    ],
)
def test_other_models_of_a_like_name_are_not_taken_for_ours(name):
    with pytest.raises(ConfigError, match="is unknown"):
        registry.model_options(name)


def test_the_catalogue_is_timms():
    """Names, sizes and licences, against the installed package."""
    timm = pytest.importorskip("timm")
    for entry in PRETRAINED:
        theirs = timm.models.get_pretrained_cfg(entry.timm_name)
        assert theirs is not None, entry.timm_name
        assert theirs.hf_hub_id in (entry.repository, f"{entry.repository.split('.')[0]}"), entry
        assert (theirs.input_size[1], theirs.license) == (entry.image_size, entry.licence)
        assert (theirs.num_classes == 1000) == (entry.top1 is not None)


# Of timm_name, size and top-1 of each entry. timm's names, sizes and licences are compared above where it
# is installed; accuracies with the file that TOP1_SOURCE names: whoever changes one does so again.
CATALOGUE = "5bd4e333f0de583a"
IMAGENET, IN21K, BOTH = "ImageNet", "ImageNet-21k", "ImageNet-21k, then ImageNet"
FREE, NON_COMMERCIAL = "apache-2.0", "cc-by-nc-4.0"
GROUPS = {
    ("orig_in21k", IN21K, "2010.11929", FREE): 6,
    ("orig_in21k_ft_in1k", BOTH, "2010.11929", FREE): 4,
    ("augreg_in21k", IN21K, "2106.10270", FREE): 10,
    ("augreg_in21k_ft_in1k", BOTH, "2106.10270", FREE): 19,
    ("augreg_in1k", IMAGENET, "2106.10270", FREE): 6,
    ("augreg2_in21k_ft_in1k", BOTH, "2106.10270", FREE): 2,
    ("sam_in1k", IMAGENET, "2106.01548", FREE): 2,
    ("dino", "ImageNet, no labels", "2104.14294", FREE): 3,
    ("mae", "ImageNet, no labels", "2111.06377", NON_COMMERCIAL): 3,
    ("deit_in1k", IMAGENET, "2012.12877", FREE): 4,
    ("deit3_in1k", IMAGENET, "2204.07118", FREE): 7,
    ("deit3_in22k_ft_in1k", BOTH, "2204.07118", FREE): 7,
    ("lvd142m", "LVD-142M, no labels", "2304.07193", FREE): 3,
    ("webli", "WebLI, with texts", "2303.15343", FREE): 4,
    ("v2_webli", "WebLI, with texts", "2502.14786", FREE): 4,
    ("goog_in21k", IN21K, "2105.01601", FREE): 2,
    ("goog_in21k_ft_in1k", BOTH, "2105.01601", FREE): 2,
    ("goog_in21k", IN21K, "1912.11370", FREE): 6,
    ("goog_in21k_ft_in1k", BOTH, "1912.11370", FREE): 6,
}


def test_no_entry_changes_unseen():
    found = Counter((e.tag, e.data, e.source.removeprefix("arXiv "), e.licence) for e in PRETRAINED)
    assert found == GROUPS
    lines = (f"{entry.timm_name} {entry.image_size} {entry.top1}" for entry in PRETRAINED)
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
    assert digest == CATALOGUE


def test_a_rectangle_takes_the_weights_of_its_smaller_side():
    found = [find_pretrained("ViT-B/16", "deit_in1k", size) for size in ((384, 512), (512, 224))]
    assert [entry.image_size for entry in found] == [384, 224]
    assert find_pretrained("ViT-B/16", "webli", 999).image_size == 224  # The smallest.
