"""What the search expected of the plan that it chose, and what the simulator says
of the plan that was written."""
import re

from harness import Failed

EXPECTED = re.compile(r"([\d.e-]+) s predicted")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}


def off(text, tools, plan):
    """Their difference, as a share of what is simulated. `text`: merakc -v."""
    expected = float(EXPECTED.search(text)[1])
    number, unit = re.match(r"step ([\d.]+) (\w+)",
                            tools.run("merak-plan", "simulate", plan)[0]).groups()
    simulated = float(number) * UNITS[unit]
    return expected, simulated, expected / simulated - 1


def check(text, tools, plan, bound):
    """The difference as text; fails beyond the bound."""
    expected, simulated, share = off(text, tools, plan)
    if abs(share) > bound:
        raise Failed(f"{expected:.3g} s expected, the plan takes "
                     f"{simulated:.3g} s: {100 * share:+.1f}%, at most "
                     f"{100 * bound:g}% is allowed")
    return f"{100 * share:+.1f}%"
