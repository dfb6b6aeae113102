#!/usr/bin/env bash
# Installs what is missing, builds the examples, runs quickstart, then trains a language model for about two minutes.
#
#   examples/run.sh [arguments of train_language_model]
#   examples/run.sh train_image_classifier|taper_study|signal_propagation [arguments]      another example in its place
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/cmake/packages.sh"

need_base
need_header libcli11-dev CLI/CLI.hpp
need_header zlib1g-dev zlib.h
install_missing

program=train_language_model
case ${1:-} in
  train_* | taper_study | signal_propagation) program=$1; shift ;;
esac
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
exec "$root/build/release/examples/$program" "$@"
