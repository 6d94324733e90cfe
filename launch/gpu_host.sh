#!/usr/bin/env bash
# Trains on all GPUs of this machine, in one process, and starts again when it was stopped.
#
#   bash launch/gpu_host.sh [--dry_run] [--restarts=N] -- ARGUMENTS
#
# ARGUMENTS are those of `python -m vit_jax.main`. A run that ends with exit code 75, stopped with
# its state saved, is started again up to N times (default 10), unless a signal to this script
# stopped it: SIGTERM and Ctrl-C are passed on. CUDA_VISIBLE_DEVICES chooses the GPUs, PYTHON the
# interpreter. Exit codes are those of the run. See docs/launch.md.
set -euo pipefail

PREEMPTED=75
dry_run=false restarts=10
python="${PYTHON:-python3}"

fail() {
  echo "gpu_host.sh: $*" >&2
  exit 2
}

while (($#)); do
  case "$1" in
    --dry_run) dry_run=true ;;
    --restarts=*) restarts="${1#*=}" ;;
    -h | --help)
      sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
      exit 0
      ;;
    --) shift && break ;;
    *) fail "unknown flag $1; --help lists them; arguments of the run follow --" ;;
  esac
  shift
done
[[ "$restarts" =~ ^(0|[1-9][0-9]{0,8})$ ]] || fail "--restarts=$restarts: expected a whole number"
(($#)) || fail "name the run after --, such as -- --config=configs/vit.py:b16 --workdir=runs/b16"

command=("$python" -m vit_jax.main "$@")
if $dry_run; then
  printf '%q ' nvidia-smi --list-gpus && echo
  printf '%q ' env PYTHONUNBUFFERED=1 "${command[@]}" && echo
  exit 0
fi
nvidia-smi --list-gpus || fail "this machine shows no NVIDIA GPU (nvidia-smi --list-gpus)"

child="" signalled=false interrupted=false
pass_on() {
  signalled=true interrupted=true
  [[ -z "$child" ]] || kill -s "$1" "$child" 2>/dev/null || true
}
trap 'pass_on TERM' TERM HUP
trap 'pass_on INT' INT

for ((attempt = 0; ; attempt++)); do
  # In the background, for bash would take a signal only once a command in front has ended. Job
  # control gives the run a process group of its own, so that Ctrl-C reaches it once, through us.
  set -m
  env PYTHONUNBUFFERED=1 "${command[@]}" &
  child=$!
  set +m
  while true; do
    code=0 interrupted=false
    wait "$child" || code=$?
    $interrupted || break # Else the signal ended `wait`, not the run.
  done
  child=""
  if ((code != PREEMPTED)) || $signalled || ((attempt >= restarts)); then
    exit "$code"
  fi
  echo "gpu_host.sh: starting again ($((attempt + 1)) of $restarts)" >&2
done
