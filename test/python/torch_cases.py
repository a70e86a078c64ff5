"""From a torch module to trained weights in the module, against PyTorch."""
import copy
import os
import subprocess
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

import harness
from harness import Case
from onnx_cases import documented, expect, refused

import merakc

CASES = []
BATCH, STEPS = 8, 4
torch.set_num_threads(1)


def case(function):
    CASES.append(Case("torch " + function.__name__.replace("_", " "),
                      function))
    return function


def classify(model, x, y):
    return F.cross_entropy(model(x), y)


def mlp(*parts):
    """A classifier of 6 numbers into 5 classes with some parts inside."""
    return nn.Sequential(nn.Linear(6, 8), *parts, nn.Linear(8, 5))


def samples(count=BATCH * STEPS):
    return torch.randn(count, 6), torch.randint(0, 5, (count,))


def reference(module, data, loss, steps=STEPS, make=None, batch=BATCH):
    """PyTorch in float64 from the module's weights: losses and the module."""
    module = copy.deepcopy(module).double()
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = (make or (lambda p: torch.optim.SGD(p, lr=0.1)))(trained)
    losses = []
    for k in range(steps):
        part = [x[k * batch:(k + 1) * batch] for x in data]
        part = [x.double() if x.is_floating_point() else x for x in part]
        optimizer.zero_grad()
        value = loss(module, *part)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses, module


def close(found, expected, what, tolerance=1e-5):
    if not isinstance(found, torch.Tensor):
        found, expected = torch.tensor(found), torch.tensor(expected)
    distance = float((found.double() - expected.double()).abs().max()) \
        if found.numel() else 0.0
    expect(distance <= tolerance * max(1.0, float(expected.abs().max())),
           f"{what}: {found.flatten()[:4].tolist()}, PyTorch "
           f"{expected.flatten()[:4].tolist()} (off by {distance:.1e})")
    return distance


def trains_like_torch(module, data, loss=classify, tolerance=1e-5, **options):
    """Losses, weights and buffers after some steps equal PyTorch's."""
    losses, expected = reference(module, data, loss)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    program = merakc.compile(module, tuple(x[:BATCH] for x in data),
                             loss=loss, optimizer="sgd:lr=0.1",
                             progress=False, **options)
    result = program.run(data, steps=STEPS)
    close(result.losses, losses, "losses", tolerance)
    state = result.state_dict()
    expect(list(state) == list(before), f"names {list(state)}")
    worst = 0
    for name, value in expected.state_dict().items():
        expect(state[name].dtype == before[name].dtype, f"type of {name}")
        worst = max(worst, close(state[name], value, name, tolerance))
    for name, value in module.state_dict().items():
        expect(torch.equal(value, before[name]), "the module was changed")
    module.load_state_dict(state)
    return program, result, f"weights {worst:.0e}"


@case
def state_back_into_the_module(tools):
    """Bit-equal to the runtime's weights; one more step in PyTorch equals one
    more step here; the exported model computes what the module does."""
    torch.manual_seed(1)
    module, data = mlp(nn.GELU(), nn.LayerNorm(8)), samples()
    program, result, note = trains_like_torch(module, data)
    whole, _ = harness.read_checkpoint(result.checkpoint)
    for name, value in module.named_parameters():
        expect(value.detach().numpy().tobytes() ==
               whole["model." + name].data.tobytes(), f"bits of {name}")
    part = [x[:BATCH] for x in data]
    again = program.run(part, steps=1, load=result, force_resume=True)
    losses, stepped = reference(module, part, classify, steps=1)
    close(again.losses, losses, "loss of one more step", 1e-6)
    for name, value in again.state_dict().items():
        close(value, stepped.state_dict()[name], name, 1e-6)
    path = str(result.export_onnx(tools.path("trained.onnx")))
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {"x": part[0].numpy(),
                                  "y": part[1].numpy()})
    close(float(found), float(classify(module, *part).detach()),
          "ONNX Runtime")
    return note


