#!/usr/bin/env bash
# Start a training: ./start.sh [PROFILE|SCRIPT] [OPTIONS]; what these mean, ./start.sh --help says.
set -eu
AIRLOCK_ROOT=$(readlink -f -- "$0")
AIRLOCK_ROOT=${AIRLOCK_ROOT%/*}
# shellcheck disable=SC2034 # read by environment.sh
airlock_command=run
# shellcheck disable=SC2034 # the help to show: that of the script which sources this one
airlock_page=${airlock_page:-start}
# shellcheck source=setup/environment.sh
. "$AIRLOCK_ROOT/setup/environment.sh"
exec "$AIRLOCK_PY" -P -m launch run "$@"
