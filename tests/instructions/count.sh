#!/usr/bin/env bash
# Instructions that one call of a kernel executes, float, 64 x 768, AVX2: a measure of speed that no neighbour disturbs.
#
#   count.sh BOUNDS PROGRAM    BOUNDS has a line "program,kernel,instructions" for each; more than that fails
#   count.sh - PROGRAM         prints such lines, with 3% to spare
set -eu
bounds=$1
program=$2
level=$(basename "$program")
command -v valgrind >/dev/null 2>&1 || { echo "instructions: no valgrind, skipped"; exit 77; }

executed() {  # KERNEL CALLS
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : *//p'
}

status=0
for kernel in layer_norm layer_norm_backward rms_norm rms_norm_backward batch_norm batch_norm_backward; do
  few=$(executed $kernel 1)
  many=$(executed $kernel 3)
  if [ -z "$few" ] || [ -z "$many" ]; then
    echo "instructions: $level $kernel does not run under valgrind" >&2
    exit 1
  fi
  count=$(((many - few) / 2))
  if [ "$bounds" = - ]; then
    echo "$level,$kernel,$((count * 103 / 100))"
    continue
  fi
  bound=$(sed -n "s/^$level,$kernel,//p" "$bounds")
  echo "instructions: $level $kernel $count (bound ${bound:-missing})"
  if [ -z "$bound" ] || [ "$count" -gt "$bound" ]; then status=1; fi
done
[ $status -eq 0 ] || echo "instructions: more than $bounds allows" >&2
exit $status
