#!/usr/bin/env python3
"""Packs what a machine with a GPU and no LLVM needs: plans of the model cases,
compiled here, with their models, data and recorded runs, and the runtime as it
was built here with the libraries that it is linked to.

    test/gpu/pack.py OUT.tar.xz [--bin-dir DIR] [--bench] [--only TEXT]
                                [--no-runtime] [--without-cudnn]

A runtime that was built without cuDNN is refused unless --without-cudnn asks for it.

Unpack it in a checkout of the repository; then `test/gpu/run.sh` checks. Where
the packed runtime does not start (another processor, an older libc) it builds
one, which needs what scripts/install-deps installs. The headers of cuDNN's frontend go along where
scripts/install-deps has fetched them. With --bench the plans of the benchmark are packed too
(bench/gpu; their models need the onnx package here).
"""
import argparse
import gzip
import lzma
import os
import re
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


TOOLS = ["merak-run", "merak-plan", "merak-bench", "merak-conformance",
         "MerakCudaTests"]
# Of the system that runs them: the C library and what belongs to it.
SYSTEM = re.compile(r"^(ld-linux.*|linux-vdso|libc|libm|libdl|librt|libpthread)"
                    r"\.so")
# A tool finds the packed libraries; programs that it does not start do not.
WRAPPER = """#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \\
  exec "$here/libexec/%s" "$@"
"""


def pack_runtime(bin_dir, folder):
    """runtime/bin starts what is in runtime/libexec with runtime/lib."""
    runtime = os.path.join(folder, "runtime")
    for part in ("bin", "lib", "libexec"):
        os.makedirs(os.path.join(runtime, part))
    for tool in TOOLS:
        source = os.path.join(bin_dir, tool)
        if not os.path.exists(source):
            sys.exit(f"{source} is not built; --no-runtime packs without")
        packed = os.path.join(runtime, "libexec", tool)
        shutil.copy2(source, packed)
        if shutil.which("strip"):
            subprocess.run(["strip", packed], check=True)
        wrapper = os.path.join(runtime, "bin", tool)
        with open(wrapper, "w", encoding="utf-8") as file:
            file.write(WRAPPER % tool)
        os.chmod(wrapper, 0o755)
        linked = subprocess.run(["ldd", source], capture_output=True,
                                text=True, check=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", linked, re.M):
            if not SYSTEM.match(name):
                shutil.copy2(path, os.path.join(runtime, "lib", name))
    print("packed the runtime", flush=True)


def compressed(path):
    """A file to write, packed as its name says. The tools hold the same
    libraries: .xz, which looks back far enough, takes half of what .gz takes."""
    if path.endswith(".xz"):
        return lzma.open(path, "w", filters=[
            {"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": 64 << 20}])
    return gzip.open(path, "w", compresslevel=3)


def built_with_cudnn(bin_dir):
    """Whether merak-run says so; without it attention is several times slower."""
    said = subprocess.run([os.path.join(bin_dir, "merak-run"), "--version"],
                          capture_output=True, text=True, check=True).stdout
    return re.search(r"^cuDNN: built with ", said, re.M) is not None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--bin-dir",
                        default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--only", default="",
                        help="only cases with this in their names")
    parser.add_argument("--no-runtime", action="store_true")
    parser.add_argument("--without-cudnn", action="store_true",
                        help="packs a runtime that was built without it too")
    args = parser.parse_args()
    if not (args.no_runtime or args.without_cudnn or
            built_with_cudnn(args.bin_dir)):
        sys.exit(f"{args.bin_dir}/merak-run is built without cuDNN: attention "
                 "would be slow; run scripts/install-deps and build again, or "
                 "add --without-cudnn")
    merakc = os.path.join(args.bin_dir, "merakc")
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.join(temporary, "pack")
        os.makedirs(os.path.join(folder, "plans"))
        # The pack's own key signs its plans: whoever unpacks it trusts it.
        os.environ["MERAK_KEY"] = os.path.join(folder, "key")
        pack_cases(merakc, folder, args.only)
        if not args.no_runtime:
            pack_runtime(args.bin_dir, folder)
        if args.bench:
            models.pack(merakc, folder, CLUSTER)
        with compressed(args.output) as file, \
                tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(folder, arcname="build/gpu-pack")
            if os.path.exists(FRONTEND):
                archive.add(FRONTEND, arcname=os.path.relpath(FRONTEND, ROOT))
    print(f"{args.output}: {os.path.getsize(args.output) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
