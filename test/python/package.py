#!/usr/bin/env python3
"""The Python package (python/merakc): what it does with ONNX files; with torch,
where it can be imported, from a module to trained weights in the module; and a
wheel, built from the tools of this build, installed and used in a fresh
environment.

    package.py --filter onnx       some cases
    PYTHON-WITH-TORCH package.py   those that need torch, too
"""
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import harness  # noqa: E402

PACKAGES = os.path.join(harness.ROOT, "build", "python-packages")
sys.path.append(PACKAGES)  # numpy, if the system has none
sys.path.insert(0, os.path.join(harness.ROOT, "python"))


def missing(*names):
    return [n for n in names if importlib.util.find_spec(n) is None]


def main():
    args = harness.parser(__doc__).parse_args()
    os.environ["MERAKC_BIN_DIR"] = os.path.abspath(args.bin_dir)
    if missing("numpy"):
        print("skipped: numpy cannot be imported; scripts/install-deps "
              "--check fetches it")
        print("0 passed, 0 failed")
        return 0
    import onnx_cases
    import wheel_cases
    cases = list(onnx_cases.CASES)
    if absent := missing("scikit_build_core", "pip", "venv"):
        print(f"skipped, {len(wheel_cases.CASES)} cases of the wheel: no "
              f"{', '.join(absent)}")
    else:
        cases += wheel_cases.CASES
    if absent := missing("torch", "onnxscript"):
        with open(os.path.join(HERE, "torch_cases.py"),
                  encoding="utf-8") as file:
            count = file.read().count("\n@case")
        print(f"skipped, {count} cases: no {', '.join(absent)}")
    else:
        import torch_cases
        cases += torch_cases.CASES
        args.jobs = 1  # torch exports one module at a time
    return harness.run_cases("python", cases, args)


if __name__ == "__main__":
    sys.exit(main())