@case
def optimizer_state(tools):
    """AdamW goes on in PyTorch with the moments of the run."""
    torch.manual_seed(2)
    module, data = mlp(nn.Tanh()), samples()

    def make(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    program = merakc.compile(
        module, tuple(x[:BATCH] for x in data), loss=classify, progress=False,
        optimizer="adamw:lr=1e-2,weight_decay=0.1")
    result = program.run(data, steps=2)
    module.load_state_dict(result.state_dict())
    optimizer = make(module.parameters())
    optimizer.load_state_dict(result.optimizer_state_dict(optimizer))
    part = [x[2 * BATCH:3 * BATCH] for x in data]
    optimizer.zero_grad()
    classify(module, *part).backward()
    optimizer.step()
    more = program.run(data, steps=1, load=result)
    for name, value in more.state_dict().items():
        close(value, module.state_dict()[name], name, 1e-6)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("unsaved", torch.ones(3), persistent=False)

    def forward(self, ids):
        x = self.norm(self.table(ids)) * (self.scale * self.unsaved)[:, None]
        return self.head(self.norm(x))


@case
def tied_and_shared(tools):
    """One parameter under two names, one norm used twice, buffers."""
    torch.manual_seed(3)
    module = Tied()
    data = (torch.randint(0, 11, (32, 3)), torch.randint(0, 11, (32, 3)))

    def loss(model, ids, labels):
        return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    program, result, note = trains_like_torch(module, data, loss)
    expect(module.head.weight is module.table.weight, "still tied")
    expect(program.names["model.head.weight"] ==
           ["table.weight", "head.weight"], f"names {program.names}")
    losses = program.run(data, steps=STEPS, ranks=2).losses
    close(losses, result.losses, "on two ranks")
    # A saved plan knows the names; with its module, types and buffers too.
    saved = program.save(tools.path("tied.plan"))
    state = merakc.open(saved).result(result.checkpoint).state_dict()
    expect(torch.equal(state["table.weight"], state["head.weight"]), "alias")
    fresh = Tied()
    fresh.load_state_dict(
        merakc.open(saved, model=fresh).result(result.checkpoint).state_dict())
    expect(torch.equal(fresh.head.weight, module.head.weight), "opened")
    return note


@case
def frozen(tools):
    """requires_grad=False and freeze=: unchanged."""
    torch.manual_seed(4)
    module, data = mlp(nn.ReLU(), nn.Linear(8, 8)), samples()
    module[0].weight.requires_grad_(False)
    trains_like_torch(module, data)
    module[2].requires_grad_(False)
    losses, _ = reference(module, data, classify)
    module[2].requires_grad_(True)
    program = merakc.compile(module, tuple(x[:BATCH] for x in data),
                             loss=classify, optimizer="sgd:lr=0.1",
                             freeze="2.*", progress=False)
    result = program.run(data, steps=STEPS)
    close(result.losses, losses, "losses")
    expect(torch.equal(result.state_dict()["2.weight"],
                       module[2].weight), "frozen")
    refused(merakc.CompileError, lambda: merakc.compile(
        module, data, loss=classify, freeze=["nine.*"], progress=False),
        "nine.*")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    refused(merakc.CompileError, lambda: merakc.compile(
        module, data, loss=classify, progress=False), "nothing to train")


@case
def label_smoothing(tools):
    """With class weights and ignored labels, as cross_entropy defines it."""
    torch.manual_seed(5)
    x, y = samples()
    y[::5] = -100
    weights = torch.tensor([1.0, 2.0, 0.5, 1.5, 3.0])

    def smooth(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.2)

    def weighted(model, x, y):
        return F.cross_entropy(model(x), y, weights.to(x.dtype),
                               label_smoothing=0.1)
    module = mlp(nn.ReLU())
    trains_like_torch(module, (x, y), smooth)
    return trains_like_torch(module, (x, y), weighted)[2]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 6, padding_idx=2)
        self.head = nn.Linear(6, 5)
        with torch.no_grad():
            self.table.weight[2] = 0.5

    def forward(self, ids):
        return self.head(self.table(ids).sum(1))


@case
def padding_idx(tools):
    """The row gets no gradient, whatever it holds."""
    torch.manual_seed(6)
    module = Words()
    data = (torch.randint(0, 9, (32, 4)), torch.randint(0, 5, (32,)))
    row = module.table.weight[2].clone()
    note = trains_like_torch(module, data)[2]
    expect(torch.equal(module.table.weight[2], row), "the row moved")
    return note


class Stops(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8)
        self.head, self.kind = nn.Linear(8, 5), kind

    def forward(self, x):
        x = self.a(x)
        if self.kind == "detach":
            x = x.tanh() + self.b(x).detach()
        elif self.kind == "no_grad":
            with torch.no_grad():
                y = self.b(x).sin()
            x = x + y
        elif self.kind == "round":
            x = x + (x.round() - x).detach()
        else:
            x = self.b(x)
        return self.head(x)


