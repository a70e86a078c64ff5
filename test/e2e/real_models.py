"""Language models of real size as ONNX, without weights: names, types and shapes,
in external files that nobody wrote. They can be compiled, not run.

    gpt     decomposed attention and GELU, LayerNorm, a head that shares the
            table of tokens: what PyTorch exports of GPT-2
    llama   RMS norm, rotary positions, grouped heads, SwiGLU, a head of its own
"""
import math

FLOAT, INT64, BOOL = 1, 7, 9


class Graph:
    """Writes an ONNX model as protobuf text; the inputs are `ids` and
    `labels`, int64 [batch, tokens]."""

    def __init__(self, tokens):
        self.tokens, self.nodes, self.initializers = tokens, [], []
        self.scope, self.names, self.offset = "", {}, 0
        ones = self.op("Trilu", self.op("Expand", self.number(1), self.constant(
            [tokens, tokens])), upper=0)
        self.mask = self.op("Cast", ones, to=BOOL)

    def name(self, kind):
        base = f"{self.scope}/{kind}"
        self.names[base] = self.names.get(base, -1) + 1
        return base + (f"_{self.names[base]}" if self.names[base] else "")

    def op(self, kind, *inputs, outputs=1, **attributes):
        name = self.name(kind)
        outs = [f"{name}:{k}" for k in range(outputs)]
        text = "".join(f" input: \"{i}\"" for i in inputs)
        text += "".join(f" output: \"{o}\"" for o in outs)
        for key, value in attributes.items():
            if isinstance(value, list):
                value = "".join(f"ints: {n} " for n in value) + "type: INTS"
            elif isinstance(value, str):
                value = f"s: \"{value}\" type: STRING"
            elif isinstance(value, float):
                value = f"f: {value!r} type: FLOAT"
            else:
                value = f"i: {value} type: INT"
            text += f" attribute {{ name: \"{key}\" {value} }}"
        self.nodes.append(
            f"  node {{ name: \"{name}\" op_type: \"{kind}\"{text} }}\n")
        return outs if outputs > 1 else outs[0]

    def constant(self, values, kind=INT64):
        """A list, or a single number without dimensions."""
        name = self.name("Constant")
        dims = f"dims: {len(values)} " if isinstance(values, list) else ""
        values = values if isinstance(values, list) else [values]
        field = "int64_data" if kind == INT64 else "float_data"
        self.nodes.append(
            f"  node {{ name: \"{name}\" op_type: \"Constant\" output: "
            f"\"{name}:0\" attribute {{ name: \"value\" type: TENSOR t {{ "
            f"{dims}data_type: {kind} {field}: "
            f"[{', '.join(map(repr, values))}] }} }} }}\n")
        return name + ":0"

    def number(self, value):
        return self.constant(float(value), FLOAT)

    def weight(self, name, *shape):
        length = 4 * math.prod(shape)
        entries = (("location", "weights.data"), ("offset", self.offset),
                   ("length", length))
        self.offset += length
        self.initializers.append(
            f"  initializer {{ name: \"{name}\" data_type: {FLOAT} " +
            "".join(f"dims: {n} " for n in shape) + "data_location: EXTERNAL " +
            "".join(f"external_data {{ key: \"{key}\" value: \"{value}\" }} "
                    for key, value in entries) + "}\n")
        return name

    def linear(self, x, name, n_in, n_out, bias=True):
        weight = self.weight(name + ".weight", n_out, n_in)
        y = self.op("MatMul", x, self.op("Transpose", weight, perm=[1, 0]))
        return (self.op("Add", self.weight(name + ".bias", n_out), y) if bias
                else y)

    def heads(self, x, count, width):
        """[b, t, count * width] as [b, count, t, width]."""
        x = self.op("Reshape", x, self.constant([0, 0, count, width]))
        return self.op("Transpose", x, perm=[0, 2, 1, 3])

    def attend(self, q, k, v, heads, width):
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.number(width ** -0.5))
        scores = self.op("Where", self.mask, scores, self.number(-3.4e38))
        y = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        y = self.op("Transpose", y, perm=[0, 2, 1, 3])
        return self.op("Reshape", y, self.constant([0, 0, heads * width]))

    def finish(self, logits, vocabulary):
        logits = self.op("Reshape", logits, self.constant([-1, vocabulary]))
        labels = self.op("Reshape", "labels", self.constant([-1]))
        self.nodes.append(
            "  node { name: \"loss\" op_type: \"SoftmaxCrossEntropyLoss\" "
            f"input: \"{logits}\" input: \"{labels}\" output: \"loss\" "
            "attribute { name: \"ignore_index\" i: -100 type: INT } }\n")
        inputs = "".join(
            f"  input {{ name: \"{name}\" type {{ tensor_type {{ elem_type: "
            f"{INT64} shape {{ dim {{ dim_param: \"batch\" }} dim {{ dim_value: "
            f"{self.tokens} }} }} }} }} }}\n" for name in ("ids", "labels"))
        return (f"ir_version: 8\nproducer_name: \"real_models\"\n"
                "opset_import { domain: \"\" version: 17 }\n"
                "graph {\n  name: \"model\"\n" + "".join(self.nodes) +
                "".join(self.initializers) + inputs +
                "  output { name: \"loss\" type { tensor_type { elem_type: 1 "
                "shape { } } } }\n}\n")


