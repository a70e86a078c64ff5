"""What is told of a plan: the report page, and the predicted step."""
import html
import re

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9,
          "min": 60.0, "h": 3600.0}


class Report:
    """The HTML page about a plan, shown in notebooks; as a string, what the
    compiler decided. `save` writes the page."""

    def __init__(self, text, page):
        self.text, self.html = text, page

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)
        return path

    def __str__(self):
        return self.text

    __repr__ = __str__

    def _repr_html_(self):
        # A frame: the page brings its own style and script.
        return ('<iframe style="width:100%;height:640px;border:0" '
                f'srcdoc="{html.escape(self.html, quote=True)}"></iframe>')


def seconds(text):
    """26.390 ms -> 0.02639"""
    number, unit = re.match(r"([\d.e+-]+)\s*(\S+)", text.strip()).groups()
    return float(number) * _UNITS[unit]


class Prediction:
    """`step_seconds`; `rows`, for each kind of rank how its time and memory
    are used. As a string what merak-plan simulate prints."""

    def __init__(self, text):
        self.text = text.rstrip()
        self.step_seconds = seconds(re.search(r"^step (.*)$", text, re.M)[1])
        self.rows = []
        for line in text.splitlines():
            head = re.match(r"(\S.*): busy ([\d.]+)%, exposed communication "
                            r"([\d.]+)%, bubble ([\d.]+)%", line)
            if head:
                self.rows.append({"name": head[1], "busy": float(head[2]) / 100,
                                  "exposed": float(head[3]) / 100,
                                  "bubble": float(head[4]) / 100})
            peak = re.match(r"  memory: peak (\d+) of (\d+) bytes", line)
            if peak and self.rows:
                self.rows[-1].update(peak_bytes=int(peak[1]),
                                     arena_bytes=int(peak[2]))

    def __str__(self):
        return self.text

    __repr__ = __str__
