#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests.
#
#   tests/run.sh [--preset dev|clang|sanitize|debug] [ctest arguments]
#   tests/run.sh -L norms          builds and runs one family
#   tests/run.sh -LE "sanitized|plain"    builds and runs what depends on the compiler (tests/CMakeLists.txt)
#   tests/run.sh -L invariants     the facts, one line each with its figure
#   tests/run.sh -L cases          faults from public bug reports, PyTorch's numbers: how many were checked
#
# EVENKEEL_PRESET names the preset too. Parallelism: CMAKE_BUILD_PARALLEL_LEVEL, CTEST_PARALLEL_LEVEL.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/cmake/packages.sh"

preset=${EVENKEEL_PRESET:-dev}
label=
left_out=
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --preset=*) preset=${1#*=} ;;
    -L | --label-regex) label=${2:?-L needs a label}; arguments+=("$1" "$2"); shift ;;
    -LE | --label-exclude) left_out=${2:?-LE needs a label}; arguments+=("$1" "$2"); shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
case $preset in
  dev | clang | sanitize | debug) ;;
  *) echo "tests/run.sh: no preset '$preset' with tests (dev, clang, sanitize, debug)" >&2; exit 2 ;;
esac

need_base
need_header catch2 catch2/catch.hpp catch2/catch_all.hpp
need_header libcli11-dev CLI/CLI.hpp
need_header zlib1g-dev zlib.h
need_header nlohmann-json3-dev nlohmann/json.hpp
need_library libboost-context-dev boost_context
need_command valgrind valgrind
need_mpi
case $preset in
  clang | sanitize) need_command clang clang++ ;;
esac
[ "$preset" != sanitize ] || need_sanitizers
install_missing
want_bible
want_fashion_mnist

cd "$root"
cmake --preset "$preset"
case $label in
  core | norms | residual | init | taper | fold | probe | distributed | cuda | package | examples | invariants | bits | \
    cases | sanitized | plain)
    target=tests_$label ;;
  *) target=all ;;
esac
[ "$left_out" != "sanitized|plain" ] || target=tests_rest
cmake --build "build/$preset" --target "$target"

export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)}
run_ctest() {
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --no-label-summary \
    ${arguments[@]+"${arguments[@]}"}
}
case $label in
  invariants) lines='^ *fact [0-9]+' ;;
  cases) lines='^(cases|golden): ' ;;
  *) run_ctest; exit ;;
esac

# ctest hides what passing tests print, but keeps it in its log; these lines come first so that its summary stays last.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
run_ctest >"$log" 2>&1 || status=$?
grep -E "$lines" "build/$preset/Testing/Temporary/LastTest.log" | sed 's/^ *//' | sort -u -k 2,2n -k 3 || true
echo
cat "$log"
exit $status
