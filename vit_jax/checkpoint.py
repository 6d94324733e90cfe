"""Checkpoints of a run: saved in the background, whole or not at all, restored on any devices.

`workdir/checkpoints/<step>/` holds the items `params`, `optimizer` and, where there are such, `ema`
and `objective`. Each is a nested dict of arrays under our own names, so that no library's classes are on the disk.
"""

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from vit_jax.devices import distributed
from vit_jax.errors import CheckpointError
from vit_jax.parameters import path_name

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
REPAIR = "Remove that folder to go on from an earlier checkpoint, or choose another --workdir."
AVERAGED = "_ema"  # Metrics of averaged parameters stand under `<evaluator>_ema/…`.
ARRAY_ITEMS = ("params", "optimizer", "ema", "objective")


class TrainState(NamedTuple):
    """All that training changes. Arrays, or their shapes and shardings."""

    step: Any  # int32 [], completed updates
    params: dict
    opt_state: Any
    ema: dict | None  # averaged parameters
    objective: dict = {}  # noqa: RUF012  What the objective updates itself; nobody adds to it.


class Checkpoints:
    """The checkpoints of one workdir."""

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        keep: int = 1,
        best_metric: str = "",
        read_only: bool = False,
    ):
        """Opens or creates `workdir/checkpoints`.

        Args:
          workdir: the run's directory.
          keep: so many of the latest checkpoints are kept.
          best_metric: the checkpoint with the highest value of it is kept too, or, with "-" before
            it, with the lowest; "" for none.
          read_only: touch nothing, for another process may be training there.
        """
        policies = [checkpoint_managers.LatestN(keep)]
        if best_metric:
            policies.append(
                checkpoint_managers.BestN(
                    get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False
                )
            )
        self._best_metric = best_metric
        with _without_warnings() if read_only else contextlib.nullcontext():
            self._manager = ocp.CheckpointManager(
                epath.Path(workdir).absolute() / "checkpoints",
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
                    best_fn=_score,
                    create=not read_only,
                    cleanup_tmp_directories=not read_only,
                    read_only=read_only,
                ),
                item_handlers={
                    **{item: ocp.StandardCheckpointHandler() for item in ARRAY_ITEMS},
                    "format": ocp.JsonCheckpointHandler(),
                },
            )
        if not read_only:
            self._check_agreement()
        best_step = self._best_step()
        self._best = -math.inf if best_step is None else _score(self._manager.metrics(best_step))

    def _check_agreement(self) -> None:
        """Raises CheckpointError, in every process, unless all would resume from the same step."""
        steps = distributed.gather(self.latest_step)
        if (steps != steps[0]).any():
            raise CheckpointError(
                f"{self._manager.directory}: processes see different checkpoints, of steps "
                f"{', '.join(map(str, steps.tolist()))}: is it one directory for all, and does no "
                "other run write there? Start again."
            )

    @property
    def latest_step(self) -> int:
        """The newest checkpoint's step; 0 without any."""
        return self._manager.latest_step() or 0

    def step_of(self, checkpoint: str | int) -> int:
        """The step of "latest", "best" or a given step; raises CheckpointError if it is not there."""
        steps = self._manager.all_steps()
        wanted = {"latest": self._manager.latest_step, "best": self._best_step}
        if str(checkpoint).isdecimal():  # as text, from a command line
            checkpoint = int(checkpoint)
        step = wanted[checkpoint]() if checkpoint in wanted else checkpoint
        if step not in steps:
            raise CheckpointError(
                f"{self._manager.directory} has no checkpoint {checkpoint!r}; "
                f"it has: {', '.join(map(str, steps)) or 'none'}."
            )
        return step

    def scored_average(self, step: int) -> bool:
        """Whether the metric saved with a checkpoint is one of averaged parameters."""
        return any(
            name.partition("/")[0].endswith(AVERAGED) for name in self._manager.metrics(step)
        )

    def _best_step(self) -> int | None:
        """The best checkpoint's step; None if none was evaluated."""
        step = self._manager.best_step()
        evaluated = step is not None and _score(self._manager.metrics(step)) > -math.inf
        return step if evaluated else None

    def is_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation's `metrics` beat those of every checkpoint; not without the one."""
        return _score(self._scores(metrics)) > self._best

    def _scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metric that is compared, if it is there; negative where the lowest is best."""
        name = self._best_metric.removeprefix("-")
        if not name or name not in metrics:
            return {}
        return {self._best_metric: metrics[name] if name == self._best_metric else -metrics[name]}

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Starts saving `state` unless the step is saved already; returns once it is copied.

        Args:
          step: completed updates.
          state: the arrays; they may be donated as soon as this returns.
          metrics: of an evaluation at this step, empty without one.
        """
        if step == self._manager.latest_step():
            return
        items = {
            "params": ocp.args.StandardSave(state.params),
            "optimizer": ocp.args.StandardSave(to_nested(state.opt_state)),
            "format": ocp.args.JsonSave({"format_version": FORMAT_VERSION}),
        }
        if state.ema is not None:
            items["ema"] = ocp.args.StandardSave(state.ema)
        if state.objective:
            items["objective"] = ocp.args.StandardSave(state.objective)
        scores = self._scores(metrics)
        with jax.transfer_guard("allow"):  # The copy to the host is the point here.
            self._manager.save(step, args=ocp.args.Composite(**items), metrics=scores, force=True)
        self._best = max(self._best, _score(scores))

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state saved at `step`, with the shapes, types and shardings of `like`.

        Averaged parameters that the checkpoint lacks start from its parameters; those that `like`
        does not ask for are left out. Raises CheckpointError, naming the first difference, where
        the saved state does not have the names and shapes that are asked for.
        """
        wanted = {"params": like.params, "optimizer": to_nested(like.opt_state)}
        has_ema = self._items(step).get("ema") is not None
        if like.ema is not None and has_ema:
            wanted["ema"] = like.ema
        if like.objective:
            wanted["objective"] = like.objective
        restored = self._restore_items(step, wanted)
        ema = restored.get("ema")
        if like.ema is not None and not has_ema:
            logger.info("Checkpoint %d has no averaged parameters: they start from here.", step)
            ema = jax.tree.map(jnp.copy, restored["params"])
        counter = jax.device_put(jnp.int32(step), like.step.sharding)
        opt_state = from_nested(restored["optimizer"], like.opt_state)
        own = restored.get("objective", {})
        return TrainState(counter, restored["params"], opt_state, ema, own)

    def _items(self, step: int) -> Mapping[str, Any]:
        """The items of a checkpoint, and the names and shapes of their arrays."""
        with _readable(f"{self._manager.directory}/{step}"):
            return self._manager.item_metadata(step)

    def _restore_items(self, step: int, wanted: dict[str, dict]) -> dict[str, dict]:
        place, read_json = f"{self._manager.directory}/{step}", ocp.args.JsonRestore()
        with _readable(place):
            described = self._manager.restore(step, args=ocp.args.Composite(format=read_json))
        version = described["format"]["format_version"]
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"{place} has format version {version}, written by a newer vit_jax; this one reads "
                f"up to {FORMAT_VERSION}: upgrade it."
            )
        metadata = self._items(step)
        for item, like in wanted.items():
            if not metadata.get(item):
                raise CheckpointError(f"{place} is damaged: it has no readable {item}. {REPAIR}")
            _check_same(f"{place}/{item}", metadata[item], like)
        items = {item: ocp.args.StandardRestore(like) for item, like in wanted.items()}
        with _readable(place):
            return dict(self._manager.restore(step, args=ocp.args.Composite(**items)).items())

    def restore_item(self, step: int, item: str) -> dict:
        """One of `ARRAY_ITEMS` of `step` as it was saved, on this process's first device."""
        metadata = self._items(step).get(item)
        if metadata is None:
            reason = " (config.ema_decay was 0)" if item == "ema" else ""
            raise CheckpointError(f"{self._manager.directory}/{step} has no {item}{reason}.")
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            metadata.tree,
        )
        return self._restore_items(step, {item: like})[item]

    def wait(self) -> None:
        """Returns when the checkpoint being saved is on the disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for the checkpoint being saved and closes the files."""
        self._manager.close()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keeps Orbax from warning, through absl, of what was asked for: not to write."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        yield
    finally:
        absl.setLevel(level)


