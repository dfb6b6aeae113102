#!/usr/bin/env bash
# What #include "evenkeel/evenkeel.hpp" costs, against what Eigen/Core and Eigen's Tensor module cost by themselves, in
# processor time: the least of two rounds that take turns, so that a busy machine slows both. At most 2.7 times; it was 2.03
# to 2.25 with g++ 12 (2026-11-30), of which 0.4 are the intrinsics of AVX-512, for kernels that are chosen at run time.
#
#   compile_time.sh COMPILER FLAG...
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#include <Eigen/Core>\n#include <unsupported/Eigen/CXX11/Tensor>\n' >"$folder/eigen.cpp"
printf '#include "evenkeel/evenkeel.hpp"\n' >"$folder/evenkeel.cpp"

TIMEFORMAT=%U
least_eigen=999 least_evenkeel=999
for _ in 1 2; do
  for unit in eigen evenkeel; do
    seconds=$({ time "$@" -fsyntax-only "$folder/$unit.cpp" >&2; } 2>&1)
    case $seconds in *[!0-9.]*) echo "$seconds" >&2; exit 1 ;; esac
    declare -n least=least_$unit
    least=$(printf '%s\n%s\n' "$seconds" "$least" | sort -n | head -n 1)
  done
done
awk -v a="$least_evenkeel" -v b="$least_eigen" 'BEGIN {
  printf "evenkeel.hpp %.2f s, Eigen with tensors %.2f s: %.2f times\n", a, b, a / b
  exit !(a <= 2.7 * b)
}'
