"""A wheel of this build's tools in a fresh environment."""
import glob
import json
import os
import subprocess
import sys
import time

import harness
from harness import Case, Failed

BOUND = 150 << 20  # bytes of the wheel
MLP = os.path.join(harness.MODELS, "mlp-ce")
SCRIPT = """
import os, sys
import merakc
from merakc import _tools
assert _tools.folder().startswith(sys.prefix), _tools.folder()
program = merakc.compile({model!r}, devices=2, global_batch=8,
                         optimizer="sgd:lr=0.05", progress=False)
result = program.run({data!r}, steps=2, progress=False)
result.export_onnx("trained.onnx")
import json
print(json.dumps([result.losses, len(result.state_dict())]))
"""


def run(command, **options):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode:
        raise Failed(f"{' '.join(command[:4])} ended with {done.returncode}: "
                     f"{harness.last_lines(done.stdout, 6)}")
    return done.stdout


def wheel(tools):
    """Built from the tools that are there, installed where nothing is, used
    with no other program or library of ours in reach."""
    build = os.path.dirname(os.path.abspath(tools.bin_dir))
    packages = os.path.join(harness.ROOT, "build", "python-packages")
    run([sys.executable, "-m", "pip", "wheel", harness.ROOT, "--no-deps",
         "--no-build-isolation", "--disable-pip-version-check", "-w",
         tools.path("wheel")],
        env={**os.environ, "MERAK_PREBUILT": build,
             "PYTHONPATH": packages})
    (path,) = glob.glob(tools.path("wheel/*.whl"))
    size = os.path.getsize(path)
    if size > BOUND:
        raise Failed(f"the wheel has {size >> 20} MiB, more than "
                     f"{BOUND >> 20}")
    began = time.monotonic()
    fresh = tools.path("fresh")
    run([sys.executable, "-m", "venv", "--without-pip", fresh])
    python = os.path.join(fresh, "bin", "python")
    (site,) = glob.glob(os.path.join(fresh, "lib/python*/site-packages"))
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install",
         "--no-deps", "--quiet", "--target", site, path],
        env={**os.environ, "PYTHONPATH": packages})
    # numpy, the one thing that it needs, from where the tests have it.
    with open(os.path.join(site, "numpy.pth"), "w", encoding="utf-8") as file:
        file.write(packages + "\n")
    with open(tools.path("use.py"), "w", encoding="utf-8") as file:
        file.write(SCRIPT.format(model=os.path.join(MLP, "model.onnx"),
                                 data=os.path.join(MLP, "data")))
    # No linker, no tool and no library but those of the wheel and of the
    # system.
    out = run([python, tools.path("use.py")], cwd=tools.folder,
              env={"PATH": os.path.join(fresh, "bin")})
    losses, count = json.loads(out.splitlines()[-1])
    seconds = time.monotonic() - began
    with open(os.path.join(MLP, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)["optimizers"]["sgd"]["losses"]
    if any(abs(a - b) > 1e-4 for a, b in zip(losses, expected)) or not count:
        raise Failed(f"losses {losses}, expected {expected[:2]}")
    said = run([python, "-m", "merakc", "merak-plan", "--help"],
               env={"PATH": ""})
    if "Looks at compiled plans" not in said:
        raise Failed(f"the command says {said[:80]}")
    return f"{size >> 20} MiB, installed and used in {seconds:.0f} s"


CASES = [Case("wheel", wheel)]
