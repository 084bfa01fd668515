"""Makes docs/accuracy.md from what the tests print.

usage: accuracy.py CTEST_LOG > docs/accuracy.md      (CTEST_LOG: build/.../Testing/Temporary/LastTest.log)

Reads the lines "cases: N" and "gate FAMILY OUTPUT DTYPE tensors= worst= bound= ratio= limit=" of every test.
"""

import re
import sys

GATE = re.compile(r"^gate (\S+) (\S+) (\S+) tensors=(\d+) worst=(\S+) bound=(\S+) ratio=(\S+) limit=(\S+)")
TEST = re.compile(r"^\d+/\d+ Test: (\S+)/(\S+)")


def read(path):
    cases, gates, test = {}, {}, ("", "")
    for line in open(path, errors="replace"):
        if m := TEST.match(line):
            test = m.groups()
        elif line.startswith("cases: "):
            cases[test] = int(re.match(r"cases: (\d+)", line).group(1))
        elif m := GATE.match(line):
            family, output, dtype, tensors, worst, bound, ratio, limit = m.groups()
            row = gates.setdefault((family, output, dtype), [0, 0.0, 0.0, 0.0, float(limit)])
            row[0] += int(tensors)
            row[1] = max(row[1], float(worst))
            row[2] = max(row[2], float(bound))
            row[3] = max(row[3], float(ratio))
    return cases, gates


def main():
    cases, gates = read(sys.argv[1])
    if not gates:
        sys.exit(f"{sys.argv[1]}: no gate lines; expected the log of a ctest run")
    print("# Accuracy against the float64 oracle\n")
    print("Made by `make accuracy` from the test run. Gate 1: the largest |error| / rms(oracle) of any element, beyond the one")
    print("rounding of that element to its dtype, beside the largest bound of its cases. Gate 2: rms error over the rms error")
    print("of the plain fp32 composition, limit 1.5.\n")
    print("| family | output | dtype | tensors | worst error | gate 1 bound | error / plain | gate 2 limit |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for (family, output, dtype), (tensors, worst, bound, ratio, limit) in sorted(gates.items()):
        print(f"| {family} | {output} | {dtype} | {tensors} | {worst:.2g} | {bound:.2g} | {ratio:.2f} | {limit} |")
    print("\n| test | cases |\n|---|---:|")
    for (folder, name), count in sorted(cases.items()):
        print(f"| {folder}/{name} | {count} |")
    print(f"| **all** | **{sum(cases.values())}** |")


if __name__ == "__main__":
    main()
