#!/usr/bin/env python3
"""Prints the losses of two training logs side by side; fails if they differ by
more than rounding explains.

    compare_logs.py ONE.jsonl OTHER.jsonl
"""
import json
import sys

# Ranks add in another order: 1e-7 a step, which training spreads.
TOLERANCE = 1e-4


def losses(path):
    with open(path, encoding="utf-8") as file:
        return [(e["step"], e["loss"]) for e in map(json.loads, file)]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    one, other = map(losses, sys.argv[1:])
    if [s for s, _ in one] != [s for s, _ in other] or not one:
        sys.exit("the logs have different steps")
    print(f"{'step':>6} {'one rank':>10} {'four ranks':>10} {'difference':>11}")
    differences = []
    for k, ((step, a), (_, b)) in enumerate(zip(one, other), 1):
        differences.append(abs(a - b) / abs(a))
        if k <= 3 or k % 20 == 0:
            print(f"{step:>6} {a:>10.5f} {b:>10.5f} {differences[-1]:>11.0e}")
    # 'not <=' so that a NaN counts as different.
    far = [d for d in differences if not d <= TOLERANCE]
    if far:
        sys.exit(f"{len(far)} losses differ by more than rounding explains "
                 f"(by {far[0]:.1e})")
    print(f"same losses: all {len(one)} steps agree within {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
