"""Mixup (1710.09412) and CutMix (1905.04899), on the devices, inside the jitted step.

Both lay a rectangle of one image, its partner, over another: mixup the whole of it, transparent;
CutMix a part of it, opaque. `pair` finds each row's partner in the whole batch, however it is split
over devices or micro-batches; `mixed_images` and `mixed_targets` lay one over the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.kinds import Amount, Share, one_of

Batch = dict[str, jax.Array]  # image uint8 [B, H, W, C]; label int32 [B]; mask bool [B]; ...

STREAM = 0x3117  # Keeps its random keys apart from all others of the seed.


class Form(NamedTuple):
    """Whose code is followed: who a row's partner is, and how much of the row itself stays."""

    partners: Callable[[jax.Array, jax.Array], jax.Array]  # (x [B, ...], key) -> x of the partners
    kept: Callable[[jax.Array], jax.Array]  # λ ~ Beta(α, α) -> the share that stays
    meaning: str


FORMS = {
    "big_vision": Form(
        partners=lambda x, key: jnp.roll(x, 1, axis=0),
        kept=lambda share: jnp.maximum(share, 1 - share),
        meaning="the row before",
    ),
    "deit": Form(
        partners=lambda x, key: x[jax.random.permutation(key, len(x))],
        kept=lambda share: share,
        meaning="a random row",
    ),
}


@dataclasses.dataclass(frozen=True)
class Mixing:
    """`config.objective.mixing`."""

    mixup_alpha: Amount = 0.0  # Two images are blended by λ ~ Beta(alpha, alpha); 0: no mixup.
    cutmix_alpha: Amount = 0.0  # A rectangle of 1 - λ is laid over another image; 0: no CutMix.
    probability: Share = 1.0  # Of a batch to be mixed at all.
    cutmix_probability: Share = 0.5  # Of CutMix rather than mixup, where both are on.
    form: one_of(*FORMS) = "big_vision"  # λ ≥ 1/2, with the row before; deit: with a random row


def is_on(options: Mixing) -> bool:
    """Whether `config.objective.mixing` asks for anything."""
    return options.probability > 0 and max(options.mixup_alpha, options.cutmix_alpha) > 0


def describe(options: Mixing) -> list[str]:
    """A line of words for each kind of mixing that `config.objective.mixing` asks for."""
    partner, share = FORMS[options.form].meaning, cutmix_share(options)
    lines = {
        f"mixup(alpha={options.mixup_alpha}): blended with {partner}": 1 - share,
        f"cutmix(alpha={options.cutmix_alpha}): a rectangle of {partner} laid over": share,
    }
    of_batches = {
        line: part * options.probability for line, part in lines.items() if is_on(options)
    }
    return [
        f"{line}, in {part:.0%} of the batches, as in {options.form}"
        for line, part in of_batches.items()
        if part
    ]


def cutmix_share(options: Mixing) -> float:
    """The share of CutMix in all mixed batches."""
    if not options.cutmix_alpha:
        return 0.0
    return options.cutmix_probability if options.mixup_alpha else 1.0


def pair(batch: Batch, step: jax.Array | int, seed: int, options: Mixing) -> Batch:
    """Adds to each row its partner, and how the partner lies over it.

    The draws are the same for all rows: whether the batch is mixed, by mixup or by CutMix, λ and
    the rectangle. A row whose partner is padding (mask False) stays as it is.

    Args:
      batch: image uint8 [B, H, W, C], label [B, ...], mask bool [B].
      step: completed updates.
      seed: of the run.
      options: `config.objective.mixing`.

    Returns:
      The batch, with `partner_image` uint8 [B, H, W, C], `partner_label` [B, ...], `opacity` float32
      [B], 0 where nothing is laid over, and `box` int32 [B, 4] (top, bottom, left, right); or the
      batch alone if mixing is off.
    """
    if not is_on(options):
        return batch
    form = FORMS[options.form]
    rows, height, width, _ = batch["image"].shape
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), STREAM), step)
    partner_key, mixes_key, cuts_key, share_key, box_key = jax.random.split(key, 5)
    mixes = jax.random.bernoulli(mixes_key, options.probability)
    cuts = jax.random.bernoulli(cuts_key, cutmix_share(options))
    alpha = jnp.where(cuts, options.cutmix_alpha, options.mixup_alpha)
    share = form.kept(jax.random.beta(share_key, alpha, alpha))
    whole = jnp.int32([0, height, 0, width])
    box = jnp.where(cuts, cutmix_box(box_key, 1 - share, height, width), whole)
    opacity = jnp.where(cuts, 1.0, 1 - share) * mixes

    image, label, mask = (
        form.partners(batch[name], partner_key) for name in ("image", "label", "mask")
    )
    return {
        **batch,
        "partner_image": image,
        "partner_label": label,
        "opacity": jnp.where(mask, opacity, 0.0),
        "box": jnp.broadcast_to(box, (rows, 4)),
    }


def cutmix_box(key: jax.Array, share: jax.Array, height: int, width: int) -> jax.Array:
    """A rectangle, int32 (top, bottom, left, right), of `share` of the area, cut at the borders.

    Its centre is anywhere in the image, so that it may reach over the border.
    """
    sides = jnp.int32([height, width])
    cut = (sides * jnp.sqrt(share)).astype(jnp.int32)
    centre = jax.random.randint(key, (2,), 0, sides)
    starts, ends = centre - cut // 2, centre + (cut + 1) // 2
    return jnp.clip(jnp.stack([starts, ends], axis=1), 0, sides[:, None]).ravel()


def mixed_images(batch: Batch) -> jax.Array:
    """The images with their partners laid over: float32 [B, H, W, C] in 0 … 255, as yet unnormalised.

    Without partners, the uint8 images themselves.
    """
    images = batch["image"]
    if "partner_image" not in batch:
        return images
    _, height, width, _ = images.shape
    top, bottom, left, right = batch["box"].T[:, :, None]
    y, x = jnp.arange(height), jnp.arange(width)
    rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)  # [B, H], [B, W]
    inside = rows[:, :, None] & columns[:, None, :]
    opacity = (inside * batch["opacity"][:, None, None])[..., None]
    return images * (1 - opacity) + batch["partner_image"] * opacity


def mixed_targets(batch: Batch, encode: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The targets, float32 [B, K], in the proportions in which the images show.

    Args:
      batch: that `pair` returned.
      encode: from labels to their targets, float32 [B, K].
    """
    targets = encode(batch["label"])
    if "partner_image" not in batch:
        return targets
    _, height, width, _ = batch["image"].shape
    top, bottom, left, right = batch["box"].T
    area = (bottom - top) * (right - left) / (height * width)
    share = (batch["opacity"] * area)[:, None]
    return targets * (1 - share) + encode(batch["partner_label"]) * share