@case
def stop_gradient(tools):
    """detach, no_grad, a straight-through estimator. What nothing trains
    stays, though it has requires_grad."""
    torch.manual_seed(7)
    notes = []
    for kind in ("detach", "no_grad", "round"):
        module, data = Stops(kind), samples()
        before = module.b.weight.clone()
        notes.append(trains_like_torch(module, data)[2])
        expect(torch.equal(module.b.weight, before), f"{kind}: moved")
    return "  ".join(notes)


@case
def batch_norm(tools):
    """In training mode: losses, running statistics and their counter; in eval
    mode: the statistics as they are."""
    torch.manual_seed(8)
    module, data = mlp(nn.BatchNorm1d(8, momentum=0.3), nn.ReLU()), samples()
    program, result, note = trains_like_torch(module, data, microbatch=BATCH)
    expect(int(module[1].num_batches_tracked) == STEPS, "counter")
    module[1].eval()
    trains_like_torch(module, data)
    expect(not module[1].training and module.training, "modes were changed")
    return note


@case
def dropout(tools):
    """On in train mode, off in eval mode, and with a warning then."""
    torch.manual_seed(9)
    module, data = mlp(nn.Dropout(0.5), nn.ReLU()), samples()
    part = tuple(x[:BATCH] for x in data)
    how = dict(loss=classify, optimizer="sgd:lr=0.1", progress=False)
    program = merakc.compile(module, part, **how)
    first, second = (program.run(data, steps=2, seed=s).losses for s in (1, 2))
    expect(first != second, "the masks do not depend on the seed")
    module.eval()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trains_like_torch(module, data)
    expect(any("eval mode" in str(w.message) for w in seen), "no warning")

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

        def forward(self, x):
            h = self.a(x).view(-1, 1, 4, 2)
            h = F.scaled_dot_product_attention(h, h, h, dropout_p=0.5)
            return self.b(h.flatten(1))
    program = merakc.compile(Attends(), part, **how)
    first, second = (program.run(data, steps=2, seed=s).losses for s in (1, 2))
    expect(first != second, "dropout of attention is off")


@case
def kinds_of_inputs(tools):
    """A dict; an input that all samples share; a model that returns its loss
    in a field; the global batch of an example that has fewer samples."""
    torch.manual_seed(10)

    class Output(dict):
        loss = property(lambda self: self["loss"])

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(nn.ReLU())

        def forward(self, x=None, labels=None, scale=None, flag=True):
            logits = self.net(x * scale)
            expect(flag, "a constant input")
            return Output(loss=F.cross_entropy(logits, labels), logits=logits)

    module, (x, y) = Own(), samples()
    scale = torch.linspace(0.5, 1.5, 6)
    losses, _ = reference(module, (x, y), lambda m, x, y: m(
        x=x, labels=y, scale=scale.to(x.dtype)).loss)
    program = merakc.compile(
        module, {"x": x[:2], "labels": y[:2], "scale": scale, "flag": True},
        global_batch=BATCH, optimizer="sgd:lr=0.1", progress=False)
    expect(program.inputs == ["x", "labels", "scale"] and
           program.plan.global_batch == BATCH, "inputs")
    result = program.run({"x": x, "labels": y, "scale": scale}, steps=STEPS)
    close(result.losses, losses, "losses")
    close(program.run((x, y, scale), steps=STEPS).losses, losses, "by position")
    refused(merakc.CompileError, lambda: merakc.compile(
        module.net, (x,), progress=False), "expected one number")
    inferred = merakc.compile(module.net, (x[:BATCH],), mode="infer",
                              progress=False).run((x,), steps=1)
    close(torch.from_numpy(inferred.outputs["output"]),
          module.net(x[:BATCH]).detach(), "inference")


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Does(nn.Module):
    """A layer whose forward is given."""

    def __init__(self, body, **parts):
        super().__init__()
        self.layer, self.body = nn.Linear(6, 6), body
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.body(self, self.layer(x)).pow(2).mean()


def _inference(x):
    with torch.inference_mode():
        return x * 2


def _hooked(x):
    y = x * 1
    y.register_hook(lambda g: g * 2)
    return y


