#!/bin/bash
# What one NVIDIA GPU makes of the train step, in under nine minutes: see benchmarks/gpu.py.
#
#   benchmarks/gpu.sh OUTPUT.json [WHEELS] [FLAGS of gpu.py...]
#
# Uses $PYTHON (python3) with whatever JAX it has; packages that it lacks come from the folder WHEELS,
# without a network, into an environment of their own. Each case is on disk once it is done; one that
# takes the process down is marked, and the others go on.
set -euo pipefail
output=$1 wheels=${2:-}
shift $(($# < 2 ? $# : 2))
python=${PYTHON:-python3}
minutes=${MINUTES:-8.5}
output=$(realpath -m "$output")
cd "$(dirname "$0")/.."
deadline=$(awk "BEGIN {printf \"%d\", $(date +%s) + 60 * $minutes}")
if [ -n "$wheels" ]; then
  environment=$(mktemp -d)/environment
  "$python" -m venv --system-site-packages "$environment"
  python=$environment/bin/python
  "$python" -m pip install --quiet --no-index --no-deps --find-links="$wheels" "$wheels"/*.whl
fi
export PYTHONPATH=. JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$output.cache}
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}
for _ in $(seq 20); do # A crash ends a case, not the rest.
  status=0
  timeout --kill-after=5 $((deadline - $(date +%s) > 1 ? deadline - $(date +%s) : 1)) \
    "$python" benchmarks/gpu.py --output="$output" --deadline="$deadline" "$@" || status=$?
  [ $status -eq 0 ] || [ $status -eq 2 ] || [ "$(date +%s)" -ge "$deadline" ] || continue
  break
done
"$python" benchmarks/gpu.py --output="$output" --table
exit $((status == 2 ? 2 : 0))
