#!/usr/bin/env bash
# What launch/tpu_vm.sh does on each worker of a TPU slice; it runs there, in the copy of the code.
#
#   tpu_worker.sh install
#   tpu_worker.sh mount URL DIR        gs://BUCKET or a folder in it, by gcsfuse
#   tpu_worker.sh copy URL DIR         to the local disk
#   tpu_worker.sh start ARGUMENTS      of `python -m vit_jax.main`; ends a run that others left
#   tpu_worker.sh follow               the log, from its beginning, until the run ends
#   tpu_worker.sh status               running, or the exit code, or none
#   tpu_worker.sh stop
#
# The run is a systemd unit: it outlives the connection, there is one of it, and before the machine
# is taken away it gets SIGTERM and time to save.
set -euo pipefail

UNIT=vit_jax
SECONDS_TO_SAVE=90
# A new machine may be installing its own updates, which are waited for.
apt=(sudo DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 --quiet --yes)
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$here/.venv/bin/python"

property() {
  systemctl show "$UNIT" --property="$1" --value
}

do_install() {
  local system=python3
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    system=python3.11
  fi
  if ! "$system" -m ensurepip --version >/dev/null 2>&1; then
    "${apt[@]}" update
    "${apt[@]}" install "$system" "$system-venv"
  fi
  "$system" -m venv "$here/.venv"
  "$python" -m pip install --quiet --constraint "$here/requirements.lock" "${here}[tpu]"
}

do_mount() {
  if mountpoint --quiet "$2"; then
    return
  fi
  if ! command -v gcsfuse >/dev/null && ! "${apt[@]}" install gcsfuse; then
    echo "Install gcsfuse (cloud.google.com/storage/docs/gcsfuse-install), or use --copy_data." >&2
    exit 2
  fi
  sudo install --directory --owner="$(id --user)" "$2"
  local path="${1#gs://}"
  local bucket="${path%%/*}" folder=()
  [[ "$path" == "$bucket" ]] || folder=(--only-dir="${path#*/}")
  gcsfuse --implicit-dirs -o ro "${folder[@]}" "$bucket" "$2"
}

do_copy() {
  sudo install --directory --owner="$(id --user)" "$2"
  gcloud storage rsync --recursive "$1" "$2"
}

do_start() {
  sudo systemctl stop "$UNIT" 2>/dev/null || true
  sudo systemctl reset-failed "$UNIT" 2>/dev/null || true
  sudo systemd-run --unit="$UNIT" --uid="$(id --user)" --working-directory="$here" \
    --setenv=PYTHONUNBUFFERED=1 --property=RemainAfterExit=yes \
    --property=TimeoutStopSec="$SECONDS_TO_SAVE" \
    "$python" -m vit_jax.main "${@//\$/\$\$}" # For systemd replaces $NAME and ${NAME}, but not $$.
}

do_follow() {
  sudo journalctl --unit="$UNIT" --output=cat --follow --no-tail \
    "_SYSTEMD_INVOCATION_ID=$(property InvocationID)" &
  while [[ "$(property SubState)" == running ]]; do
    sleep 2
  done
  sleep 2 # For the last lines.
  sudo kill "$!"
}

do_status() {
  case "$(property SubState)" in
    running) echo running ;;
    exited | failed) property ExecMainStatus ;;
    *) echo none ;;
  esac
}

do_stop() {
  sudo systemctl stop "$UNIT" || true
}

case "${1:-}" in
  install | mount | copy | start | follow | status | stop)
    action="$1"
    shift
    "do_$action" "$@"
    ;;
  *)
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
    exit 2
    ;;
esac
