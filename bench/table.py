"""Reads what bench_norms wrote as JSON and prints one table for each shape: a line for each norm and pass, with its time,
the bytes of its activations, the share of a copy's speed, and its time over LayerNorm's. The same lines go to NAME.csv.

    table.py NAME FILE.json...
"""

import csv
import json
import re
import sys


def read(path):
    """(level, norm, pass, shape, microseconds, MB, share of copy) of each benchmark that was compared with a copy."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    level = report["context"]["evenkeel level"]
    for run in report["benchmarks"]:
        name = re.fullmatch(r"(\w+?)_(forward|backward)(?:_\w+)?((?:/\w+_gate)?)((?:/\d+)+)(?:/.*)?", run["name"])
        if not name or "copy_share" not in run or "aligned_to" in run["name"]:
            continue
        shape = name[4].strip("/").replace("/", "x")
        megabytes = run["bytes_per_second"] * run["real_time"] / 1e12
        norm = name[1] + name[3].replace("/", " ").replace("_", " ")
        yield level, norm, name[2], shape, run["real_time"], megabytes, run["copy_share"]


def main():
    name, *paths = sys.argv[1:]
    rows = [row for path in paths for row in read(path)]
    reference = {(level, way, shape): time for level, norm, way, shape, time, _, _ in rows if norm == "layer_norm"}
    shapes = []
    for row in rows:
        if (row[0], row[3]) not in shapes:
            shapes.append((row[0], row[3]))
    with open(name + ".csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["level", "norm", "pass", "shape", "microseconds", "MB", "copy_share", "times_layer_norm"])
        for level, shape in shapes:
            print(f"\n-{level}, {shape:<28}{'us':>11}{'MB':>9}{'of copy':>9}{'LayerNorm':>11}")
            for row in rows:
                if (row[0], row[3]) != (level, shape):
                    continue
                _, norm, way, _, time, megabytes, share = row
                base = reference.get((level, way, shape))
                times = f"{time / base:.2f}" if base else ""
                print(f"{norm + ' ' + way:<34}{time:>11.1f}{megabytes:>9.2f}{share:>9.2f}{times:>11}")
                out.writerow([level, norm, way, shape, f"{time:.3f}", f"{megabytes:.4f}", f"{share:.4f}", times])


if __name__ == "__main__":
    main()
