"""Whatever an objective draws has a key of its own, which follows from seed and step."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.objectives import masked_autoencoder, masked_patches, mixing, self_distillation
from vit_jax.objectives.masked_autoencoder import MaskedAutoencoder
from vit_jax.objectives.masked_patches import MaskedPatches
from vit_jax.objectives.self_distillation import SelfDistillation
from vit_jax.training import state, step

IMAGES = np.zeros((2, 4, 6, 1), np.uint8)


def data_of(key):
    return tuple(jax.random.key_data(key).tolist())


def test_streams_are_apart():
    streams = {module.STREAM for module in (masked_autoencoder, masked_patches, mixing)}
    streams |= {self_distillation.STREAM, step.STEP_STREAM, state.OBJECTIVE_STREAM}
    assert len(streams) == 6


SEEDS_AND_UPDATES = ((11, 5), (11, 6), (12, 5))


def drawn_by(monkeypatch, kind, seed, updates):
    """The keys that an objective prepares a batch with."""
    keys = []

    def note(key, *rest):
        keys.append(data_of(key))
        return np.zeros((2, 6), np.int32), np.zeros((2, 6), np.int32)

    monkeypatch.setattr(masked_autoencoder.patch_pixels, "random_order", lambda k, s: note(k)[0])
    monkeypatch.setattr(masked_patches, "corruption", note)
    monkeypatch.setattr(self_distillation, "random_views", lambda x, k, *_: note(k)[0])
    model = types.SimpleNamespace(num_patches=6, image_size=(4, 6))
    own = types.SimpleNamespace(num_masked=2, num_corrupted=2, num_patches=6, model=model)
    own.options, own.local_size = SelfDistillation.Options(local_views=3), (2, 2)
    kind.prepare(own, {"image": IMAGES}, seed, updates)
    return keys


def test_what_a_batch_is_prepared_by_follows_from_objective_seed_and_step(monkeypatch):
    keys = []
    for kind, count in ((MaskedAutoencoder, 1), (MaskedPatches, 1), (SelfDistillation, 5)):
        for seed, updates in SEEDS_AND_UPDATES:
            drawn = drawn_by(monkeypatch, kind, seed, updates)
            assert drawn == drawn_by(monkeypatch, kind, seed, updates)
            assert len(drawn) == count
            keys += drawn
    for seed, updates in SEEDS_AND_UPDATES:  # What others may have that have no stream.
        key = jax.random.fold_in(jax.random.key(seed), updates)
        keys += [data_of(key), *map(data_of, jax.random.split(key, 5))]
    assert len(set(keys)) == len(keys)


class Model:
    """Notes the keys that its dropout is given."""

    def __init__(self):
        self.keys, self.options = [], types.SimpleNamespace(final_norm=False)

    def embed_patches(self, images, constrain):
        return np.zeros((2, 6, 3), np.float32)

    def embed_sequence(self, patches, key, grid=None):
        self.keys.append(key)
        return np.zeros((2, 7, 3), np.float32)

    def encode(self, tokens, key, constrain):
        self.keys.append(key)
        return tokens, None

    def pool(self, tokens):
        return tokens[:, 0]


def representation(own, params, batch, key):
    return SelfDistillation._representation(own, params, batch["image"], key)


@pytest.mark.parametrize(
    "apply", [MaskedAutoencoder._predictions, MaskedPatches._predictions, representation]
)
def test_dropout_of_positions_and_of_blocks_has_two_keys(monkeypatch, apply):
    monkeypatch.setattr(masked_autoencoder.nnx, "merge", lambda *_: lambda tokens, *rest: tokens)
    monkeypatch.setattr(masked_patches.patch_pixels, "take", lambda values, positions: values)
    model, own = Model(), types.SimpleNamespace(decoder=None, num_prefix=1, grid=(2, 3))
    own.model = types.SimpleNamespace(num_prefix_tokens=1, final_norm=False)
    own.model.image_size, own.model.grid = (4, 6), (2, 3)
    own.network = types.SimpleNamespace(
        bind=lambda params: model, constrain=lambda x: x, normalize=lambda x: x
    )
    head = {"kernel": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float32)}
    params = {"objective": {"mask": np.zeros(3, np.float32), "head": head}}
    batch = dict.fromkeys(("kept", "masked", "positions", "sources"), np.zeros((2, 6), np.int32))
    key = jax.random.key(3)
    apply(own, params, {**batch, "image": IMAGES}, key)
    assert len({data_of(one) for one in (*model.keys, key)}) == 3
    apply(own, params, {**batch, "image": IMAGES}, None)
    assert model.keys[2:] == [None, None]


def mix():
    options = mixing.Mixing(mixup_alpha=0.3, cutmix_alpha=0.7, probability=0.9)
    batch = {"image": IMAGES, "label": np.zeros(2, np.int32), "mask": np.ones(2, bool)}
    return mixing.pair(batch, 5, 11, options)


def draw_views():
    return self_distillation.random_views(
        jnp.zeros((2, 4, 6, 1)), jax.random.key(3), (0.2, 0.9), (2, 3)
    )


def corrupt():
    return masked_patches.corruption(jax.random.key(3), (2, 6), 4)


def begin_head():
    own = types.SimpleNamespace(width=3, target=types.SimpleNamespace(size=5))
    return MaskedPatches.init(own, jax.random.key(3))


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (mix, ["bernoulli", "bernoulli", "beta", "randint"]),
        (draw_views, ["bernoulli", "uniform", "uniform"]),
        (begin_head, ["lecun_normal", "normal"]),
        (corrupt, ["randint", "uniform", "uniform"]),
    ],
)
def test_each_draw_has_a_key_of_its_own(monkeypatch, draw, expected):
    drawn = []

    def note_calls(module, name):
        function = getattr(module, name)

        def call(key, *rest, **options):
            drawn.append((name, data_of(key)))
            return function(key, *rest, **options)

        monkeypatch.setattr(module, name, call)

    for name in {*expected} - {"lecun_normal"}:
        note_calls(jax.random, name)
    note_calls(masked_patches, "lecun_normal")
    draw()
    assert sorted(name for name, _ in drawn) == expected
    assert len({key for _, key in drawn}) == len(expected)


def test_each_layer_of_a_head_is_drawn_by_its_own_key():
    own = types.SimpleNamespace(_head_widths=(32, 32, 32, 32))
    own.options = SelfDistillation.Options(bottleneck_width=32, prototypes=32)
    layers = SelfDistillation.init(own, jax.random.key(3))
    kernels = {name: np.asarray(layer["kernel"]) for name, layer in layers.items()}
    assert sorted(kernels) == ["dense0", "dense1", "dense2", "prototypes"]
    for name, kernel in kernels.items():
        wanted = 1 if name == "prototypes" else 0.02
        assert kernel.std() == pytest.approx(wanted, rel=0.1)
    scaled = np.stack([kernel.ravel() / kernel.std() for kernel in kernels.values()])
    assert np.abs(np.corrcoef(scaled) - np.eye(4)).max() < 0.15


def test_each_view_has_its_own_key_and_the_options_their_places():
    """The loss by numpy, of answers that are given."""
    rng = np.random.default_rng(0)
    said = rng.uniform(-1, 1, (5, 2, 4)).astype(np.float32)  # By view; the teacher's are doubled.
    keys = []

    def answer(params, view, key):
        keys.append(key)
        return said[int(view[0])] * params

    options = SelfDistillation.Options(
        local_views=3, student_temperature=0.5, teacher_temperature=0.25
    )
    own = types.SimpleNamespace(options=options, _answer=answer)
    numbers = np.arange(5)[None].repeat(2, 0)
    batch = {"globals": numbers[:, :2], "locals": numbers[:, 2:]}
    center, key = np.float32([0.1, -0.2, 0.3, 0.0]), jax.random.key(3)
    frozen = {"teacher": 2.0, "center": center}
    losses, values = SelfDistillation.loss(own, 1.0, frozen, batch, key)
    assert len({data_of(one) for one in (*keys[:5], key)}) == 6
    assert keys[5:] == [None, None], "nothing is dropped of the teacher"

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    wanted = [softmax((2.0 * said[view] - center) / 0.25) for view in range(2)]
    terms = [
        -(target * np.log(softmax(said[other] / 0.5))).sum(-1)
        for view, target in enumerate(wanted)
        for other in range(5)
        if other != view
    ]
    np.testing.assert_allclose(losses, np.mean(terms, axis=0), rtol=1e-5)
    entropy = -(wanted[0] * np.log(wanted[0])).sum(-1)
    np.testing.assert_allclose(values["teacher_entropy"], entropy, rtol=1e-4)
    np.testing.assert_allclose(values["answers"], 2 * said[:2].mean(0), rtol=1e-5)
    SelfDistillation.loss(own, 1.0, frozen, {"globals": numbers[:, :2]}, None)
    assert keys[7:] == [None] * 4
