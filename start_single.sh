#!/usr/bin/env bash
# start.sh preset for one GPU: 14B, the import test and the single-GPU test first.
set -eu
: "${RUN_IMPORT_TEST:=1}" "${RUN_SINGLE_GPU_TEST:=1}"
export RUN_IMPORT_TEST RUN_SINGLE_GPU_TEST
export AIRLOCK_PRESET_PROFILE=14b AIRLOCK_PRESET_NUM_GPUS=1
# shellcheck disable=SC2034 # read by environment.sh
airlock_page=start_single
# Sourced, so that what start.sh tells the user to type next names this script.
self=$(readlink -f -- "$0")
# shellcheck source=start.sh
. "${self%/*}/start.sh"
