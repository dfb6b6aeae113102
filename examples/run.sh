#!/usr/bin/env bash
# Installs what is missing, builds the examples, runs quickstart, then trains a language model for about two minutes.
#
#   examples/run.sh [arguments of train_language_model]
#   examples/run.sh train_image_classifier|taper_study|signal_propagation [arguments]      another example in its place
#   examples/run.sh train_image_classifier --ranks 4 --sync-batch-norm --threads 1         in 4 processes, under mpirun
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/cmake/packages.sh"

program=train_language_model
case ${1:-} in
  train_* | taper_study | signal_propagation) program=$1; shift ;;
esac
launcher=()
if [ "${1:-}" = --ranks ]; then
  launcher=(mpirun -n "${2:?--ranks needs a number}")
  shift 2
  # Open MPI 4 and 5: as root too, and more ranks than cores.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
fi

need_base
need_header libcli11-dev CLI/CLI.hpp
need_header zlib1g-dev zlib.h
[ ${#launcher[@]} -eq 0 ] || need_mpi
install_missing
case $program in
  train_image_classifier) want_fashion_mnist ;;
  signal_propagation) ;;
  *) want_bible ;;
esac

start=$PWD
cd "$root"
cmake --preset release
cmake --build build/release --target quickstart "$program"
# The trainer's arguments may name files relative to where this was called.
cd "$start"
"$root/build/release/examples/quickstart"
exec ${launcher[@]+"${launcher[@]}"} "$root/build/release/examples/$program" "$@"
