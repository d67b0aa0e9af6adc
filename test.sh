#!/usr/bin/env bash
# The tests: ./test.sh [--all] [PYTEST ARGUMENTS]. Without --all, not the long ones and not the GPU's.
set -eu
AIRLOCK_ROOT=$(readlink -f -- "$0")
AIRLOCK_ROOT=${AIRLOCK_ROOT%/*}
airlock_extra=dev
# shellcheck source=launch/environment.sh
. "$AIRLOCK_ROOT/launch/environment.sh"

tier='not long and not gpu'
for argument; do
    shift
    if [ "$argument" = --all ]; then tier=; else set -- "$@" "$argument"; fi
done
cd -- "$AIRLOCK_ROOT"
# Of two -m pytest takes the later, so one among the arguments wins.
exec "$AIRLOCK_PY" -P -m pytest -m "$tier" "$@"
