"""The models of the GPU benchmark, and their plans for another machine."""
import argparse
import json
import math
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

CONTEXT, VOCABULARY = 1024, 50257
# name: layers, width, heads, samples of a microbatch, microbatches of a step, GiB
# of the GPU
MODELS = {
    "gpt2-124m": (12, 768, 12, 16, 4, 40),
    "gpt2-1.5b": (48, 1600, 25, 8, 4, 70),
    "gpt2-1.5b-16": (48, 1600, 25, 16, 2, 110),
}
PEAK = 989e12  # FLOP/s, dense bf16 of H100 and H200 (SXM), NVIDIA's data sheet


def flops_per_token(parameters, layers, width):
    """6 N + 12 L d T: matrix products of weights and of attention, forward and
    backward, without recomputation."""
    return 6 * parameters + 12 * layers * width * CONTEXT


def tensors(layers, width, heads):
    """Of the weights' file, in its order: name, shape, deviation, mean."""
    import make_gpt  # needs the onnx package
    options = argparse.Namespace(
        layers=layers, width=width, heads=heads, vocabulary=VOCABULARY,
        context=CONTEXT, batch=1)
    return [[name, list(shape), deviation, int(one)] for
            name, (shape, deviation, one) in
            make_gpt.build(options).parameters.items()]


def pack(merakc, folder, cluster, chosen=tuple(MODELS)):
    """Compiles the plans into `folder`/bench. The weights do not travel: a file
    of their length, without contents, stands for them here."""
    for name in chosen:
        layers, width, heads, samples, count, memory = MODELS[name]
        target = os.path.join(folder, "bench", name)
        os.makedirs(target)
        model = os.path.join(target, "model.onnx")
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "../make_gpt.py"), model,
             f"--layers={layers}", f"--width={width}", f"--heads={heads}",
             f"--vocabulary={VOCABULARY}", f"--context={CONTEXT}",
             "--no-weights"],
            capture_output=True, text=True, check=True)
        parameters = int(done.stdout.split()[0])
        weights = tensors(layers, width, heads)
        assert parameters == sum(math.prod(w[1]) for w in weights)
        with open(model + ".data", "wb") as file:
            file.truncate(4 * parameters)
        subprocess.run(
            [merakc, model, "-o", os.path.join(target, "plan"), "-q",
             f"--cluster={cluster}", "--devices=1", "--mesh=pp=1,dp=1,tp=1",
             f"--global-batch={samples * count}", f"--microbatch={samples}",
             "--precision=bf16", "--recompute=none",
             "--optimizer=adamw:lr=6e-4,weight_decay=0.1"], check=True)
        os.remove(model + ".data")
        with open(os.path.join(target, "model.json"), "w",
                  encoding="utf-8") as file:
            json.dump({"parameters": parameters, "layers": layers,
                       "width": width, "heads": heads, "samples": samples,
                       "microbatches": count, "memory_gib": memory,
                       "tensors": weights}, file)
        print("packed", name, flush=True)
