"""Models with tables written and exported as in PyTorch: a DLRM, the same with bags,
and a language model with a sampled head. What sparse_record.py records of them; needs
torch."""
import os

import onnx
import sparse_exported
import torch
import torch.nn.functional as F
from torch import nn

BATCH, STEPS = sparse_exported.BATCH, sparse_exported.STEPS
WIDTH = 4


class Dlrm(nn.Module):
    """Categories, what was seen before and numbers; products of all pairs. `item` is
    looked up at two places and has padding, ids of items are looked up in two tables,
    users and countries come in one input with them."""

    def __init__(self, sparse, users=60, items=40, countries=5):
        super().__init__()
        self.user = nn.Embedding(users, WIDTH, sparse=sparse)
        self.item = nn.Embedding(items, WIDTH, padding_idx=0, sparse=sparse)
        self.country = nn.Embedding(countries, WIDTH, sparse=sparse)
        self.popular = nn.Embedding(items, 1, sparse=sparse)
        self.bottom = nn.Sequential(nn.Linear(3, 8), nn.Tanh(),
                                    nn.Linear(8, WIDTH), nn.Tanh())
        pairs = torch.tril_indices(5, 5, -1)
        self.register_buffer("row", pairs[0])
        self.register_buffer("column", pairs[1])
        self.top = nn.Sequential(nn.Linear(WIDTH + 10, 8), nn.Tanh(),
                                 nn.Linear(8, 1))

    def forward(self, numbers, categories, seen, clicked):
        user, item, country = categories.unbind(1)
        dense = self.bottom(numbers)
        features = torch.stack([dense, self.user(user), self.item(item),
                                self.country(country),
                                self.item(seen).sum(1)], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        found = self.top(torch.cat(
            [dense, products[:, self.row, self.column]], 1))
        return F.binary_cross_entropy_with_logits(
            (found + self.popular(item))[:, 0], clicked)

    @staticmethod
    def data(samples, draw):
        seen = draw(40, samples, 3)
        seen[:, 2] *= torch.arange(samples) % 3 > 0  # padding
        return {"numbers": torch.randn(samples, 3),
                "categories": torch.stack([draw(60, samples), draw(40, samples),
                                           draw(5, samples)], 1),
                "seen": seen,
                "clicked": (torch.rand(samples) < 0.4).float()}


class Bags(nn.Module):
    """Sums and means of bags of rows."""

    def __init__(self, sparse, words=50, tags=12):
        super().__init__()
        self.words = nn.EmbeddingBag(words, WIDTH, mode="mean", sparse=sparse)
        self.tags = nn.EmbeddingBag(tags, WIDTH, mode="sum", sparse=sparse)
        self.top = nn.Sequential(nn.Linear(2 * WIDTH, 8), nn.Tanh(),
                                 nn.Linear(8, 1))

    def forward(self, words, tags, clicked):
        found = self.top(torch.cat([self.words(words), self.tags(tags)], 1))
        return F.binary_cross_entropy_with_logits(found[:, 0], clicked)

    @staticmethod
    def data(samples, draw):
        return {"words": draw(50, samples, 4), "tags": draw(12, samples, 2),
                "clicked": (torch.rand(samples) < 0.4).float()}


class SampledLm(nn.Module):
    """The right word against some that the batch brings, which are sampled for each
    text: no row of the head is read but theirs. One that is the right word by chance
    does not count."""

    def __init__(self, sparse, words=120, width=WIDTH):
        super().__init__()
        self.words = nn.Embedding(words, width, sparse=sparse)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Embedding(words, width, sparse=sparse)
        self.bias = nn.Embedding(words, 1, sparse=sparse)

    def forward(self, tokens, targets, negatives):
        h, _ = self.lstm(self.words(tokens))
        right = ((h * self.head(targets)).sum(-1, keepdim=True)
                 + self.bias(targets))
        wrong = (torch.bmm(h, self.head(negatives).transpose(1, 2))
                 + self.bias(negatives).transpose(1, 2))
        same = targets.unsqueeze(2) == negatives.unsqueeze(1)
        scores = torch.cat([right, wrong.masked_fill(same, -1e4)], 2)
        return F.cross_entropy(scores.flatten(0, 1),
                               torch.zeros_like(targets).flatten())

    @staticmethod
    def data(samples, draw):
        text = draw(120, samples, 6)
        return {"tokens": text[:, :5].contiguous(),
                "targets": text[:, 1:].contiguous(),
                "negatives": draw(120, samples, 7)}


MODELS = {"dlrm": Dlrm, "bags": Bags, "sampled-lm": SampledLm}
# As a newcomer types it, and as one who wants other batches.
EXPORTERS = {
    "torchscript": dict(dynamo=False, dynamic="axes"),
    "dynamo": dict(dynamo=True),
    "dynamo-any-batch": dict(dynamo=True, dynamic="shapes"),
}
SPARSE = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-10),
    "adam": lambda p: torch.optim.SparseAdam(p, lr=0.01, eps=1e-12),
}
DENSE = dict(SPARSE, adam=lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-12),
             adamw=lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-8,
                                               weight_decay=0.1))


