#!/usr/bin/env python3
"""check_test.py FILE...: proves on object files of probe.cu that check.py finds each fault and reads instructions right."""

import re
import sys

import check
import cubin
import rules

# What check.py must say about the kernel of each fault; it may say more of spills, which also move data.
EXPECTED = {
    "None": [],
    "Spill": ["bytes of stack", "accesses to local memory", "LDG.128, expected 2", "STG.128, expected 1"],
    "LocalArray": ["bytes of stack", "accesses to local memory"],
    "NarrowLoads": ["1 LDG.16 in a kernel of full accesses"],
    "OneLoadMore": ["3 LDG.128, expected 2"],
    "OneStoreLess": ["0 STG.128, expected 1"],
    "GenericAccess": ["1 accesses through generic addresses", "1 LDG.64 in a kernel of full accesses"],
    "DoubleArithmetic": ["3 instructions of double arithmetic"],
    "DoubleConversion": ["1 instructions of double arithmetic", "1 STG.64 in a kernel of full accesses"],
    "TooManyRegisters": ["have no room", "LDG.128, expected 2", "STG.128, expected 1"],
}


def main(paths):
    cubins = [code for path in paths for code in cubin.read_cubins(path)]
    failures = 0
    for code in cubins:
        kernels = {re.search(r"fault::(\w+)", kernel.name)[1]: kernel for kernel in code.kernels}
        if kernels.keys() != EXPECTED.keys():
            print(f"{code.name}: holds the kernels {sorted(kernels)}")
            failures += 1
            continue
        for fault, expected in EXPECTED.items():
            found = check.faults_of(kernels[fault], rules.parse_row_kernel(kernels[fault].name))
            missing = [text for text in expected if not any(text in sentence for sentence in found)]
            if missing or len(found) != len(expected):
                print(f"{code.name}: {fault}: found {found}, expected {expected}")
                failures += 1
    print(f"{len(cubins)} cubins, {failures} failures")
    return 1 if failures or not cubins else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
