#!/usr/bin/env python3
"""One training step beside PyTorch eager, on the same threads.

    python3 train_step.py --merakc build/release/bin/merakc \\
        --merak-run build/release/bin/merak-run

For each model: the median step of PyTorch (eager, AdamW) and of `merak-run` on
a plan of one rank, and their ratio. The runs take turns (`--rounds`), so that a
busy machine disturbs both alike. Without --merakc only PyTorch is measured;
--plan NAME=DIR takes a plan that is already there. Needs `torch`, and `onnx`
and `numpy` for the models; --python names the interpreter that has them.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

# layers, width, heads, vocabulary, context, batch; steps; bound of the ratio
MODELS = {
    "gpt4x128": dict(layers=4, width=128, heads=4, vocabulary=65, context=64,
                     batch=12, steps=60, bound=0.8),
    "gpt2-124m": dict(layers=12, width=768, heads=12, vocabulary=50257,
                      context=64, batch=4, steps=7, bound=1.0),
}
SKIPPED = 2  # first steps of a run: memory is touched, code is loaded


def torch_seconds(m, threads):
    """Seconds of each step in PyTorch; runs in its own process."""
    import time

    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2)
                       for y in self.qkv(self.norm1(x)).split(d, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
            y = F.gelu(self.up(self.norm2(x)), approximate="tanh")
            return x + self.down(y)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(m["vocabulary"], m["width"])
            self.position = nn.Embedding(m["context"], m["width"])
            self.blocks = nn.ModuleList(Block(m["width"], m["heads"])
                                        for _ in range(m["layers"]))
            self.norm = nn.LayerNorm(m["width"])

        def forward(self, tokens, labels):
            x = self.token(tokens) + self.position.weight
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.token.weight)
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seconds = []
    for _ in range(m["steps"]):
        tokens = torch.randint(m["vocabulary"], (m["batch"], m["context"]))
        labels = torch.randint(m["vocabulary"], (m["batch"], m["context"]))
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(tokens, labels)
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    return seconds


def run_torch(o, name):
    environment = dict(os.environ, OMP_NUM_THREADS=str(o.threads),
                       MKL_NUM_THREADS=str(o.threads))
    text = subprocess.run([o.python, __file__, "--torch-only", name,
                           "--threads", str(o.threads)], env=environment,
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text)


def compile_plan(o, name, folder):
    m = MODELS[name]
    model = os.path.join(folder, name + ".onnx")
    command = [o.python, os.path.join(HERE, "make_gpt.py"), model]
    for key in ("layers", "width", "heads", "vocabulary", "context"):
        command += [f"--{key}", str(m[key])]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    plan = os.path.join(folder, name + ".plan")
    subprocess.run([o.merakc, model, "-o", plan, "--devices=1", "--quiet",
                    f"--global-batch={m['batch']}",
                    f"--microbatch={m['batch']}",
                    "--optimizer=adamw:lr=1e-3,weight_decay=0.01"], check=True)
    return plan


def run_plan(o, name, plan, folder):
    log = os.path.join(folder, name + ".jsonl")
    subprocess.run([o.merak_run, plan, "--data=synthetic",
                    f"--steps={MODELS[name]['steps']}",
                    f"--threads={o.threads}", f"--log={log}"], check=True,
                   stdout=subprocess.DEVNULL)
    with open(log, encoding="utf-8") as file:
        return [json.loads(line)["seconds"] for line in file]


def measure(o, name, folder):
    plan = o.plans.get(name)
    if not plan and o.merakc:
        plan = compile_plan(o, name, folder)
    theirs, ours = [], []
    for _ in range(o.rounds):
        if not o.no_torch:
            theirs += run_torch(o, name)[SKIPPED:]
        if plan:
            ours += run_plan(o, name, plan, folder)[SKIPPED:]
    row = {"model": name, "threads": o.threads}
    for key, values in (("torch", theirs), ("merak", ours)):
        if values:
            row[key + "_ms"] = 1e3 * statistics.median(values)
            row[key + "_best_ms"] = 1e3 * min(values)
    if theirs and ours:
        row["ratio"] = row["merak_ms"] / row["torch_ms"]
        row["bound"] = MODELS[name]["bound"]
    return row


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS),
                        help=f"of {', '.join(MODELS)}; all without any")
    parser.add_argument("--merakc")
    parser.add_argument("--merak-run")
    parser.add_argument("--plan", action="append", default=[],
                        metavar="NAME=DIR")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--torch-only", metavar="NAME", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.torch_only:
        print(json.dumps(torch_seconds(MODELS[o.torch_only], o.threads)))
        return
    for name in o.models:
        if name not in MODELS:
            parser.error(f"unknown model '{name}'")
    o.plans = dict(entry.split("=", 1) for entry in o.plan)
    if (o.merakc or o.plans) and not o.merak_run:
        parser.error("a plan needs --merak-run")
    print(f"{'model':<12}{'threads':>8}{'torch ms':>11}{'best':>9}"
          f"{'merak ms':>11}{'best':>9}{'ratio':>8}{'bound':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in o.models:
            row = measure(o, name, folder)
            cells = [row.get(key) for key in
                     ("torch_ms", "torch_best_ms", "merak_ms", "merak_best_ms",
                      "ratio", "bound")]
            widths, digits = (11, 9, 11, 9, 8, 7), (2, 2, 2, 2, 2, 2)
            print(f"{name:<12}{o.threads:>8}" + "".join(
                f"{'-' if c is None else format(c, f'.{d}f'):>{w}}"
                for c, w, d in zip(cells, widths, digits)), flush=True)


if __name__ == "__main__":
    main()
