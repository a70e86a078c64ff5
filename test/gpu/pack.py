#!/usr/bin/env python3
"""Packs what a machine with a GPU and no LLVM needs: plans of the model cases,
compiled here, with their models, data and recorded runs.

    test/gpu/pack.py OUT.tar.gz [--bin-dir DIR] [--bench] [--only TEXT]

Unpack it in a checkout of the repository; then `test/gpu/run.sh` builds the
runtime there and checks. The headers of cuDNN's frontend go along where
scripts/install-deps has fetched them. With --bench the plans of the benchmark are packed too
(bench/gpu; their models need the onnx package here).
"""
import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../.."))
sys.path[:0] = [HERE, os.path.join(ROOT, "test/e2e"),
                os.path.join(ROOT, "bench/gpu")]
import cases  # noqa: E402
import matrix  # noqa: E402
import models  # noqa: E402
import oracle  # noqa: E402

MODELS = os.path.join(ROOT, "test/data/models")
# Where scripts/install-deps puts the headers of cuDNN's frontend.
FRONTEND = os.path.join(ROOT, "build/cudnn-frontend/include")
CLUSTER = os.path.join(ROOT, "samples/clusters/h200-8x8.json")


def compile_plan(merakc, model, plan, *options):
    command = [merakc, model, "-o", plan, "-q", f"--cluster={CLUSTER}",
               *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def pack_cases(merakc, folder, only):
    chosen = [case for case in cases.CASES if only in cases.name(case)]
    if not chosen:
        sys.exit(f"no case has \"{only}\" in its name")
    for case in chosen:
        model, mesh, optimizer, microbatch, schedule = case[:5]
        source = os.path.join(MODELS, model)
        compile_plan(merakc, os.path.join(source, "model.onnx"),
                     os.path.join(folder, "plans", cases.name(case)),
                     *matrix.compile_options(mesh, microbatch, schedule),
                     f"--precision={cases.precision(case)}",
                     oracle.optimizer_option(model, optimizer))
        target = os.path.join(folder, "models", model)
        if not os.path.exists(target):
            shutil.copytree(source, target,
                            ignore=shutil.ignore_patterns("*.safetensors"))
        print("packed", cases.name(case), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--bin-dir",
                        default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--only", default="",
                        help="only cases with this in their names")
    args = parser.parse_args()
    merakc = os.path.join(args.bin_dir, "merakc")
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.join(temporary, "pack")
        os.makedirs(os.path.join(folder, "plans"))
        pack_cases(merakc, folder, args.only)
        if args.bench:
            models.pack(merakc, folder, CLUSTER)
        with tarfile.open(args.output, "w:gz") as archive:
            archive.add(folder, arcname="build/gpu-pack")
            if os.path.exists(FRONTEND):
                archive.add(FRONTEND, arcname=os.path.relpath(FRONTEND, ROOT))
    print(f"{args.output}: {os.path.getsize(args.output) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
