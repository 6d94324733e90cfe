#!/usr/bin/env bash
# Trains on a slice of Cloud TPU VMs, of one host or many, over preemptions to the end.
#
#   bash launch/tpu_vm.sh run --name=NAME --zone=ZONE --type=TYPE [FLAGS] -- ARGUMENTS
#   bash launch/tpu_vm.sh logs|stop|delete --name=NAME --zone=ZONE
#
# `run` takes the queued resource NAME, or asks for it; puts this checkout on all workers; makes
# the data available; starts `python -m vit_jax.main ARGUMENTS` on all and shows the log of the
# first. The run goes on without this script: the same command again shows it again. After a
# preemption it asks for the slice again and goes on from the last checkpoint, so --workdir in
# ARGUMENTS should be in a bucket: gs://BUCKET/DIR. The slice stays, and costs, until it is deleted.
#
#   --name=NAME        of the queued resource and the slice
#   --zone=ZONE        such as europe-west4-b
#   --type=TYPE        accelerator type, such as v5litepod-16, v5p-32, v6e-16
#   --version=VERSION  runtime version (default: by the type)
#   --project=PROJECT  (default: gcloud's)
#   --spot             cheaper, may be preempted
#   --data=gs://…      a bucket or a folder in it, to be found at DIR
#   --data_dir=DIR     on the workers (default /mnt/data)
#   --copy_data        copy the data to the workers' disks instead of mounting them by gcsfuse
#   --restarts=N       after preemptions and failures (default 100)
#   --delete           delete the slice once the run has ended, whatever its end
#   --dry_run          only print the commands, taking the slice to be new and the run to end well
#
# Exit codes are those of the run. See docs/launch.md.
set -euo pipefail

SECONDS_BETWEEN_LOOKS="${SECONDS_BETWEEN_LOOKS:-30}"
NOT_WORTH_RESTARTING=(2 3) # Bad config, data or weights; non-finite loss.
resources=(gcloud compute tpus queued-resources)
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

name="" zone="" type="" version="" project="" data="" data_dir=/mnt/data restarts=100
archive="" spot=false copy_data=false delete=false dry_run=false

say() {
  echo "tpu_vm.sh: $*" >&2
}

fail() {
  say "$*"
  exit 2
}

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
  exit 0
}

# ------------------------------------------------------------------------------------- commands

# Runs a command that changes something; in a dry run only prints it.
run() {
  if $dry_run; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

# Runs tpu_worker.sh on some workers; `gcloud ssh` takes one string for the shell there.
on_worker() { # all|INDEX ARGUMENTS…
  local command
  command="$(printf '%q ' bash vit_jax/launch/tpu_worker.sh "${@:2}")"
  run gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker="$1" --command="${command% }"
}

default_version() {
  case "$type" in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "--type=$type: name its runtime with --version" ;;
  esac
}

# ------------------------------------------------------------------------------------ the slice

state() { # ACTIVE, PROVISIONING, …; NONE without a resource
  if $dry_run; then
    echo NONE
    return
  fi
  local text
  if text="$("${resources[@]}" describe "$name" "${place[@]}" --format="value(state.state)" 2>&1)"; then
    echo "$text"
  elif [[ "$text" == *NOT_FOUND* || "$text" == *"not found"* ]]; then
    echo NONE
  else
    fail "gcloud cannot say how $name is: $text"
  fi
}

create() {
  local flags=(--node-id="$name" --accelerator-type="$type" --runtime-version="$version")
  ! $spot || flags+=(--spot)
  run "${resources[@]}" create "$name" "${place[@]}" "${flags[@]}"
}

delete_slice() {
  run "${resources[@]}" delete "$name" "${place[@]}" --force --quiet
}

# Returns once the slice is there; sets `is_new` if it was not there before.
acquire() {
  local now
  is_new=false
  while true; do
    now="$(state)"
    case "$now" in
      ACTIVE) return ;;
      NONE)
        is_new=true
        create
        ! $dry_run || return 0
        ;;
      FAILED | SUSPENDED | SUSPENDING)
        say "$name is $now: asking for it again"
        is_new=true
        delete_slice
        ;;
      DELETING) is_new=true ;;
      *)
        is_new=true
        say "$name is $now"
        ;;
    esac
    sleep "$SECONDS_BETWEEN_LOOKS"
  done
}

