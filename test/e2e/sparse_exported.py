"""Cases of sparse.py on models that PyTorch exported and trained (sparse_torch.py,
recorded by sparse_record.py)."""
import array
import functools
import itertools
import json
import os
import re

import harness
import matrix
from harness import Case, Failed
from sparse_replayed import has_replays

RECORDED = os.path.join(harness.ROOT, "test/data/sparse")
BATCH, STEPS = matrix.GLOBAL_BATCH, 6
OPTIMIZERS = {"sgd": "sgd:lr=0.1", "adagrad": "adagrad:lr=0.05,eps=1e-10",
              "adam": "adam:lr=0.01,eps=1e-12",
              "adamw": "adamw:lr=0.01,eps=1e-8,weight_decay=0.1"}
# Recorded with dense gradients of tables.
DENSE = {"adamw"}
LAYOUTS = [("none", "whole"), ("dp=2", "half"), ("tp=2", "whole"),
           ("pp=2", "half"), ("dp=2,tp=2", "one")]
EXPORTERS = ("torchscript", "dynamo", "dynamo-any-batch")
# TorchScript leaves no trace of padding (docs/Import.md).
LOST = {("dlrm", "torchscript")}
# Tables, and which of them have fewer rows than a step has ids.
TABLES = {"dlrm": (["user.weight", "item.weight", "country.weight",
                    "popular.weight"], ["country.weight"]),
          "bags": (["words.weight", "tags.weight"], ["tags.weight"]),
          "sampled-lm": (["words.weight", "head.weight", "bias.weight"], [])}
# Bags are exported as loops over the batch, which cannot be cut.
WHOLE = [("none", "whole"), ("dp=2", "whole"), ("tp=2", "whole")]


@functools.cache
def recorded():
    with open(os.path.join(RECORDED, "exported.json"), encoding="utf-8") as file:
        return json.load(file)["losses"]


def close(what, found, expected):
    for at, (x, y) in enumerate(zip(found, expected, strict=True)):
        if not abs(x - y) <= 1e-5 * max(1, abs(y)):
            raise Failed(f"{what}[{at}] is {x!r}, expected {y!r}")


def compile_it(name, exporter, layout, options, tools):
    model = os.path.join(RECORDED, name, exporter + ".onnx")
    plan = tools.path("out.plan")
    tools.run("merakc", model, "-o", plan, *options,
              *matrix.compile_options(*layout, "1f1b"))
    said = tools.run("merakc", model, "-o", tools.path("graph.mlir"), "--to=graph",
                     "--remarks=sparse", *options, f"--global-batch={BATCH}")
    return plan, "".join(said)


def body(name, exporter, optimizer, mesh, microbatch, more, tools):
    exact = optimizer in DENSE
    options = [f"--optimizer={OPTIMIZERS[optimizer]}",
               f"--sparse={'exact' if exact else 'lazy'}", *more]
    plan, said = compile_it(name, exporter, (mesh, microbatch), options, tools)
    tables, small = TABLES[name]
    found = set(re.findall(r"'([^']*)' is updated by rows", said))
    if found != set(tables) - set(small if exact else []):
        raise Failed(f"by rows are updated {sorted(found)}: {said}")
    if (has_replays(tools) > 0) != exact:
        raise Failed("steps are replayed, or not, as they should not be")
    log, saved = tools.path("log.jsonl"), tools.path("saved")
    tools.run("merak-run", plan, f"--data={os.path.join(RECORDED, name, 'data')}",
              f"--steps={STEPS}", f"--log={log}", f"--save={saved}")
    losses = [entry["loss"] for entry in harness.read_log(log)]
    close("losses", losses, recorded()[name][optimizer])
    weights = harness.read_checkpoint(saved)[0]
    expected = harness.read_safetensors(
        os.path.join(RECORDED, name, optimizer + ".safetensors"))
    for key, tensor in expected.items():
        if key in tables or key in weights:
            close(key, weights[key].data, tensor.data)
    return f"loss {losses[-1]:.4f}"


def samples_of(name, key):
    """Ids of each sample of an input."""
    with open(os.path.join(RECORDED, name, "data", key + ".npy"), "rb") as file:
        file.seek(8)
        header = file.read(int.from_bytes(file.read(2), "little")).decode()
        values = array.array("q", file.read())
    each = len(values) // int(re.search(r"'shape': \((\d+)", header)[1])
    return [values[at:at + each] for at in range(0, len(values), each)]


def counted_body(exporter, tools):
    """Users, items and countries are columns of one input; rows of items are named by
    another one, too, and padding is none."""
    categories, seen = (samples_of("dlrm", key) for key in ("categories", "seen"))
    items = [[c[1], *s] for c, s in zip(categories, seen)]
    expected = {
        "user.weight": (60, [[c[0]] for c in categories]),
        "item.weight": (40, [[i for i in named if i] for named in items]),
        "country.weight": (5, [[c[2]] for c in categories]),
        "popular.weight": (40, [[c[1]] for c in categories])}
    said = "".join(tools.run(
        "merakc", os.path.join(RECORDED, "dlrm", exporter + ".onnx"), "-o",
        tools.path("graph.mlir"), "--to=graph", "--remarks=sparse", "--sparse=lazy",
        f"--data={os.path.join(RECORDED, 'dlrm/data')}", f"--global-batch={BATCH}"))
    for table, (rows, samples) in expected.items():
        steps = [len(set(itertools.chain(*samples[k:k + BATCH])))
                 for k in range(0, len(samples), BATCH)]
        share = 100 * sum(steps) / len(steps) / rows
        if not re.search(rf"'{table}' is updated by rows: [^\n]*, {share:.3g} % in a "
                         "step", said):
            raise Failed(f"of {table} {share:.3g} % are expected: {said}")
    return "as Python counts"


def exported_cases(every):
    cases = []
    for name in TABLES:
        own = [(name, exporter, optimizer, *layout) for
               exporter, optimizer, layout in itertools.product(
                   EXPORTERS, OPTIMIZERS, WHOLE if name == "bags" else LAYOUTS)
               if (name, exporter) not in LOST]
        cases += own if every else matrix.pairwise(own)
    for case in cases:
        yield Case("exported " + " ".join(case),
                   functools.partial(body, *case, []))
    for exporter in EXPORTERS:
        if ("dlrm", exporter) not in LOST:
            yield Case(f"exported counted {exporter}",
                       functools.partial(counted_body, exporter))
