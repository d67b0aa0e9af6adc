#!/usr/bin/env bash
# The tests: ./test.sh [--all] [PYTEST ARGUMENTS]. Without --all, not the long ones and not the GPU's.
set -eu
AIRLOCK_ROOT=$(readlink -f -- "$0")
AIRLOCK_ROOT=${AIRLOCK_ROOT%/*}
airlock_extra=dev
# shellcheck source=launch/environment.sh
. "$AIRLOCK_ROOT/launch/environment.sh"

tier='not long and not gpu'
# Most of a test is one process that imports: two files at once, where no GPU is to be shared.
together='--numprocesses=logical --maxprocesses=2 --dist=loadfile'
for argument; do
    shift
    case $argument in --all) tier='' together='' ;; -m) together='' ;; esac
    if [ "$argument" != --all ]; then set -- "$@" "$argument"; fi
done
cd -- "$AIRLOCK_ROOT"
# Of two -m pytest takes the later, so one among the arguments wins.
# Of $together every word is one of its own.
# shellcheck disable=SC2086
exec "$AIRLOCK_PY" -P -m pytest -m "$tier" $together "$@"
