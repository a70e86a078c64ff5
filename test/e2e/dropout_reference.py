"""What the models with dropout in exact_models.py compute, written once more in
plain Python: Philox4x32-10 (Salmon et al., SC 2011), the numbering of elements,
and forward and backward of each model. Shares nothing with the product."""
import itertools
import math

import exact_models

BATCH = 8
M = 0xFFFFFFFF


def philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M, (p0 >> 32) ^ c3 ^ k1, p0 & M
        k0, k1 = (k0 + 0x9E3779B9) & M, (k1 + 0xBB67AE85) & M
    return c0, c1, c2, c3


def mask(seed, step, op, ratio, count):
    """Factors of `count` elements: 0 or 1 / (1 - ratio)."""
    assert philox((0, 0, 0, 0), (0, 0))[0] == 0x6627E8D5
    factors = []
    for group in range(math.ceil(count / 64)):
        blocks = [philox((16 * group + lane, 0, op, step),
                         (seed & M, seed >> 32)) for lane in range(16)]
        factors += [blocks[k % 16][k // 16] for k in range(64)]
    return [1 / (1 - ratio) if word >= ratio * 2 ** 32 else 0.0
            for word in factors[:count]]


def summed(count, terms):
    """Sums of (where, term). Asserts that a sum in 32-bit floats is exact in
    any order: all terms are multiples of a power of two, and even the sum of
    their magnitudes has no more than 24 bits of it."""
    sums, most, unit = [0.0] * count, [0.0] * count, [1.0] * count
    for where, term in terms:
        sums[where] += term
        most[where] += abs(term)
        while term % unit[where]:
            unit[where] /= 2
    assert all(m < u * 2 ** 24 for m, u in zip(most, unit)), "inexact"
    return sums


class Value:
    """A tensor with its gradient; `back` sends the gradient on."""

    def __init__(self, shape, data, back=None, inputs=()):
        assert len(data) == math.prod(shape)
        self.shape, self.data, self.back = list(shape), list(data), back
        self.inputs, self.grad = inputs, [0.0] * len(data)

    def send(self, terms):
        """Adds (where, term) to the gradient."""
        grad = enumerate(self.grad)
        self.grad = summed(len(self.data), itertools.chain(grad, terms))

    def backward(self):
        order, seen = [], set()

        def visit(value):
            if id(value) not in seen:
                seen.add(id(value))
                for x in value.inputs:
                    visit(x)
                order.append(value)

        visit(self)
        self.grad = [1.0] * len(self.data)
        for value in reversed(order):
            if value.back:
                value.back(value.grad)


def contract(equation, a, b):
    """An einsum of two tensors by brute force."""
    terms, out = equation.split("->")
    left, right = terms.split(",")
    sizes = dict(zip(left + right, a.shape + b.shape))
    letters = sorted(sizes)

    def index(text, at):
        flat = 0
        for letter in text:
            flat = flat * sizes[letter] + at[letter]
        return flat

    triples = []
    for point in itertools.product(*(range(sizes[l]) for l in letters)):
        at = dict(zip(letters, point))
        triples.append((index(left, at), index(right, at), index(out, at)))
    shape = [sizes[letter] for letter in out]
    data = summed(math.prod(shape),
                  ((k, a.data[i] * b.data[j]) for i, j, k in triples))

    def back(grad):
        a.send((i, grad[k] * b.data[j]) for i, j, k in triples)
        b.send((j, grad[k] * a.data[i]) for i, j, k in triples)

    return Value(shape, data, back, (a, b))


def scaled(x, factors):
    """x * factors, which have no gradient."""
    def back(grad):
        x.send((i, grad[i] * factor) for i, factor in enumerate(factors))
    return Value(x.shape, [v * f for v, f in zip(x.data, factors)], back, (x,))


def added(a, b):
    def back(grad):
        a.send(enumerate(grad))
        b.send(enumerate(grad))
    return Value(a.shape, [x + y for x, y in zip(a.data, b.data)], back, (a, b))


def relu(x):
    return scaled(x, [float(v > 0) for v in x.data])


class Step:
    """One step's dropouts, numbered in graph order."""

    def __init__(self, seed, number):
        self.seed, self.number, self.ops = seed, number, 0

    def mask(self, x, ratio):
        factors = mask(self.seed, self.number, self.ops, ratio, len(x.data))
        self.ops += 1
        return factors

    def dropout(self, x, ratio):
        return scaled(x, self.mask(x, ratio))


def dropout(step, x, w):
    h = relu(contract("btk,kn->btn", x, w["w1"]))
    h = step.dropout(h, 0.5)
    h = step.dropout(contract("btk,kn->btn", h, w["w2"]), 0.75)
    h = added(h, x)
    factors = step.mask(h, 0.5)
    h = added(scaled(h, factors), Value(h.shape, [float(f > 0) for f in factors]))
    return contract("btk,kn->btn", h, w["w3"])


def attention_dropout(step, x, w):
    # Columns of qkv are (part, head, d), those of proj's rows (head, d).
    qkv = contract("btk,kphd->btphd", x, w["qkv"])

    def part(number):
        pick = Value([3], [float(k == number) for k in range(3)])
        return contract("btphd,p->bthd", qkv, pick)

    scores = contract("bthd,bshd->bhts", part(0), part(1))
    scores = step.dropout(scores, 0.5)
    mixed = contract("bhts,bshd->bthd", scores, part(2))
    return step.dropout(contract("bthd,hdn->btn", mixed, w["proj"]), 0.5)


class Model:
    """`steps` is as far as everything stays exact."""

    def __init__(self, body, shapes, lr, steps):
        self.body, self.shapes, self.lr, self.steps = body, shapes, lr, steps


MODELS = {
    "dropout": Model(dropout, {"w1": [8, 16], "w2": [16, 8], "w3": [8, 4]},
                     0.125, 2),
    "attention_dropout": Model(attention_dropout,
                               {"qkv": [8, 3, 2, 4], "proj": [2, 4, 8]}, 0.5, 1)}


def run(name, seed=0):
    """Losses, gradients of step 1 and final weights, both as flat lists."""
    model = MODELS[name]
    shapes = model.shapes
    graph = next(m for m in exact_models.MODELS if m.__name__ == name)()
    weights = {key: graph.weights[key] for key in shapes}
    losses, gradients = [], None

    def batch(key, step):
        _, shape, values = graph.data[key]
        size = math.prod(shape[1:]) * BATCH
        at = step * BATCH % exact_models.SAMPLES // BATCH * size
        return Value([BATCH, *shape[1:]], [float(v) for v in values[at:at + size]])

    for step in range(model.steps):
        w = {key: Value(shapes[key], weights[key]) for key in shapes}
        out = model.body(Step(seed, step + 1), batch("x", step), w)
        target = batch("target", step)
        letters = "abcd"[:len(out.shape)]
        loss = contract(f"{letters},{letters}->", out, target)
        losses.append(loss.data[0])
        loss.backward()
        gradients = gradients or {key: w[key].grad for key in shapes}
        weights = {key: [a - model.lr * g for a, g in zip(weights[key], w[key].grad)]
                   for key in shapes}
    return losses, gradients, weights
