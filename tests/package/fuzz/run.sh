#!/usr/bin/env bash
# Fuzzes a target with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and keeps the shortest 200 of the
# inputs that a corpus needs to reach as much: one a line in corpus/<target>.txt, which the tests replay.
#
#   tests/package/fuzz/run.sh rows|channels [seconds]
set -eu
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$folder/../../.." && pwd)
target=${1:?rows or channels}
seconds=${2:-300}
build=$root/build/fuzz
corpus=$folder/corpus/$target.txt
rm -rf "$build/$target-corpus" "$build/$target-least"
mkdir -p "$build/$target-corpus" "$build/$target-least" "$folder/corpus"
clang++ -std=c++20 -O1 -g -DEVENKEEL_ALWAYS_INLINE= -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -I"$root/include" -I"$root/tests" -isystem "${EIGEN_INCLUDE:-/usr/include/eigen3}" "$folder/$target.cpp" -o "$build/$target"
touch "$corpus"
number=0
while read -r line; do
  number=$((number + 1))
  printf '%s' "$line" | xxd -r -p >"$build/$target-corpus/$number"
done <"$corpus"
status=0
(cd "$build" && "./$target" -max_total_time="$seconds" -max_len=96 -timeout=10 -print_final_stats=1 "$target-corpus") || status=$?
"$build/$target" -merge=1 "$build/$target-least" "$build/$target-corpus" 2>/dev/null
for input in "$build/$target-least"/*; do xxd -p "$input" | tr -d '\n'; echo; done |
  awk '{ print length($0), $0 }' | sort -n -k 1,1 -k 2,2 | head -n 200 | cut -d " " -f 2 >"$corpus"
echo "$target: $(wc -l <"$corpus") inputs kept"
exit $status
