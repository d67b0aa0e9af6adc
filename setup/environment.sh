# shellcheck shell=bash
# Chooses the Python to run with. Sourced with the clone's root in AIRLOCK_ROOT, with "dev" in
# airlock_extra if the development tools are needed, and the command that the script stands for, if
# any, in airlock_command (airlock_page names its help, if that is another); sets AIRLOCK_PY to the
# Python and puts the root first on PYTHONPATH.
# Help is shown without any Python (setup/help). The order of choice:
#   1. AIRLOCK_PYTHON           if it is set: this Python or none
#   2. an active environment    used as it is, never installed into (AIRLOCK_ENV=own bypasses it)
#   3. .venv                    if it is complete, which the shell alone can tell
#   4. python3                  if it has everything, as in a container (not with AIRLOCK_ENV=own)
#   5. .venv                    made, or brought up to date, by make.py
# Written for any POSIX shell, so that `sh start.sh` works too. Every failure here exits with 4.

airlock_fail() {
    printf 'airlock: %s\n' "$@" >&2
    exit 4
}

# help COMMAND ARGUMENTS...: show the help of COMMAND, or of all commands, if it is requested.
airlock_help() {
    case ${1:-} in -h | --help) set -- airlock "$1" ;; esac
    case ${2:-} in -h | --help) ;; *) return 0 ;; esac
    case $1 in */*) return 0 ;; esac
    if [ -f "$AIRLOCK_ROOT/setup/help/$1.txt" ]; then
        exec cat -- "$AIRLOCK_ROOT/setup/help/$1.txt"
    fi
}

# run PROGRAM WHAT ARGUMENTS...: run missing.py (is all that is needed in WHAT?) or make.py.
airlock_run() {
    airlock_program=$AIRLOCK_ROOT/setup/$1 airlock_what=$2
    shift 2
    PYTHONSAFEPATH=1 "$AIRLOCK_PY" "$airlock_program" "$airlock_what" "${airlock_extra:-}" \
        "$AIRLOCK_SCRIPT" "$@"
}

# Complete: the marker, which is written last, says what is pinned now, and the base Python exists.
airlock_whole() {
    airlock_marker=$AIRLOCK_ROOT/.venv/.airlock-installed${airlock_extra:+-$airlock_extra}
    set -- "$AIRLOCK_ROOT/requirements.txt" "$AIRLOCK_ROOT/constraints.txt" \
        ${airlock_extra:+"$AIRLOCK_ROOT/requirements-$airlock_extra.txt"}
    [ -f "$airlock_marker" ] && [ -x "$AIRLOCK_ROOT/.venv/bin/python" ] &&
        [ "$(cat -- "$@")" = "$(cat -- "$airlock_marker")" ]
}

# Finds a Python to run make.py with: any from 3.8 on, as uv provides that of .venv. Each is tried
# by running it: a shim may name one that does not exist.
airlock_python() {
    for AIRLOCK_PY in python3 python3.13 python3.12 python3.11; do
        "$AIRLOCK_PY" -I -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && return
    done
    airlock_needed=$(sed -n 's/^requires-python *= *"\(.*\)"/\1/p' "$AIRLOCK_ROOT/pyproject.toml")
    AIRLOCK_PY=$(PATH=$PATH:${HOME:-}/.local/bin uv run --no-project --python "$airlock_needed" \
        python -c 'import sys; print(sys.executable)' 2>/dev/null) ||
        airlock_fail "no Python to make .venv with: needed is $airlock_needed" \
            "install one (Debian, Ubuntu: apt install python3 python3-venv) or put one on PATH," \
            "or install uv, which fetches one (curl -LsSf https://astral.sh/uv/install.sh | sh)," \
            "then: $AIRLOCK_SCRIPT"
}

# The script that was called, for command.txt and for advice on what to type; only the shell knows.
case $0 in */*) AIRLOCK_SCRIPT=$0 ;; *) AIRLOCK_SCRIPT=./$0 ;; esac
export AIRLOCK_SCRIPT
unset PYTHONHOME # it belongs to another Python; activate scripts unset it too

airlock_help ${airlock_command:+"${airlock_page:-$airlock_command}"} "$@"

case ${AIRLOCK_ENV:-} in '' | own) ;; *) airlock_fail "AIRLOCK_ENV=$AIRLOCK_ENV: it can only be own" ;; esac
case $AIRLOCK_ROOT in *:*) airlock_fail "$AIRLOCK_ROOT: Python can use no path with a colon; move it" ;; esac
case ${PYTHONPATH:-} in
    "$AIRLOCK_ROOT" | "$AIRLOCK_ROOT":*) ;;
    *) export PYTHONPATH="$AIRLOCK_ROOT${PYTHONPATH:+:$PYTHONPATH}" ;;
esac

airlock_active=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
for airlock_own in "$airlock_active"/.airlock-install*; do # that of a clone is not the user's
    if [ "${AIRLOCK_ENV:-}" = own ] || [ -f "$airlock_own" ]; then airlock_active=; fi
done

AIRLOCK_PY=python3
if [ -n "${AIRLOCK_PYTHON:-}" ]; then
    AIRLOCK_PY=$(command -v -- "$AIRLOCK_PYTHON") ||
        airlock_fail "AIRLOCK_PYTHON=$AIRLOCK_PYTHON is no program; unset it, or name a Python"
    airlock_run missing.py "AIRLOCK_PYTHON=$AIRLOCK_PY" "$@" || exit 4
elif [ -n "$airlock_active" ]; then
    AIRLOCK_PY=$airlock_active/bin/python
    [ -x "$AIRLOCK_PY" ] ||
        airlock_fail "the active environment $airlock_active has no bin/python; leave it (deactivate)," \
            "or pass it by: AIRLOCK_ENV=own $AIRLOCK_SCRIPT"
    airlock_run missing.py "the active environment $airlock_active" "$@" || exit 4
elif airlock_whole; then
    AIRLOCK_PY=$AIRLOCK_ROOT/.venv/bin/python
elif [ "${AIRLOCK_ENV:-}" = own ] || ! airlock_run missing.py '' "$@" 2>/dev/null; then
    airlock_python
    airlock_run make.py .venv "$@" || exit $?
    AIRLOCK_PY=$AIRLOCK_ROOT/.venv/bin/python
fi
case $AIRLOCK_PY in /*) ;; */*) AIRLOCK_PY=$PWD/$AIRLOCK_PY ;; esac
