#!/usr/bin/env bash
# On a machine with an NVIDIA GPU and nvcc, without a network: builds the programs of tests/gpu and bench/cuda_norms.cu,
# checks the norms against float64, runs compute-sanitizer, times them beside PyTorch where python3 has it, and prints
# one table. Fits in 7 minutes on 16 cores.
#
#   tests/run_on_gpu.sh [OUT]      OUT: a folder for logs and the report, build/gpu at first
#   tests/run_on_gpu.sh --emulate  the same with g++ and the emulator, at small sizes: what can be tried without a GPU
#
# Eigen's headers: EIGEN_INCLUDE, /usr/include/eigen3, or build/eigen3. The report is OUT/gpu-<date>.txt.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
emulate=
if [ "${1:-}" = --emulate ]; then
  emulate=1
  shift
fi
out=${1:-build/gpu}
mkdir -p "$out"
report=$out/gpu-$(date +%Y-%m-%d).txt
failed=

say() { echo "$@" | tee -a "$report"; }
# stage NAME SECONDS COMMAND...: runs it with a time limit and its own log, and says how it went.
stage() {
  local name=$1 limit=$2 status=0
  shift 2
  local begin=$SECONDS
  timeout "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  say "$name: $([ $status = 0 ] && echo ok || echo "FAILED ($status)"), $((SECONDS - begin)) s"
  [ $status = 0 ] || failed="$failed $name"
  return $status
}

: >"$report"
say "evenkeel on a GPU, $(date '+%Y-%m-%d %H:%M'), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"

eigen=
for folder in "${EIGEN_INCLUDE:-}" /usr/include/eigen3 build/eigen3; do
  [ -n "$folder" ] && [ -d "$folder/Eigen" ] && eigen=$folder && break
done
if [ -z "$eigen" ]; then
  say "Eigen's headers were not found: set EIGEN_INCLUDE"
  exit 1
fi
export eigen out

types="float Eigen::half Eigen::bfloat16 double"
if [ -n "$emulate" ]; then
  size=tiny
  types="float Eigen::bfloat16"
  compile() {  # OUTPUT SOURCE FLAGS...
    local output=$1 source=$2
    shift 2
    g++ -std=c++20 -O1 -fno-strict-aliasing -Wno-unknown-pragmas '-DEVENKEEL_CUDA_EMULATOR="support/cuda/emulator.hpp"' \
      -Iinclude -Itests -isystem "$eigen" -x c++ "$source" -x none -o "$output" "$@" -rdynamic -lboost_context -lpthread -ldl
  }
else
  size=
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  if [ ! -x "$nvcc" ]; then
    say "nvcc was not found"
    exit 1
  fi
  export nvcc
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem --format=csv,noheader 2>&1 | tee -a "$report"
  "$nvcc" --version | tail -n 1 | tee -a "$report"
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
  export architecture=${architecture:-90}
  compile() {
    local output=$1 source=$2
    shift 2
    "$nvcc" -std=c++20 -O3 -lineinfo -arch="sm_$architecture" -DEIGEN_NO_CUDA -Iinclude -Itests -isystem "$eigen" \
      "$source" -o "$output" "$@"
  }
fi
export -f compile

# One program for each type, so that the compiler uses all cores.
build() {
  local jobs= status=0 type job
  for type in $types; do
    compile "$out/check_${type#Eigen::}" tests/gpu/check.cu -DCHECK_TYPE="$type" &
    jobs="$jobs $!"
  done
  compile "$out/cuda_norms" bench/cuda_norms.cu &
  jobs="$jobs $!"
  for job in $jobs; do wait "$job" || status=1; done
  return $status
}
export -f build
export types
stage build 240 bash -c build || { tail -n 20 "$out/build.log"; exit 1; }

for type in ${types//Eigen::/}; do
  stage "check_$type" 90 "$out/check_$type" $size
  tail -n 2 "$out/check_$type.log" | tee -a "$report"
done

if [ -n "$emulate" ]; then
  say "compute-sanitizer: skipped, no GPU"
elif command -v compute-sanitizer >/dev/null || [ -x "$(dirname "$nvcc")/compute-sanitizer" ]; then
  sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
  for tool in memcheck racecheck synccheck; do
    stage "$tool" 30 "$sanitizer" --tool "$tool" --error-exitcode 1 "$out/check_bfloat16" tiny
    tail -n 1 "$out/$tool.log" | tee -a "$report"
  done
else
  say "compute-sanitizer: skipped, not installed"
fi

if [ -z "$emulate" ]; then
  stage block 60 bash -c 'compile "$out/cuda_block" examples/cuda_block.cu -lcublas && "$out/cuda_block"' || true
  tail -n 1 "$out/block.log" | tee -a "$report"
fi

stage times 90 "$out/cuda_norms" ${emulate:+small}
if command -v python3 >/dev/null; then
  stage torch 120 python3 bench/peers/torch_cuda_norms.py \
    8192x128 131072x128 4096x768 4096x2048c 16384x4096c 8192x8192 4096x32768c ||
    tail -n 1 "$out/torch.log"
  python3 bench/peers/table.py "$out/times.log" "$out/torch.log" | tee -a "$report"
else
  tee -a "$report" <"$out/times.log"
fi
say "report: $report"
[ -z "$failed" ] || say "failed:$failed"
[ -z "$failed" ]
