"""What the search expected of the plan that it chose, and what the simulator says
of the plan that was written."""
import re

from harness import Failed

EXPECTED = re.compile(r"([\d.e-]+) s predicted")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}
# One of the plans that were simulated before one was taken.
TRIED = re.compile(r"^plan .*: ([\d.]+) (\w+) expected, ([\d.]+) (\w+) simulated",
                   re.M)


def simulated(tools, plan):
    """Seconds of a step."""
    number, unit = re.match(r"step ([\d.]+) (\w+)",
                            tools.run("merak-plan", "simulate", plan)[0]).groups()
    return float(number) * UNITS[unit]


def off(text, tools, plan):
    """Their difference, as a share of what is simulated. `text`: merakc -v."""
    expected = float(EXPECTED.search(text)[1])
    found = simulated(tools, plan)
    return expected, found, expected / found - 1


def check(text, tools, plan, bound):
    """The difference as text; fails beyond the bound."""
    return compare(*off(text, tools, plan)[:2], bound)


def check_first(text, tools, plan, bound):
    """The same of the plan that the search itself puts first, whichever of those
    that were simulated was taken; it must not be slower than that one."""
    tried = [(float(a) * UNITS[b], float(c) * UNITS[d])
             for a, b, c, d in TRIED.findall(text)]
    if not tried:
        return check(text, tools, plan, bound)
    _, taken, _ = off(text, tools, plan)
    if taken > 1.001 * tried[0][1]:
        raise Failed(f"the plan takes {taken:.4g} s, the search's first one "
                     f"{tried[0][1]:.4g} s")
    return compare(*tried[0], bound)


def compare(expected, simulated, bound):
    share = expected / simulated - 1
    if abs(share) > bound:
        raise Failed(f"{expected:.3g} s expected, the plan takes "
                     f"{simulated:.3g} s: {100 * share:+.1f}%, at most "
                     f"{100 * bound:g}% is allowed")
    return f"{100 * share:+.1f}%"