# Puts this checkout and the data on all workers; fails at the first step that does. Its caller goes
# on after a failure, and so `set -e` does not hold in it.
prepare() {
  if ! $dry_run && [[ -z "$archive" ]]; then # A file that nobody else on this machine can touch.
    archive="$(mktemp)" || return
    trap 'rm -f "$archive"' EXIT
  fi
  run tar --create --gzip --file="${archive:-ARCHIVE}" --directory="$here" --exclude=./.git --exclude=./.venv \
    --exclude=./runs --exclude=__pycache__ . || return
  run gcloud compute tpus tpu-vm scp "${archive:-ARCHIVE}" "$name:vit_jax.tar.gz" "${place[@]}" \
    --worker=all || return
  run gcloud compute tpus tpu-vm ssh "$name" "${place[@]}" --worker=all \
    --command="mkdir -p vit_jax && tar -xzf vit_jax.tar.gz -C vit_jax" || return
  on_worker all install || return
  [[ -n "$data" ]] || return 0
  if $copy_data; then
    on_worker all copy "$data" "$data_dir"
  else
    on_worker all mount "$data" "$data_dir"
  fi
}

# ------------------------------------------------------------------------------------- the run

# Starts the run, or finds it going on; shows its log; sets `code` to what it ended with.
attempt() { # ARGUMENTS…
  code=none
  acquire
  if $is_new || [[ "$(status)" != running ]]; then
    prepare || return 0
    on_worker all start "$@" || return 0
  fi
  on_worker 0 follow || true
  code="$(status)"
  while [[ "$code" == running ]]; do # The connection broke.
    sleep "$SECONDS_BETWEEN_LOOKS"
    on_worker 0 follow || true
    code="$(status)"
  done
}

status() { # running, an exit code, or none, as after a preemption
  if $dry_run; then
    echo 0
    return
  fi
  local text
  text="$(on_worker 0 status 2>/dev/null | tail -n 1 | tr -d '\r')" || text=none
  echo "${text:-none}"
}

run_to_the_end() { # ARGUMENTS…
  local count
  for ((count = 0; ; count++)); do
    attempt "$@"
    [[ "$code" != 0 ]] || return 0
    if [[ " ${NOT_WORTH_RESTARTING[*]} " == *" $code "* ]] || ((count >= restarts)); then
      return 0
    fi
    say "the run ended with code $code: starting it again ($((count + 1)) of $restarts)"
    sleep "$SECONDS_BETWEEN_LOOKS"
  done
}

# ---------------------------------------------------------------------------------- command line

action="${1:-}"
case "$action" in
  run | logs | stop | delete) shift ;;
  -h | --help | "") usage ;;
  *) fail "unknown command $action: run, logs, stop or delete; --help says more" ;;
esac
while (($#)); do
  case "$1" in
    --name=*) name="${1#*=}" ;;
    --zone=*) zone="${1#*=}" ;;
    --type=*) type="${1#*=}" ;;
    --version=*) version="${1#*=}" ;;
    --project=*) project="${1#*=}" ;;
    --data=*) data="${1#*=}" ;;
    --data_dir=*) data_dir="${1#*=}" ;;
    --restarts=*) restarts="${1#*=}" ;;
    --spot) spot=true ;;
    --copy_data) copy_data=true ;;
    --delete) delete=true ;;
    --dry_run) dry_run=true ;;
    -h | --help) usage ;;
    --) shift && break ;;
    *) fail "unknown flag $1; --help lists them; arguments of the run follow --" ;;
  esac
  shift
done
[[ "$restarts" =~ ^(0|[1-9][0-9]{0,8})$ ]] || fail "--restarts=$restarts: expected a whole number"
[[ -n "$name" && -n "$zone" ]] || fail "--name and --zone are needed"
place=(--zone="$zone")
[[ -z "$project" ]] || place+=(--project="$project")

case "$action" in
  logs) on_worker 0 follow ;;
  stop) on_worker all stop ;;
  delete) delete_slice ;;
  run)
    [[ -n "$type" ]] || fail "--type is needed, such as --type=v5litepod-16"
    (($#)) || fail "name the run after --: -- --config=configs/vit.py:b16 --workdir=gs://BUCKET/DIR"
    [[ " $* " == *" --workdir=gs://"* ]] || say "without --workdir=gs://… a preemption loses the run"
    [[ -n "$version" ]] || version="$(default_version)"
    code=none
    run_to_the_end "$@"
    ! $delete || delete_slice
    [[ "$code" == none ]] && exit 1
    exit "$code"
    ;;
esac
