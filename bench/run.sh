#!/usr/bin/env bash
# Installs what is missing, builds the benchmarks and runs each at -O2 and -O3.
#
#   bench/run.sh [arguments of Google Benchmark]      e.g.  bench/run.sh --benchmark_filter=layer_norm
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/cmake/packages.sh"

need_base
need_header libbenchmark-dev benchmark/benchmark.h
install_missing

start=$PWD
cd "$root"
cmake --preset release
cmake --build build/release --target benchmarks
cd "$start"
for source in "$root"/bench/bench_*.cpp; do
  [ -e "$source" ] || { echo "bench/run.sh: there are no benchmarks" >&2; exit 2; }
  name=$(basename "$source" .cpp)
  for level in O2 O3; do
    echo "== $name, -$level"
    "$root/build/release/bench/${name}_$level" "$@"
  done
done
