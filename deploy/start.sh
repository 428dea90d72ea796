#!/bin/sh
# start.sh MODEL MANIFEST [OPTION of prep serve ...]: check the model's checksums, then serve it.
#
# The container's entry point, and the ExecStart of the systemd unit. `exec` gives the server this process id, so that
# SIGTERM reaches it: it drains and ends with exit code 0. GET /health answers 200 after the warm-up, not before.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: start.sh MODEL MANIFEST [OPTION of prep serve ...]" >&2
    exit 2
fi
model=$1 manifest=$2
shift 2
prep=${PREP_COMMAND:-prep}

"$prep" zoo manifest "$model" --check "$manifest" || {
    echo "start.sh: refusing to serve $model" >&2
    exit 1
}
exec "$prep" serve "$model" "$@"
