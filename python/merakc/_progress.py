"""Lines that tell how far something is."""
import contextlib
import sys
import threading
import time


def _in_notebook():
    shell = sys.modules.get("IPython")
    shell = shell and shell.get_ipython()
    return bool(shell) and "zmq" in type(shell).__module__


class Progress:
    """`how`: True writes lines (to the error stream; in notebooks to the
    cell's output), False nothing, a function gets each line."""

    def __init__(self, how=True):
        self.how = how
        self.last = 0.0

    def say(self, text):
        if callable(self.how):
            self.how(text)
        elif self.how:
            print(text, flush=True,
                  file=sys.stdout if _in_notebook() else sys.stderr)

    @contextlib.contextmanager
    def phase(self, what):
        """Says what goes on, in a terminal with the seconds running, and how
        long it took."""
        began = time.monotonic()
        ended = threading.Event()
        stream = sys.stderr  # which the exporter's own words must not reach
        ticks = self.how is True and not _in_notebook() and stream.isatty()

        def tick():
            while not ended.wait(0.5):
                stream.write(f"\rmerakc: {what} ... "
                             f"{time.monotonic() - began:.0f} s ")
                stream.flush()

        thread = threading.Thread(target=tick, daemon=True)
        if ticks:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if ticks:
                thread.join()
                stream.write("\r\033[K")
        self.say(f"merakc: {what}: {time.monotonic() - began:.1f} s")

    def step(self, line, always=False):
        """A line of a run: the first ones, then at most two a second."""
        now = time.monotonic()
        if always or now - self.last > 0.5:
            self.last = now
            self.say(line)
