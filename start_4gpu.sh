#!/usr/bin/env bash
# start.sh preset for four GPUs: 32B.
set -eu
export AIRLOCK_PRESET_PROFILE=32b AIRLOCK_PRESET_NUM_GPUS=4
# shellcheck disable=SC2034 # read by environment.sh
airlock_page=start_4gpu
# Sourced, so that what start.sh tells the user to type next names this script.
self=$(readlink -f -- "$0")
# shellcheck source=start.sh
. "${self%/*}/start.sh"