def gpt(layers, hidden, heads, tokens, vocabulary=50257):
    g = Graph(tokens)
    width = hidden // heads

    def norm(x, name):
        return g.op("LayerNormalization", x, g.weight(name + ".weight", hidden),
                    g.weight(name + ".bias", hidden), axis=-1, epsilon=1e-5)

    def gelu(x):
        cube = g.op("Mul", g.op("Pow", x, g.number(3)), g.number(0.044715))
        t = g.op("Mul", g.op("Add", x, cube), g.number(math.sqrt(2 / math.pi)))
        t = g.op("Add", g.op("Tanh", t), g.number(1))
        return g.op("Mul", g.op("Mul", x, g.number(0.5)), t)

    wte = g.weight("wte.weight", vocabulary, hidden)
    positions = g.op("Gather", g.weight("wpe.weight", tokens, hidden),
                     g.constant(list(range(tokens))), axis=0)
    x = g.op("Add", g.op("Gather", wte, "ids", axis=0), positions)
    for k in range(layers):
        name = g.scope = f"h.{k}"
        qkv = g.linear(norm(x, name + ".ln_1"), name + ".attn.c_attn", hidden,
                       3 * hidden)
        parts = g.op("Split", qkv, g.constant([hidden] * 3), outputs=3, axis=2)
        y = g.attend(*(g.heads(p, heads, width) for p in parts), heads, width)
        x = g.op("Add", x, g.linear(y, name + ".attn.c_proj", hidden, hidden))
        y = g.linear(norm(x, name + ".ln_2"), name + ".mlp.c_fc", hidden,
                     4 * hidden)
        y = g.linear(gelu(y), name + ".mlp.c_proj", 4 * hidden, hidden)
        x = g.op("Add", x, y)
    g.scope = "head"
    logits = g.op("MatMul", norm(x, "ln_f"), g.op("Transpose", wte, perm=[1, 0]))
    return g.finish(logits, vocabulary)


def llama(layers, hidden, heads, groups, inner, tokens, vocabulary):
    g = Graph(tokens)
    width = hidden // heads
    # Tables of the positions, folded when importing.
    steps = g.op("Range", g.constant(0), g.constant(tokens), g.constant(1))
    steps = g.op("Cast", g.op("Unsqueeze", steps, g.constant([1])), to=FLOAT)
    half = g.op("Cast", g.op("Range", g.constant(0), g.constant(width // 2),
                             g.constant(1)), to=FLOAT)
    rate = g.op("Pow", g.number(10000), g.op("Div", half,
                                             g.number(-width // 2)))
    angle = g.op("Mul", steps, rate)
    cos, sin = (g.op(kind, g.op("Concat", angle, angle, axis=-1))
                for kind in ("Cos", "Sin"))

    def norm(x, name):
        mean = g.op("ReduceMean", g.op("Pow", x, g.number(2)), axes=[-1])
        root = g.op("Sqrt", g.op("Add", mean, g.number(1e-6)))
        return g.op("Mul", g.weight(name + ".weight", hidden),
                    g.op("Div", x, root))

    def rotate(x):
        a, b = g.op("Split", x, g.constant([width // 2] * 2), outputs=2, axis=3)
        turned = g.op("Concat", g.op("Neg", b), a, axis=-1)
        return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))

    def repeat(x):
        """Each key for the heads of its group."""
        x = g.op("Unsqueeze", x, g.constant([2]))
        x = g.op("Expand", x, g.constant([1, 1, heads // groups, 1, 1]))
        return g.op("Reshape", x, g.constant([0, heads, tokens, width]))

    x = g.op("Gather", g.weight("embed.weight", vocabulary, hidden), "ids",
             axis=0)
    for k in range(layers):
        name = g.scope = f"layers.{k}"
        h = norm(x, name + ".input_norm")
        q, key, v = (g.heads(g.linear(h, f"{name}.{which}_proj", hidden,
                                      count * width, bias=False), count, width)
                     for which, count in (("q", heads), ("k", groups),
                                          ("v", groups)))
        q, key = rotate(q), rotate(key)
        if groups < heads:
            key, v = repeat(key), repeat(v)
        y = g.attend(q, key, v, heads, width)
        x = g.op("Add", x, g.linear(y, name + ".o_proj", hidden, hidden,
                                    bias=False))
        h = norm(x, name + ".post_norm")
        gate = g.linear(h, name + ".gate_proj", hidden, inner, bias=False)
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        up = g.linear(h, name + ".up_proj", hidden, inner, bias=False)
        x = g.op("Add", x, g.linear(g.op("Mul", gate, up), name + ".down_proj",
                                    inner, hidden, bias=False))
    g.scope = "head"
    logits = g.linear(norm(x, "norm"), "lm_head", hidden, vocabulary, bias=False)
    return g.finish(logits, vocabulary)


MODELS = {
    "gpt2-124m": lambda: gpt(12, 768, 12, 1024),
    "gpt2-1.5b": lambda: gpt(48, 1600, 25, 1024),
    "gpt-8.3b": lambda: gpt(72, 3072, 32, 1024),
    "gpt3-175b": lambda: gpt(96, 12288, 96, 2048),
    "llama-7b": lambda: llama(32, 4096, 32, 32, 11008, 2048, 32000),
    "llama-70b": lambda: llama(80, 8192, 64, 8, 28672, 4096, 32000),
}
