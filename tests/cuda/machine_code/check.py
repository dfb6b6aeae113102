#!/usr/bin/env python3
"""check.py [--table] FILE...: fails where the machine code of a kernel breaks one of the rules of rules.py.

Files are cubins, or object files that nvcc compiled with --no-compress.

--table prints the registers, bytes and instructions of every row kernel as well.
"""

import sys

import cubin
import rules


def check_any(kernel, row):
    """What is wrong with a kernel of any kind, as sentences."""
    may_use_local_memory = rules.USES_LOCAL_MEMORY in kernel.name
    if kernel.frame and not may_use_local_memory:
        yield f"{kernel.frame} bytes of stack"
    if not may_use_local_memory and (local := kernel.count("LDL", "STL")):
        yield f"{local} accesses to local memory: it spills registers, or indexes an array at run time"
    generic = kernel.count("LD") if row and row.scope == rules.CLUSTER else kernel.count("LD", "ST")
    if generic:
        yield f"{generic} accesses through generic addresses"
    may_use_double = "double" in kernel.name or rules.COMPUTES_IN_DOUBLE.search(kernel.name)
    if not may_use_double and (double := kernel.count(*cubin.DOUBLE_OPERATIONS)):
        yield f"{double} instructions of double arithmetic"


def check_row_kernel(kernel, row):
    registers = -(-kernel.registers // rules.REGISTER_STEP) * rules.REGISTER_STEP
    if registers * row.bound * row.blocks > rules.REGISTERS:
        yield f"{kernel.registers} registers, {row.blocks} blocks of {row.bound} threads have no room"
    if row.vector != row.full or row.math not in rules.MATHS:
        return
    if row.scope == rules.CLUSTER and kernel.count("ST") not in (0, rules.MATHS[row.math].sums):
        yield f"{kernel.count('ST')} sums to other blocks, expected {rules.MATHS[row.math].sums}"
    for operation, expected in ("LDG.128", row.loads), ("STG.128", row.stores):
        if kernel.counts[operation] != expected:
            yield f"{kernel.counts[operation]} {operation}, expected {expected}"
    for operation in "LDG", "STG":
        for width in {8, 16, 64} - {8 * row.accumulator}:
            if count := kernel.counts[f"{operation}.{width}"]:
                yield f"{count} {operation}.{width} in a kernel of full accesses"


def faults_of(kernel, row):
    """All of it; row is None where it is no row kernel."""
    return list(check_any(kernel, row)) + (list(check_row_kernel(kernel, row)) if row else [])


def describe(kernel, row):
    """One line of the table."""
    elements = "/".join(str(size) for size in row.inputs)
    return (
        f"{row.math:24}{row.scope:8} V {row.vector} packs {row.packs} bound {row.bound:5} bytes {elements:6}"
        f"{kernel.registers:4} registers {kernel.counts['instructions']:5} instructions"
        f" {kernel.counts['LDG.128']:3} LDG.128 {kernel.counts['STG.128']:3} STG.128"
    )


def check(code, table=False):
    """Prints what is wrong in a cubin.Cubin, and a line on all of it; returns the number of faults."""
    exact = faults = 0
    lines = set()
    for kernel in code.kernels:
        row = rules.parse_row_kernel(kernel.name)
        found = faults_of(kernel, row)
        if row:
            exact += row.vector == row.full and row.math in rules.MATHS
            lines.add(describe(kernel, row))
        for fault in found:
            print(f"{code.name}: {fault}\n    in {kernel.name}")
        faults += len(found)
    if table:
        print("\n".join(sorted(lines)))
    print(f"{code.name}: {len(code.kernels)} kernels, {exact} with exact counts, {faults} faults")
    return faults


def main(arguments):
    table = arguments[:1] == ["--table"]
    paths = arguments[table:]
    faults = 0
    for path in paths:
        cubins = cubin.read_cubins(path)
        if not any(code.kernels for code in cubins):
            print(f"{path}: no kernels found")
            faults += 1
        faults += sum(check(code, table) for code in cubins)
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
