#!/usr/bin/env bash
# ./test.sh [--runs | --all [--only PART]...] [PYTEST ARGUMENTS]
#
#   ./test.sh         what every change needs, in a few minutes: all that starts no real run, and one
#                     real run of each kind (warm, cold, a script, killed, resumed)
#   ./test.sh --runs  the other real runs
#   ./test.sh --all   the rest: long and heavy tests, and the GPU's where there is one; by parts, of
#                     which --only runs one: the end of each run lists them with their times
#
# An -m among pytest's arguments takes the place of these; -p no:xdist -x -k WORDS help while working.
set -eu
AIRLOCK_ROOT=$(readlink -f -- "$0")
AIRLOCK_ROOT=${AIRLOCK_ROOT%/*}
case ${1:-} in -h | --help) exec sed -n '2,/^set/s/^# \{0,1\}//p' "$AIRLOCK_ROOT/test.sh" ;; esac
airlock_extra=dev
# shellcheck source=setup/environment.sh
. "$AIRLOCK_ROOT/setup/environment.sh"

tier='not long and not gpu and (sample or not runs)'
# Where no GPU is to be shared: a third file computes while the processes of two others wait.
# Files begin in their order, so that of the few real runs none comes last.
together=--numprocesses=3\ --dist=loadfile\ --no-loadscope-reorder
joins=''
for argument; do
    shift
    # A part may be named like a folder, which pytest would take for one of its own arguments.
    case $argument in --only) joins=--only= && continue ;; esac
    argument=$joins$argument joins=''
    case $argument in
        --runs)
            tier='runs and not sample and not long and not gpu'
            together=${together% *} # those with most tests share the longest set-ups: first
            ;;
        --all)
            tier='long or gpu'
            [[ ! -e /proc/driver/nvidia/version ]] || together=''
            ;;
        -m) together='' ;;
    esac
    case $argument in --runs | --all) ;; *) set -- "$@" "$argument" ;; esac
done
cd -- "$AIRLOCK_ROOT"
# Of two -m pytest takes the later, so one among the arguments wins.
# Of $together every word is one of its own.
# shellcheck disable=SC2086
exec "$AIRLOCK_PY" -P -m pytest -m "$tier" $together "$@"