def frequent(rows, *shape):
    """Ids of which some are frequent, row 0 among them."""
    chances = 1 / (1 + torch.arange(rows, dtype=torch.float64))
    count = torch.Size(shape).numel()
    return torch.multinomial(chances, count, True).reshape(shape)


def drop_traces(path):
    """Without the lines of this file that each node came from."""
    model = onnx.load(path)
    for part in (model.graph, *model.functions):
        for node in part.node:
            kept = [entry for entry in node.metadata_props
                    if not entry.key.endswith("stack_trace")]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
    onnx.save(model, path)


def export(name, module, data, folder):
    batch = tuple(value[:BATCH] for value in data.values())
    for exporter, options in EXPORTERS.items():
        if (name, exporter) in sparse_exported.LOST:
            continue
        options = dict(options)
        dynamic = options.pop("dynamic", "")
        if dynamic == "axes":
            options["dynamic_axes"] = {key: {0: "batch"} for key in data}
        elif dynamic:
            options["dynamic_shapes"] = {
                key: {0: torch.export.Dim.DYNAMIC} for key in data}
        if options["dynamo"]:
            options["external_data"] = False
        path = os.path.join(folder, exporter + ".onnx")
        torch.onnx.export(module, batch, path, input_names=list(data),
                          output_names=["loss"], **options)
        drop_traces(path)


def train(module, data, optimizer, sparse):
    """Losses, and weights after the last step, in float64."""
    module = module.double()
    tables = {id(part.weight) for part in module.modules()
              if isinstance(part, (nn.Embedding, nn.EmbeddingBag))}
    ours = [p for p in module.parameters() if id(p) in tables]
    others = [p for p in module.parameters() if id(p) not in tables]
    steppers = [(SPARSE if sparse else DENSE)[optimizer](ours),
                DENSE[optimizer](others)]
    losses = []
    for step in range(STEPS):
        batch = [value[step * BATCH:(step + 1) * BATCH]
                 for value in data.values()]
        for stepper in steppers:
            stepper.zero_grad()
        loss = module(*(x.double() if x.is_floating_point() else x
                        for x in batch))
        loss.backward()
        for stepper in steppers:
            stepper.step()
        losses.append(float(f"{loss.item():.9g}"))
    return losses, {name: value.detach().float().contiguous()
                    for name, value in module.named_parameters()}


def record(root):
    import numpy
    from safetensors.torch import save_file
    for name, build in MODELS.items():
        folder = os.path.join(root, name)
        os.makedirs(os.path.join(folder, "data"), exist_ok=True)
        torch.manual_seed(3)
        first = build(sparse=False)
        with torch.no_grad():
            for value in first.parameters():
                if value.dim() == 1:  # others than zeros
                    value.add_(0.1 * torch.randn_like(value))
        data = build.data(BATCH * STEPS, frequent)
        for key, value in data.items():
            numpy.save(os.path.join(folder, "data", key + ".npy"), value.numpy())
        export(name, first, data, folder)
        losses = {}
        for optimizer in sparse_exported.OPTIMIZERS:
            sparse = optimizer in SPARSE
            module = build(sparse=sparse)
            module.load_state_dict(first.state_dict())
            losses[optimizer], weights = train(module, data, optimizer, sparse)
            save_file(weights, os.path.join(folder, optimizer + ".safetensors"))
        yield name, losses