@case
def lost_by_the_exporter(tools):
    """What would be silently different is refused, with the remedy."""
    foreign = nn.Parameter(torch.ones(6))
    average = Does(lambda s, x: x - s.seen.mul_(0.9).add_(
        x.detach().mean(0) * 0.1))
    average.register_buffer("seen", torch.zeros(6))
    shared = Does(lambda s, x: s.other(x), other=nn.Linear(6, 6))
    shared.other.weight.data = shared.layer.weight.data
    ids = torch.zeros(4, dtype=torch.long)
    for module, says in [
            (Does(lambda s, x: Sign.apply(x)), "autograd.Function"),
            (Does(lambda s, x: x * foreign), "not the model's"),
            (Does(lambda s, x: x + (x * 2).detach_()), "x = x.detach()"),
            (Does(lambda s, x: x + x.data), "x.detach()"),
            (Does(lambda s, x: x + _inference(x)), "torch.no_grad()"),
            (Does(lambda s, x: _hooked(x)), "hook"),
            (average, "constant_buffers"),
            (shared, "same memory"),
            (Does(lambda s, x: s.norm(x), norm=nn.BatchNorm1d(
                6, momentum=None)), "give it a momentum"),
            (Does(lambda s, x: s.norm(x[:, :, None].expand(-1, -1, 2)),
                  norm=nn.InstanceNorm1d(6, track_running_stats=True)),
             "running statistics"),
            (Does(lambda s, x: x + s.table(ids), table=nn.Embedding(
                3, 6, max_norm=1.0)), "in place"),
            (Does(lambda s, x: x + s.table(ids), table=nn.Embedding(
                3, 6, scale_grad_by_freq=True)), "scale_grad_by_freq"),
            (Does(lambda s, x: F.cross_entropy(x, x.softmax(1))),
             "log_softmax"),
            (Does(lambda s, x: torch.utils.checkpoint.checkpoint(
                s.layer, x, use_reentrant=True)), "use_reentrant=False")]:
        refused(merakc.CompileError, lambda: merakc.compile(
            module, (torch.randn(4, 6),), progress=False), says)
    merakc.compile(average, (torch.randn(4, 6),), progress=False,
                   constant_buffers="seen")


@case
def types_of_the_module(tools):
    """A module in bfloat16: trained from float32 masters, given back in
    bfloat16."""
    torch.manual_seed(11)
    module, data = mlp(nn.ReLU()).bfloat16(), samples()
    data = (data[0].bfloat16(), data[1])
    try:
        program = merakc.compile(module, tuple(x[:BATCH] for x in data),
                                 loss=classify, optimizer="sgd:lr=0.1",
                                 progress=False)
    except merakc.CompileError as refusal:
        return f"refused: {refusal.problems[0][:60]}"
    losses, _ = reference(module, data, classify)
    result = program.run((data[0].float(), data[1]), steps=STEPS)
    close(result.losses, losses, "losses", 0.05)
    state = result.state_dict()
    expect(all(v.dtype == torch.bfloat16 for v in state.values()), "types")
    module.load_state_dict(state)


DOCUMENT = """
import sys, os, subprocess
sys.path[:0] = {paths!r}
import numpy
{body}
"""


@case
def documents(tools):
    """What docs/FromPyTorch.md shows, in one script; the weights that it ends
    with are those of its last run."""
    body = ""
    for language, text in documented("docs/FromPyTorch.md"):
        if language == "sh":
            body += ("os.makedirs('data')\n"
                     "numpy.save('data/x.npy', x.numpy())\n"
                     "numpy.save('data/y.npy', y.numpy())\n"
                     f"subprocess.run(['sh', '-ec', {text!r}], check=True)\n")
        else:
            body += text
    body += "\nprint('losses', result.losses[0], result.losses[-1])\n"
    with open(tools.path("document.py"), "w", encoding="utf-8") as file:
        file.write(DOCUMENT.format(paths=[p for p in sys.path if p],
                                   body=body))
    bin_dir = os.path.abspath(tools.bin_dir)
    done = subprocess.run(
        [sys.executable, "document.py"], cwd=tools.folder, text=True,
        capture_output=True, env={**os.environ, "PATH": bin_dir + os.pathsep +
                                  os.environ["PATH"]})
    expect(done.returncode == 0, harness.last_lines(done.stderr, 4))
    first, last = map(float, done.stdout.split("losses")[-1].split())
    expect(last < first, f"losses {first} to {last}")


@case
def sample(tools):
    """samples/02-from-pytorch, a few steps."""
    script = os.path.join(harness.ROOT, "samples/02-from-pytorch/train.py")
    done = subprocess.run(
        [sys.executable, script, "--steps=12", "--ranks=2"], text=True,
        capture_output=True, env={
            **os.environ, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    expect(done.returncode == 0, harness.last_lines(done.stderr, 4))
    expect("<merakc.Result: 12 steps" in done.stdout and "F0" in done.stdout,
           done.stdout[-300:])