@contextlib.contextmanager
def _readable(place: str) -> Iterator[None]:
    """Turns what libraries say of damaged files into one message."""
    try:
        yield
    except (KeyError, ValueError, OSError, TypeError) as error:
        reason = str(error).splitlines()[0][:150]
        raise CheckpointError(f"{place} is damaged ({reason}). {REPAIR}") from error


def _score(metrics: Mapping[str, float]) -> float:
    """What the best checkpoint has most of: the one metric saved with it."""
    return max(metrics.values(), default=-math.inf)


def restore_params(
    workdir: str | os.PathLike[str], checkpoint: str | int = "latest", *, ema: bool = False
) -> dict:
    """The parameters of a run, as a nested dict of arrays.

    Args:
      workdir: the run's directory.
      checkpoint: "latest", "best" or a step. Of the best, those that were scored: the averaged
        ones, where `config.best_metric` was theirs.
      ema: the averaged parameters instead.
    """
    if not (epath.Path(workdir) / "checkpoints").exists():
        raise CheckpointError(f"{workdir} has no folder checkpoints: it is not a run's workdir.")
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.step_of(checkpoint)
        if checkpoint == "best" and not ema and checkpoints.scored_average(step):
            logger.info("The best checkpoint's averaged parameters are loaded: they were scored.")
            ema = True
        return checkpoints.restore_item(step, "ema" if ema else "params")


def find_step(workdir: str | os.PathLike[str], checkpoint: str | int) -> int:
    """The step of a run's "latest" or "best" checkpoint, or a given step if it is there."""
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        return checkpoints.step_of(checkpoint)


def to_nested(tree: Any) -> dict:
    """Any tree of arrays as nested dicts, by the names of its fields and indices."""
    nested: dict = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        *parents, last = path_name(path).split("/")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = leaf
    return nested


def from_nested(nested: dict, like: Any) -> Any:
    """The inverse of `to_nested`: the arrays in a tree shaped as `like`."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(nested)}
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[path_name(path)], like)


def _check_same(place: str, saved: Any, wanted: dict) -> None:
    """Raises CheckpointError at the first name or shape that differs."""
    saved_shapes, wanted_shapes = (
        {path_name(p): tuple(leaf.shape) for p, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (saved, wanted)
    )
    for name in sorted(saved_shapes.keys() | wanted_shapes.keys()):
        there, here = saved_shapes.get(name, "absent"), wanted_shapes.get(name, "absent")
        if there != here:
            raise CheckpointError(
                f"{place}: {name} is {there} in the checkpoint and {here} in this run. Use the "
                "config that the run was started with, or start in another workdir and take the "
                "weights over with --config.init=WORKDIR."
            )
