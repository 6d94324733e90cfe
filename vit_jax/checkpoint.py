"""Checkpoints of a run: saved in the background, whole or not at all, restored on any devices.

`workdir/checkpoints/<step>/` holds the items `params`, `optimizer` and, where there are such, `ema`
and `objective`. Each is a nested dict of arrays under our own names, so that no library's classes are on the disk.
"""

import contextlib
import functools
import json
import logging
import math
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from vit_jax import digests
from vit_jax.checkpoint_errors import (
    being_written,
    check_path,
    meet,
    readable,
    without_warnings,
    written,
)
from vit_jax.devices import distributed
from vit_jax.errors import CheckpointError
from vit_jax.kinds import shortened
from vit_jax.nested import check_same, from_nested, to_nested

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
AVERAGED = "_ema"  # Metrics of averaged parameters stand under `<evaluator>_ema/…`.
DELETED = "deleted"  # Old checkpoints are moved there before they go: a kill leaves none in part.
ARRAY_ITEMS = ("params", "optimizer", "ema", "objective")
SMALL_FILES = ("_CHECKPOINT_METADATA", "metrics/metrics")  # Read of all when one is opened.
TOP_LEVEL = tuple(name.partition("/")[0] for name in SMALL_FILES)


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
        self._directory = directory = epath.Path(workdir).absolute() / "checkpoints"
        check_path(workdir, read_only=read_only)
        newest = _check_scores(directory)
        self._score = functools.partial(_score, newest if read_only else best_metric)
        policies = [checkpoint_managers.LatestN(keep)]
        if best_metric:
            policies.append(
                checkpoint_managers.BestN(
                    get_metric_fn=self._score, n=1, keep_checkpoints_without_metrics=False
                )
            )
        self._best_metric, self._read_only = best_metric, read_only
        self._saving: threading.Thread | None = None
        self._failure: Exception | None = None
        self._failed = False
        with without_warnings() if read_only else contextlib.nullcontext():
            self._manager = ocp.CheckpointManager(
                directory,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
                    best_fn=self._score,
                    create=not read_only,
                    cleanup_tmp_directories=not read_only,
                    read_only=read_only,
                    todelete_subdir=DELETED,
                    # Else writers wait 5 minutes for folders that could not be made, and keep the
                    # program that long from ending.
                    async_options=ocp.AsyncOptions(
                        create_directories_asynchronously=False, barrier_sync_fn=meet
                    ),
                ),
                item_handlers={
                    **{item: ocp.StandardCheckpointHandler() for item in ARRAY_ITEMS},
                    "format": ocp.JsonCheckpointHandler(),
                },
            )
        if not read_only:
            self._check_agreement()
            self._remove_deleted()
        best_step = self._best_step()
        self._best = (
            -math.inf if best_step is None else self._score(self._manager.metrics(best_step))
        )

    def _remove_deleted(self) -> None:
        """Removes the old checkpoints that Orbax has moved aside."""
        if jax.process_index() == 0:
            (self._directory / DELETED).rmtree(missing_ok=True)

    def _check_agreement(self) -> None:
        """Raises CheckpointError, in every process, unless all would resume from the same step."""
        steps = distributed.gather(self.latest_step)
        if (steps != steps[0]).any():
            raise CheckpointError(
                f"{self._directory}: processes see different checkpoints, of steps "
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
        named = {str(step): step for step in steps}  # From a command line a step is text.
        step = wanted[checkpoint]() if checkpoint in wanted else named.get(str(checkpoint))
        if step is None:
            asked = shortened(str(checkpoint))
            asked = asked if asked.isdecimal() else repr(asked)
            raise CheckpointError(
                f"{self._directory} has no checkpoint {asked}; "
                f"it has: {', '.join(map(str, steps)) or 'none'}."
            )
        return step

    def scored_average(self, step: int) -> bool:
        """Whether the metric saved with a checkpoint is one of averaged parameters."""
        return any(
            name.partition("/")[0].endswith(AVERAGED) for name in self._manager.metrics(step)
        )

    def best(self) -> tuple[int, dict[str, float]] | None:
        """The best checkpoint's step, and its score by the metric's name; None if there is none.

        A name with "-" before it has the metric's negative.
        """
        step = self._best_step()
        return None if step is None else (step, dict(self._manager.metrics(step)))

    def _best_step(self) -> int | None:
        """The best checkpoint's step; None if none was evaluated."""
        step = self._manager.best_step()
        evaluated = step is not None and self._score(self._manager.metrics(step)) > -math.inf
        return step if evaluated else None

    def is_best(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation's `metrics` beat those of every checkpoint; not without the one."""
        return self._score(self._scores(metrics)) > self._best

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
        self.wait()
        items = {
            "params": ocp.args.StandardSave(state.params),
            "optimizer": ocp.args.StandardSave(to_nested(state.opt_state)),
        }
        if state.ema is not None:
            items["ema"] = ocp.args.StandardSave(state.ema)
        if state.objective:
            items["objective"] = ocp.args.StandardSave(state.objective)
        description = {"format_version": FORMAT_VERSION, "items": list(items)}
        items["format"] = ocp.args.JsonSave(description)
        scores = self._scores(metrics)
        args = ocp.args.Composite(**items)
        # The copy to the host is the point here.
        being_written.set()
        with jax.transfer_guard("allow"), written(self._directory, step):
            self._manager.save(step, args=args, metrics=scores, force=True)
        self._best = max(self._best, self._score(scores))
        self._saving = threading.Thread(target=self._complete, args=(step, description["items"]))
        self._saving.start()

    def _complete(self, step: int, items: list[str]) -> None:
        """Waits in a thread for a checkpoint to be written, looks at it, and adds digests."""
        try:
            with written(self._directory, step):
                self._manager.wait_until_finished()
                metadata = self._items(step)
                if missing := [item for item in items if not metadata.get(item)]:
                    raise digests.damaged(self._directory, step, f"it has no readable {missing[0]}")
                digests.write(self._directory / str(step), jax.process_index())
                self._remove_deleted()
            being_written.clear()
        except Exception as error:  # Told by `wait`, in the thread that trains.
            self._failure = error

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state saved at `step`, with the shapes, types and shardings of `like`.

        Averaged parameters that the checkpoint lacks start from its parameters; those that `like`
        does not ask for are left out. Raises CheckpointError, naming the first difference, where
        the saved state does not have the names and shapes that are asked for.
        """
        self._check_digests(step, shared=not self._read_only)
        wanted = {"params": like.params, "optimizer": to_nested(like.opt_state)}
        has_ema = "ema" in self._description(step)["items"]
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

    def _check_digests(self, step: int, *arguments: Any, **options: Any) -> None:
        """As `digests.check`; says so if there are none."""
        if not digests.check(self._directory, step, *arguments, **options):
            logger.warning(
                "%s/%d has no digests (an earlier version saved it, or the run was killed at that "
                "moment): whether its files are as they were saved cannot be told.",
                self._directory,
                step,
            )

    def _items(self, step: int) -> Mapping[str, Any]:
        """The items of a checkpoint, and the names and shapes of their arrays."""
        with readable(self._directory, step):
            return self._manager.item_metadata(step)

    def _description(self, step: int) -> dict[str, Any]:
        """The version and the items of a checkpoint; raises CheckpointError for a newer version."""
        args = ocp.args.Composite(format=ocp.args.JsonRestore())
        with readable(self._directory, step):
            description = dict(self._manager.restore(step, args=args)["format"])
            version = int(description["format_version"])
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"{self._directory}/{step} has format version {version}, written by a newer vit_jax; "
                f"this one reads up to {FORMAT_VERSION}: upgrade it."
            )
        folder = self._directory / str(step)  # Early checkpoints do not say what they hold.
        present = [item for item in ARRAY_ITEMS if (folder / item).exists()]
        return {"items": present, **description}

    def _restore_items(self, step: int, wanted: dict[str, dict]) -> dict[str, dict]:
        metadata = self._items(step)
        for item, like in wanted.items():
            if not metadata.get(item):
                raise digests.damaged(self._directory, step, f"it has no readable {item}")
            check_same(f"{self._directory}/{step}/{item}", metadata[item], like)
        items = {item: ocp.args.StandardRestore(like) for item, like in wanted.items()}
        with readable(self._directory, step):
            return dict(self._manager.restore(step, args=ocp.args.Composite(**items)).items())

    def restore_item(self, step: int, item: str) -> dict:
        """One of `ARRAY_ITEMS` of `step` as it was saved, on this process's first device."""
        self._check_digests(step, (item, "format"))
        if item not in self._description(step)["items"]:
            reason = " (config.ema_decay was 0)" if item == "ema" else ""
            raise CheckpointError(f"{self._directory}/{step} has no {item}{reason}.")
        metadata = self._items(step).get(item)
        if not metadata:
            raise digests.damaged(self._directory, step, f"it has no readable {item}")
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            metadata.tree,
        )
        return self._restore_items(step, {item: like})[item]

    def wait(self) -> None:
        """Returns when the checkpoint being saved is on the disk, complete and readable.

        Raises what kept it from that: CheckpointError, or what the file system says.
        """
        if self._saving is not None:
            self._saving.join()
            self._saving = None
        failure, self._failure = self._failure, None
        if failure is not None:
            self._failed = True
            raise failure

    def close(self) -> None:
        """Waits, as `wait` does, and closes the files."""
        try:
            self.wait()
        finally:
            try:
                self._manager.close()
            except (
                Exception
            ):  # After a save that failed Orbax raises the same, in words of its own.
                if not self._failed:
                    raise


def _score(metric: str, metrics: Mapping[str, float]) -> float:
    """The score of a checkpoint, highest for the best; of others than `metric` there is none."""
    return metrics.get(metric, -math.inf)


def _check_scores(directory: epath.Path) -> str:
    """The metric of the newest checkpoint that was scored; "" if none was.

    Raises CheckpointError if a small file that is read of all checkpoints is damaged.
    """
    newest = ""
    for step in digests.steps(directory):
        digests.check(directory, step, TOP_LEVEL)
        metadata, metrics = (directory / str(step) / name for name in SMALL_FILES)
        with readable(directory, step):
            dict(json.loads(metadata.read_text()))
            scores = dict(json.loads(metrics.read_text())) if metrics.exists() else {}
            newest = next(iter(scores), newest)
    return newest


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


def find_checkpoint(workdir: str | os.PathLike[str], checkpoint: str | int) -> tuple[int, bool]:
    """The step of a run's "latest" or "best" checkpoint, or a given one if it is there.

    With it, whether it is the best by a metric of averaged parameters.
    """
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.step_of(checkpoint)
        return step, checkpoint == "best" and checkpoints.scored_average(step)
