"""Reads lines of CSV (who,op,type,rows,features,microseconds,GB_per_s) and prints one table: a row for each operation and
shape, a column for each who, in GB/s, and evenkeel's share of a copy of the same bytes.

    table.py FILE...
"""

import sys


def read(paths):
    rates, whos, keys = {}, [], []
    for path in paths:
        try:
            lines = open(path, encoding="utf-8").read().splitlines()
        except OSError:
            continue
        for line in lines:
            fields = line.split(",")
            if line.startswith("#"):
                print(line)
            if len(fields) != 7 or line.startswith("#"):
                continue
            who, op, kind, rows, features, _, rate = fields
            key = (op, kind, int(rows), int(features))
            rates[key, who] = float(rate)
            whos += [who] if who not in whos else []
            keys += [key] if key not in keys else []
    return rates, whos, keys


def main():
    rates, whos, keys = read(sys.argv[1:])
    print(f"{'GB/s':<22}{'type':<10}{'shape':>16}" + "".join(f"{who:>15}" for who in whos) + f"{'of copy':>9}")
    for key in sorted(keys, key=lambda k: (k[1], k[0], k[2] * k[3], k[3])):
        op, kind, rows, features = key
        if op == "copy":
            continue
        cells = "".join(f"{rates[key, who]:>15.0f}" if (key, who) in rates else f"{'':>15}" for who in whos)
        copy = rates.get((("copy", kind, rows, features), "evenkeel"), 0)
        own = rates.get((key, "evenkeel"))
        share = f"{own / copy:>9.2f}" if own and copy else ""
        print(f"{op:<22}{kind:<10}{f'{rows}x{features}':>16}{cells}{share}")


if __name__ == "__main__":
    main()
