#!/usr/bin/env python3
"""Draws a run that changed its plan: rates, step times and switches over steps.

    bench/elastic.py run.jsonl out.svg        the log of merak-run --replan --log
    bench/elastic.py run.jsonl --table        medians between the switches, as text
"""
import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from pictures import COLOURS, label, svg  # noqa: E402

WIDTH, LEFT, RIGHT, TOP, HEIGHT, GAP = 860, 60, 110, 34, 150, 46


def read(path):
    steps, events = [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            (events if "replan" in entry else steps).append(entry)
    return steps, [e for e in events if e["replan"]["what"] == "switch"]


def polyline(points, colour, width=1.4):
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (f'<polyline points="{text}" fill="none" stroke="{colour}" '
            f'stroke-width="{width}"/>')


def panel(top, title, most, last):
    """Its frame, and a function from step and value to a place."""
    def at(step, value):
        x = LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, last - 1)
        return x, top + HEIGHT - HEIGHT * min(value, most) / most
    parts = [label(LEFT, top - 8, title)]
    for share in (0, 0.5, 1):
        x, y = at(1, share * most)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" '
                     f'y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(label(x - 6, y + 4, f"{share * most:g}", "end"))
    return parts, at


def nice(value):
    """The next 1, 2 or 5 with zeros."""
    power = 10 ** len(str(int(value * 1000))) / 1e4
    return next(power * k for k in (1, 2, 5, 10) if power * k >= value)


def draw(steps, switches):
    last = steps[-1]["step"]
    rated = [s for s in steps if "rates" in s]
    devices = len(rated[-1]["rates"]) if rated else 0
    most = nice(max([max(s["rates"]) for s in rated], default=1))
    parts, at = panel(TOP, "rate of each device", most, last)
    for device in range(devices):
        points = [at(s["step"], s["rates"][device]) for s in rated
                  if device not in s.get("idle", [])]
        colour = COLOURS[device % len(COLOURS)]
        parts.append(polyline(points, colour))
        parts.append(label(WIDTH - RIGHT + 10, TOP + 14 + 16 * device,
                           f"device {device}", colour=colour))
    second = TOP + HEIGHT + GAP
    # The first step touches memory.
    times = [1e3 * s["seconds"] for s in steps[1:]]
    frame, at = panel(second, "step, ms", nice(max(times)), last)
    parts += frame
    parts.append(polyline([at(s["step"], 1e3 * s["seconds"]) for s in steps[1:]],
                          "#333"))
    bottom = second + HEIGHT
    for event in switches:
        x, _ = at(event["step"] + 0.5, 0)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" '
                     'stroke="#888" stroke-dasharray="4 3"/>')
        parts.append(label(x + 4, second - 8, "switch: " + event["replan"]["rates"].replace("none", "all normal")))
    parts.append(label(LEFT, bottom + 18, "step 1"))
    parts.append(label(WIDTH - RIGHT, bottom + 18, f"step {last}", "end"))
    return svg(WIDTH, bottom + 30, parts)


def slow_since(steps):
    """The first step after which somebody is slow, by change."""
    changes, before = [], None
    for step in steps:
        slow = tuple(sorted(step.get("slow", {})))
        if before is not None and slow != before:
            changes.append(step["step"])
        before = slow
    return changes


def table(steps, switches):
    bounds = sorted({1, *(e["step"] for e in switches), *slow_since(steps),
                     steps[-1]["step"]})
    lines = ["steps        median ms  slow"]
    for begin, end in zip(bounds, bounds[1:]):
        part = [s for s in steps if begin < s["step"] <= end]
        slow = ",".join(part[-1].get("slow", {})) or "none"
        lines.append(f"{f'{begin + 1}-{end}':<12} "
                     f"{1e3 * statistics.median(s['seconds'] for s in part):>9.1f}"
                     f"  {slow}")
    for event in switches:
        e = event["replan"]
        lines.append(f"switch after step {event['step']}: {e['rates']}, predicted "
                     f"{1e3 * e['predicted_step_seconds']:.1f} ms, moved "
                     f"{e['moved_bytes']} bytes, kept {e['kept_bytes']}, stall "
                     f"{1e3 * e['stall_seconds']:.1f} ms, planned in "
                     f"{e['planning_seconds']:.2f} s")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("svg", nargs="?")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    steps, switches = read(args.log)
    if not steps:
        sys.exit(f"{args.log}: no step is done")
    if args.table or not args.svg:
        sys.stdout.write(table(steps, switches))
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as file:
            file.write(draw(steps, switches))


if __name__ == "__main__":
    main()
