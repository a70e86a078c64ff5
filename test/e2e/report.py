#!/usr/bin/env python3
"""The HTML report in a real headless browser (chromium): its script ends
without a word on the console, the bars are there, nothing is fetched, nothing
is wider than the window, and zooming redraws.

merakc --report makes one page, merak-plan report with a trace another.
"""
import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading

import harness
from harness import Case, Failed

BROWSERS = ["chromium", "chromium-browser", "google-chrome"]

# Runs before the page's own script: what it complains about.
BEFORE = """<script>
window.complaints = [];
addEventListener('error', e => complaints.push(String(e.message)));
addEventListener('securitypolicyviolation', e => complaints.push('fetches ' + e.blockedURI));
for (const name of ['error', 'warn', 'log'])
  console[name] = (...words) => complaints.push(name + ': ' + words.join(' '));
</script>"""
# Runs after it: what is to be seen, then again zoomed in.
AFTER = """<script>
const look = () => ({
  bars: document.querySelectorAll('#timeline rect.span').length,
  areas: document.querySelectorAll('#memory path.area').length,
  points: document.querySelectorAll('#tradeoffs circle.point').length,
  labels: [...document.querySelectorAll('#tradeoffs text')].map(t => t.textContent),
  sections: [...document.querySelectorAll('section')].map(s => s.id),
  rows: [...document.querySelectorAll('section')].map(s => s.querySelectorAll('tbody tr').length),
});
const seen = look();
document.querySelector('button[aria-label="zoom in"]').click();
document.querySelector('button[aria-label="zoom in"]').click();
seen.zoomed = look().bars;
const bar = document.querySelector('#timeline rect.span');
bar.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 50, clientY: 50}));
seen.tip = document.getElementById('tip').textContent;
seen.width = [document.documentElement.scrollWidth, innerWidth];
seen.complaints = complaints;
seen.ready = document.documentElement.dataset.ready;
const probe = document.createElement('pre');
probe.id = 'probe';
probe.textContent = JSON.stringify(seen);
document.body.append(probe);
</script>"""


def browser():
    for name in BROWSERS:
        if shutil.which(name):
            return name
    raise Failed("no chromium here: scripts/install-deps --check installs it")


def visit(page, width, dark, tools):
    """What the probe saw, and the paths that were asked for. A browser that is
    short of processors now and then prints the page before its scripts ran."""
    for attempt in range(3):
        text, errors, asked = dump(page, width, dark, tools, attempt)
        if probe := re.search(r'<pre id="probe">(.*?)</pre>', text, re.S):
            return json.loads(html.unescape(probe[1])), asked
    raise Failed("the page's script did not end: " +
                 harness.last_lines(errors))


def dump(page, width, dark, tools, attempt):
    """The page as the browser has it at last, its complaints, and the paths
    that were asked for."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    text = text.replace("<style>", BEFORE + "<style>", 1)
    text = text.replace("</body>", AFTER + "</body>", 1).encode()
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = subprocess.run(
            [browser(), "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking",
             f"--user-data-dir={tools.path(f'profile{attempt}')}",
             f"--window-size={width},900",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}",
             "--dump-dom", f"http://127.0.0.1:{server.server_port}/report"],
            capture_output=True, text=True, errors="replace", timeout=120)
    except subprocess.TimeoutExpired:
        raise Failed("the browser did not end in 120 s") from None
    finally:
        server.shutdown()
    return done.stdout, done.stderr, asked


def check(page, width, dark, rows, sections, tools):
    seen, asked = visit(page, width, dark, tools)
    problems = list(seen["complaints"])
    if asked != ["/report"]:
        problems.append(f"fetched {asked}")
    if seen.get("ready") != "1":
        problems.append("the script stopped half-way")
    if seen["bars"] < 4 * rows:
        problems.append(f"{seen['bars']} bars in {rows} rows")
    if seen["areas"] < rows:
        problems.append(f"{seen['areas']} areas of memory for {rows} rows")
    if seen["points"] < 2 or "chosen" not in ", ".join(
            seen["labels"]).split(", "):
        problems.append(f"{seen['points']} points of memory and time, labels "
                        f"{seen['labels']}")
    if not 0 < seen["zoomed"] < seen["bars"]:
        problems.append(f"zoomed in: {seen['zoomed']} of {seen['bars']} bars")
    # The first bar that is left after zooming may be of any kind.
    if not any(what in seen["tip"]
               for what in ("microbatch", "prologue", "optimizer")):
        problems.append(f"the bar says '{seen['tip']}'")
    if seen["width"][0] > seen["width"][1]:
        problems.append("{} pixels wide in a window of {}".format(
            *seen["width"]))
    if seen["sections"] != sections:
        problems.append(f"sections {seen['sections']}")
    if any(count == 0 for name, count in zip(seen["sections"], seen["rows"])
           if name in ("balance", "candidates", "stages")):
        problems.append("an empty table")
    if problems:
        raise Failed("; ".join(problems))
    return f"{seen['bars']} bars"


def body(model, options, ranks, width, dark, traced, tools):
    folder = os.path.join(harness.MODELS, model)
    plan, page = tools.path("out.plan"), tools.path("report.html")
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan,
              f"--report={page}", *options)
    if traced:
        trace = tools.path("trace.json")
        tools.run("merak-run", plan, "--data=" + os.path.join(folder, "data"),
                  "--steps=3", f"--trace={trace}", "--links=10us/1GB/s")
        tools.run("merak-plan", "report", plan, f"--trace={trace}", "-o", page)
    return check(page, width, dark, ranks,
                 ["timeline", "balance", "memory", "communication", "stages",
                  "tradeoffs", "candidates", "decisions"], tools)


def main():
    args = harness.parser(__doc__).parse_args()
    # A browser takes several processes.
    args.jobs = min(args.jobs, 2)
    cases = [("one rank, narrow, dark", "mlp-mse", [], 1, 400, True, False),
             ("two stages and a trace, wide", "gpt2-tiny",
              ["--mesh=pp=2", "--microbatch=1"], 2, 1400, False, True)]
    return harness.run_cases("report", [
        Case(name, functools.partial(body, *rest)) for name, *rest in cases],
        args)


if __name__ == "__main__":
    sys.exit(main())
