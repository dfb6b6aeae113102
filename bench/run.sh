#!/usr/bin/env bash
# Installs what is missing, builds the benchmarks and runs each at -O2 and -O3; then one table, norms.csv and norms.svg.
#
#   bench/run.sh [arguments of Google Benchmark]      e.g.  bench/run.sh --benchmark_filter=layer_norm
#   bench/run.sh --compare [--quick] [--out NAME]     beside PyTorch, oneDNN, ONNX Runtime and plain Eigen, of those
#                                                     that are found;
#                                                     writes NAME.csv, NAME.json and NAME.svg (default: compare)
#   bench/run.sh --install-peers                      the newest of them from PyPI (several GB)
#
# EVENKEEL_PEERS: the Python environment with these libraries (default: ~/.cache/evenkeel/peers).
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/cmake/packages.sh"

peers=${EVENKEEL_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/evenkeel/peers}
start=$PWD

need_base
need_header libbenchmark-dev benchmark/benchmark.h
case ${1:-} in
  --install-peers)
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
    need_command python3-dev python3-config
    install_missing
    python3 -m venv "$peers"
    "$peers/bin/pip" install --quiet onednn onednn-devel onnxruntime onnx numpy
    # Without the CUDA libraries: the toolkit's serve, where there is one; compare says what it could not load.
    "$peers/bin/pip" install --quiet --no-deps torch
    exit
    ;;
  --compare)
    shift
    need_header libcli11-dev CLI/CLI.hpp
    need_header nlohmann-json3-dev nlohmann/json.hpp
    need_command gnuplot-nox gnuplot
    install_missing
    out=compare
    arguments=()
    while [ $# -gt 0 ]; do
      case $1 in
        --out) out=${2:?--out needs a name}; shift ;;
        *) arguments+=("$1") ;;
      esac
      shift
    done
    cd "$root"
    cmake --preset release -DEVENKEEL_PEERS="$peers"
    cmake --build build/release --target comparison
    cd "$start"
    built=$root/build/release/bench
    others=()
    for other in portable eigen torch onednn onnxruntime; do
      if [ -e "$built/peers/$other.so" ]; then others+=("$built/peers/$other.so"); fi
    done
    export LD_LIBRARY_PATH=$peers/lib:/usr/local/cuda/lib64:/usr/local/cuda/extras/CUPTI/lib64:${LD_LIBRARY_PATH:-}
    # The library from PyPI reaches the processor through OpenCL.
    if [ -e "$peers/lib/libintelocl.so" ]; then export OCL_ICD_FILENAMES=$peers/lib/libintelocl.so; fi
    "$built/compare" --grid "$root/bench/grid.csv" --out "$out" ${arguments[@]+"${arguments[@]}"} \
      --peers "$built/peers/evenkeel.so" "${others[@]}"
    gnuplot -e "name='$out'" "$root/bench/compare.gnuplot"
    echo "$out.csv, $out.json, $out.svg"
    exit
    ;;
esac
need_command python3 python3
need_command gnuplot-nox gnuplot
install_missing

cd "$root"
cmake --preset release
cmake --build build/release --target benchmarks
cd "$start"
reports=()
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for source in "$root"/bench/bench_*.cpp; do
  [ -e "$source" ] || { echo "bench/run.sh: there are no benchmarks" >&2; exit 2; }
  name=$(basename "$source" .cpp)
  for level in O2 O3; do
    echo "== $name, -$level"
    report=$folder/${name}_$level.json
    "$root/build/release/bench/${name}_$level" --benchmark_out="$report" --benchmark_out_format=json "$@"
    # What was asked for may run nothing.
    if [ -s "$report" ]; then reports+=("$report"); fi
  done
done
if [ ${#reports[@]} -gt 0 ]; then
  python3 "$root/bench/table.py" norms "${reports[@]}"
  # A picture needs the shape that it shows.
  if grep -q '^O2,.*,2048x1024,' norms.csv; then
    gnuplot -e "name='norms'" "$root/bench/norms.gnuplot"
    echo "norms.csv, norms.svg"
  fi
fi
