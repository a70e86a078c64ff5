#include "test/unit/planning/ModelGraphs.h"

#include <algorithm>

namespace merak::planning::test {

int TrainGraph::addTensor(const std::string &name, Shape shape) {
  GraphTensor tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  gradients.push_back(-1);
  return graph.addTensor(std::move(tensor));
}

int TrainGraph::input(const std::string &name, Shape shape) {
  int id = addTensor(name, std::move(shape));
  graph.tensors[id].input = true;
  return id;
}

int TrainGraph::parameter(const std::string &name, Shape shape) {
  int id = addTensor(name, std::move(shape));
  graph.tensors[id].parameter = true;
  parameters.push_back(id);
  return id;
}

int TrainGraph::find(const std::string &name) const {
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].name == name)
      return int(t);
  return -1;
}

int TrainGraph::addOp(const std::string &name, ShardingRule rule,
                      std::vector<int> operands, Shape result, double flops) {
  int id = addTensor(name, std::move(result));
  GraphOp op;
  op.name = name;
  op.rule = std::move(rule);
  op.operands = std::move(operands);
  op.results = {id};
  op.flops = flops;
  op.contraction = flops > 0;
  op.phase = phase;
  op.gradientOf = gradientOf;
  op.kernel = op.contraction ? "einsum" : "elementwise";
  graph.addOp(std::move(op));
  return id;
}

// Sums the gradients of several uses.
void TrainGraph::gradient(int tensor, int value) {
  int &known = gradients[tensor];
  if (known < 0) {
    known = value;
    return;
  }
  int old = known;
  int sum = add("grad_sum/" + graph.tensors[tensor].name, old, value);
  graph.ops.back().sumOfUses = true;
  gradients[tensor] = sum;
}

static double einsumFlops(const ShardingRule &rule) {
  double flops = 2;
  bool sums = false;
  for (const RuleFactor &factor : rule.factors) {
    flops *= double(factor.size);
    sums |= factor.kind == FactorKind::Sum;
  }
  return sums && rule.operands.size() == 2 ? flops : 0;
}

int TrainGraph::einsum(const std::string &name, const std::string &text, int a,
                       int b, Shape result) {
  ShardingRule rule = einsumRule(text, {shape(a), shape(b)}, result);
  int id = addOp(name, rule, {a, b}, result, einsumFlops(rule));
  size_t comma = text.find(','), arrow = text.find("->");
  std::string left = text.substr(0, comma),
              right = text.substr(comma + 1, arrow - comma - 1),
              out = text.substr(arrow + 2);
  tape.push_back(
      {id, [=, this](int grad) {
         gradient(a, einsum(name + "/grad_a", out + "," + right + "->" + left,
                            grad, b, shape(a)));
         gradient(b, einsum(name + "/grad_b", left + "," + out + "->" + right,
                            a, grad, shape(b)));
       }});
  return id;
}

int TrainGraph::sum(const std::string &name, const std::string &text, int x,
                    Shape result) {
  int id = addOp(name, einsumRule(text, {shape(x)}, result), {x}, result);
  tape.push_back({id, [=, this](int grad) {
                    size_t arrow = text.find("->");
                    std::string back =
                        text.substr(arrow + 2) + "->" + text.substr(0, arrow);
                    gradient(x, addOp(name + "/grad",
                                      einsumRule(back, {shape(grad)}, shape(x)),
                                      {grad}, shape(x)));
                  }});
  return id;
}

int TrainGraph::add(const std::string &name, int a, int b) {
  Shape result = shape(a), small = shape(b);
  int id = addOp(name, elementwiseRule({result, small}, result, {{0, 1}}),
                 {a, b}, result);
  tape.push_back(
      {id, [=, this](int grad) {
         gradient(a, grad);
         if (small.size() == result.size())
           return gradient(b, grad);
         std::string letters = std::string("abcdefg").substr(0, result.size());
         gradient(b, addOp(name + "/grad_bias",
                           einsumRule(
                               letters + "->" +
                                   letters.substr(result.size() - small.size()),
                               {result}, small),
                           {grad}, small));
       }});
  return id;
}

int TrainGraph::unary(const std::string &name, int x) {
  Shape s = shape(x);
  int id = addOp(name, elementwiseRule({s}, s, {}), {x}, s);
  tape.push_back({id, [=, this](int grad) {
                    gradient(x, addOp(name + "/grad",
                                      elementwiseRule({s, s}, s, {{0}}),
                                      {grad, x}, s));
                  }});
  return id;
}

int TrainGraph::scale(const std::string &name, int x) {
  Shape s = shape(x);
  int id = addOp(name, elementwiseRule({s}, s, {{0}}), {x}, s);
  tape.push_back({id, [=, this](int grad) {
                    gradient(x,
                             addOp(name + "/grad",
                                   elementwiseRule({s}, s, {{0}}), {grad}, s));
                  }});
  return id;
}

int TrainGraph::divide(const std::string &name, int a, int b) {
  Shape s = shape(a);
  int id = addOp(name, elementwiseRule({s, shape(b)}, s, {{0}}), {a, b}, s);
  tape.push_back({id, [=, this](int grad) {
                    gradient(a, addOp(name + "/grad",
                                      elementwiseRule({s, shape(b)}, s, {{0}}),
                                      {grad, b}, s));
                  }});
  return id;
}

int TrainGraph::layerNorm(const std::string &name, int x, int gamma, int beta) {
  Shape s = shape(x), w = shape(gamma);
  ShardingRule rule = elementwiseRule({s, w, w}, s, {});
  rule.factors.back().kind = FactorKind::Whole;
  int id = addOp(name, rule, {x, gamma, beta}, s);
  tape.push_back({id, [=, this](int grad) {
                    ShardingRule back = elementwiseRule({s, s, w}, s, {{0}});
                    for (RuleFactor &factor : back.factors)
                      factor.kind = FactorKind::Sum; // of dgamma and dbeta
                    back.factors.back().kind = FactorKind::Whole;
                    int last = int(s.size()) - 1;
                    back.results.push_back({{last}});
                    back.results.push_back({{last}});
                    int dx = addOp(name + "/grad", back, {grad, x, gamma}, s);
                    int dgamma = addTensor(name + "/grad_gamma", w);
                    int dbeta = addTensor(name + "/grad_beta", w);
                    graph.ops.back().results = {dx, dgamma, dbeta};
                    gradient(x, dx);
                    gradient(gamma, dgamma);
                    gradient(beta, dbeta);
                  }});
  return id;
}

int TrainGraph::embedding(const std::string &name, int ids, int table) {
  Shape out = shape(ids), v = shape(table);
  ShardingRule rule;
  RuleTensor index, result;
  for (int64_t size : out) {
    index.push_back({int(rule.factors.size())});
    rule.factors.push_back({size, FactorKind::Parallel});
  }
  int d = int(rule.factors.size());
  rule.factors.push_back({v[1], FactorKind::Parallel});
  rule.factors.push_back({v[0], FactorKind::Decompose});
  result = index;
  result.push_back({d});
  out.push_back(v[1]);
  rule.operands = {index, {{d + 1}, {d}}};
  rule.results = {result};
  int id = addOp(name, rule, {ids, table}, out);
  graph.ops.back().looksUp = true;
  tape.push_back(
      {id, [=, this](int grad) {
         ShardingRule back = rule;
         for (int f = 0; f < d; ++f)
           back.factors[f].kind = FactorKind::Sum;
         back.operands = {rule.results[0], rule.operands[0]};
         back.results = {rule.operands[1]};
         back.linear = {{0}};
         gradient(table, addOp(name + "/grad", back, {grad, ids}, v));
       }});
  return id;
}

int TrainGraph::reshape(const std::string &name, int x, Shape to) {
  Shape from = shape(x);
  int id = addOp(name, reshapeRule(from, to), {x}, to);
  tape.push_back({id, [=, this](int grad) {
                    gradient(x, addOp(name + "/grad", reshapeRule(to, from),
                                      {grad}, from));
                  }});
  return id;
}

int TrainGraph::transpose(const std::string &name, int x,
                          std::vector<int64_t> perm) {
  Shape from = shape(x), to;
  std::vector<int64_t> inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) {
    to.push_back(from[perm[d]]);
    inverse[perm[d]] = int(d);
  }
  int id = addOp(name, transposeRule(from, perm), {x}, to);
  tape.push_back({id, [=, this](int grad) {
                    gradient(x,
                             addOp(name + "/grad", transposeRule(to, inverse),
                                   {grad}, from));
                  }});
  return id;
}

std::vector<int> TrainGraph::unstack(const std::string &name, int x, int dim) {
  Shape from = shape(x), to = from;
  to.erase(to.begin() + dim);
  ShardingRule rule;
  RuleTensor all, rest;
  for (size_t d = 0; d < from.size(); ++d) {
    rule.factors.push_back(
        {from[d], int(d) == dim ? FactorKind::Whole : FactorKind::Parallel});
    all.push_back({int(d)});
    if (int(d) != dim)
      rest.push_back({int(d)});
  }
  rule.operands = {all};
  rule.linear = {{0}};
  std::vector<int> parts;
  for (int64_t i = 0; i < from[dim]; ++i)
    rule.results.push_back(rest);
  parts.push_back(addOp(name, rule, {x}, to));
  for (int64_t i = 1; i < from[dim]; ++i)
    parts.push_back(addTensor(name + "/" + std::to_string(i), to));
  graph.ops.back().results = parts;
  // The first part's gradient comes last on the tape: all are there.
  tape.push_back({parts[0], [=, this](int) {
                    ShardingRule back;
                    back.factors = rule.factors;
                    back.operands = rule.results;
                    back.results = {all};
                    std::vector<int> grads, group;
                    for (int part : parts) {
                      group.push_back(int(grads.size()));
                      grads.push_back(gradients[part]);
                    }
                    back.linear = {group};
                    gradient(x, addOp(name + "/grad", back, grads, from));
                  }});
  return parts;
}

int TrainGraph::attention(const std::string &name, int q, int k, int v) {
  // Letters: k heads, g queries of one head, t and s tokens, e within a head.
  bool grouped = shape(q).size() == 5;
  ShardingRule rule =
      einsumRule(grouped ? "bkgte,bkse,bkse->bkgte" : "bkte,bkse,bkse->bkte",
                 {shape(q), shape(k), shape(v)}, shape(q));
  double flops = 4;
  for (RuleFactor &factor : rule.factors)
    flops *= double(factor.size);
  // b, k (and g) may be split; tokens and the inside of a head may not.
  size_t free = grouped ? 3 : 2;
  for (size_t f = free; f < rule.factors.size(); ++f)
    rule.factors[f].kind = FactorKind::Whole;
  rule.linear = {{2}};
  int id = addOp(name, rule, {q, k, v}, shape(q), flops);
  tape.push_back({id, [=, this](int grad) {
                    ShardingRule back = rule;
                    back.operands.insert(back.operands.begin(),
                                         rule.results[0]);
                    back.results = rule.operands;
                    back.linear = {{0}};
                    if (grouped)
                      back.factors[2].kind = FactorKind::Sum; // of dk and dv
                    int dq = addOp(name + "/grad", back, {grad, q, k, v},
                                   shape(q), 2.5 * flops);
                    int dk = addTensor(name + "/grad_k", shape(k));
                    int dv = addTensor(name + "/grad_v", shape(v));
                    graph.ops.back().results = {dq, dk, dv};
                    gradient(q, dq);
                    gradient(k, dk);
                    gradient(v, dv);
                  }});
  return id;
}

int TrainGraph::crossEntropy(const std::string &name, int logits, int labels) {
  Shape s = shape(labels), l = shape(logits);
  ShardingRule rule = elementwiseRule({l}, l, {});
  rule.factors.back() = {l.back(), FactorKind::Decompose, 3};
  RuleTensor rows = rule.results[0];
  rows.pop_back();
  rule.operands.push_back(rows);
  rule.results = {rows};
  int id = addOp(name, rule, {logits, labels}, s);
  tape.push_back({id, [=, this](int grad) {
                    ShardingRule back = rule;
                    back.operands = {rows, rule.operands[0], rows};
                    back.results = {rule.operands[0]};
                    back.linear = {{0}};
                    gradient(logits, addOp(name + "/grad", back,
                                           {grad, logits, labels}, l));
                  }});
  return id;
}

int TrainGraph::convolution(const std::string &name, int x, int w) {
  // x [b,c,h,w], w [o,c,3,3] -> [b,o,h,w]; space is whole.
  Shape in = shape(x), k = shape(w), out = {in[0], k[0], in[2], in[3]};
  ShardingRule rule;
  rule.factors = {{in[0]},
                  {k[0]},
                  {k[1], FactorKind::Sum},
                  {in[2], FactorKind::Whole},
                  {in[3], FactorKind::Whole},
                  {k[2], FactorKind::Whole},
                  {k[3], FactorKind::Whole}};
  rule.operands = {{{0}, {2}, {3}, {4}}, {{1}, {2}, {5}, {6}}};
  rule.results = {{{0}, {1}, {3}, {4}}};
  rule.linear = {{0}, {1}};
  double flops = 2;
  for (const RuleFactor &factor : rule.factors)
    flops *= double(factor.size);
  int id = addOp(name, rule, {x, w}, out, flops);
  tape.push_back(
      {id, [=, this](int grad) {
         ShardingRule dx = rule, dw = rule;
         dx.factors[1].kind = FactorKind::Sum;
         dx.factors[2].kind = FactorKind::Parallel;
         dx.operands = {rule.results[0], rule.operands[1]};
         dx.results = {rule.operands[0]};
         gradient(x, addOp(name + "/grad_x", dx, {grad, w}, in, flops));
         dw.factors[0].kind = FactorKind::Sum;
         dw.factors[2].kind = FactorKind::Parallel;
         dw.operands = {rule.results[0], rule.operands[0]};
         dw.results = {rule.operands[1]};
         gradient(w, addOp(name + "/grad_w", dw, {grad, x}, k, flops));
       }});
  return id;
}

int TrainGraph::linear(const std::string &name, int x, int64_t out, bool bias) {
  Shape to = shape(x);
  int64_t in = to.back();
  to.back() = out;
  int w = parameter(name + ".weight", {in, out});
  std::string rows = std::string("abc").substr(0, to.size() - 1);
  int y = einsum(name, rows + "k," + "kn->" + rows + "n", x, w, to);
  if (bias)
    y = add(name + "/bias", y, parameter(name + ".bias", {out}));
  return y;
}

void TrainGraph::train(int loss) {
  graph.tensors[loss].output = true;
  phase = Phase::Backward;
  int seed = addTensor("one", shape(loss));
  graph.tensors[seed].constant = true;
  gradients[loss] = seed;
  // The backward ops put entries of their own on the tape: not wanted.
  std::vector<std::pair<int, std::function<void(int)>>> forward;
  forward.swap(tape);
  for (size_t i = forward.size(); i-- > 0;)
    if (gradients[forward[i].first] >= 0) {
      int grad = gradients[forward[i].first];
      for (size_t o = 0; o < graph.ops.size(); ++o)
        if (graph.ops[o].phase == Phase::Forward)
          for (int result : graph.ops[o].results)
            if (result == forward[i].first)
              gradientOf = int(o);
      forward[i].second(grad);
    }
  phase = Phase::Update;
  gradientOf = -1;
  for (int p : parameters)
    if (gradients[p] >= 0) {
      Shape s = shape(p);
      addOp("update/" + graph.tensors[p].name, elementwiseRule({s, s}, s, {}),
            {p, gradients[p]}, s);
      // The update changes the parameter in place.
      graph.ops.back().results.clear();
      graph.ops.back().rule.results.clear();
      graph.tensors.pop_back();
      gradients.pop_back();
    }
}

// ------------------------------------------------------------------- models

namespace {

// Pre-norm attention and feed-forward with a fused QKV projection, or separate
// projections for grouped queries.
int gptBlock(TrainGraph &g, const GptOptions &o, const std::string &name,
             int x) {
  int64_t d = o.width, e = d / o.heads, b = o.batch, t = o.tokens;
  auto norm = [&](const std::string &at, int value) {
    return g.layerNorm(at, value, g.parameter(at + ".weight", {d}),
                       g.parameter(at + ".bias", {d}));
  };
  auto flatten = [&](const std::string &at, int value) {
    return o.flat ? g.reshape(at, value, {b * t, d}) : value;
  };
  auto unflatten = [&](const std::string &at, int value) {
    return o.flat ? g.reshape(at, value, {b, t, d}) : value;
  };
  int h = flatten(name + "/flat1", norm(name + ".ln_1", x));
  int y;
  if (o.kvHeads) {
    int64_t group = o.heads / o.kvHeads;
    int q = g.linear(name + ".q", h, d, false);
    int k = g.linear(name + ".k", h, o.kvHeads * e, false);
    int v = g.linear(name + ".v", h, o.kvHeads * e, false);
    q = g.transpose(name + "/qt",
                    g.reshape(name + "/qh", q, {b, t, o.kvHeads, group, e}),
                    {0, 2, 3, 1, 4});
    k = g.transpose(name + "/kt",
                    g.reshape(name + "/kh", k, {b, t, o.kvHeads, e}),
                    {0, 2, 1, 3});
    v = g.transpose(name + "/vt",
                    g.reshape(name + "/vh", v, {b, t, o.kvHeads, e}),
                    {0, 2, 1, 3});
    y = g.transpose(name + "/yt", g.attention(name + ".attn", q, k, v),
                    {0, 3, 1, 2, 4});
  } else {
    int qkv = g.reshape(name + "/heads", g.linear(name + ".c_attn", h, 3 * d),
                        {b, t, 3, o.heads, e});
    std::vector<int> parts = g.unstack(name + "/split", qkv, 2);
    for (int &part : parts)
      part =
          g.transpose(name + "/t" + std::to_string(part), part, {0, 2, 1, 3});
    y = g.transpose(name + "/yt",
                    g.attention(name + ".attn", parts[0], parts[1], parts[2]),
                    {0, 2, 1, 3});
  }
  y = o.flat ? g.reshape(name + "/merge", y, {b * t, d})
             : g.reshape(name + "/merge", y, {b, t, d});
  y = unflatten(name + "/unflat1", g.linear(name + ".c_proj", y, d));
  x = g.add(name + "/residual1", x, y);
  h = flatten(name + "/flat2", norm(name + ".ln_2", x));
  h = g.unary(name + "/gelu", g.linear(name + ".c_fc", h, 4 * d));
  h = unflatten(name + "/unflat2", g.linear(name + ".mlp_proj", h, d));
  return g.add(name + "/residual2", x, h);
}

// Mean over the counted labels: the sum of losses over the count.
int meanLoss(TrainGraph &g, int losses, int labels) {
  int total = g.sum("loss_sum", "bt->", losses, {});
  int counted = g.unary("counted", labels);
  int count = g.sum("count", "bt->", counted, {});
  return g.divide("loss", total, count);
}

} // namespace

TrainGraph makeGpt(const GptOptions &o) {
  TrainGraph g;
  int ids = g.input("input_ids", {o.batch, o.tokens});
  int labels = g.input("labels", {o.batch, o.tokens});
  int wte = g.parameter("wte.weight", {o.vocabulary, o.width});
  int wpe = g.parameter("wpe.weight", {o.tokens, o.width});
  int x = g.add("embedded", g.embedding("wte", ids, wte), wpe);
  for (int i = 0; i < o.layers; ++i)
    x = gptBlock(g, o, "h." + std::to_string(i), x);
  x = g.layerNorm("ln_f", x, g.parameter("ln_f.weight", {o.width}),
                  g.parameter("ln_f.bias", {o.width}));
  int head =
      o.tied ? wte : g.parameter("lm_head.weight", {o.vocabulary, o.width});
  int logits = g.einsum("lm_head", "btd,vd->btv", x, head,
                        {o.batch, o.tokens, o.vocabulary});
  g.train(meanLoss(g, g.crossEntropy("cross_entropy", logits, labels), labels));
  return g;
}

TrainGraph makeMlp(int64_t batch, std::vector<int64_t> widths) {
  TrainGraph g;
  int x = g.input("x", {batch, widths[0]});
  for (size_t i = 1; i < widths.size(); ++i) {
    x = g.linear("fc" + std::to_string(i), x, widths[i]);
    if (i + 1 < widths.size())
      x = g.unary("relu" + std::to_string(i), x);
  }
  g.train(g.scale("loss", g.sum("total", "bn->", x, {})));
  return g;
}

TrainGraph makeT5(int64_t b, int64_t t, int64_t d, int64_t heads) {
  TrainGraph g;
  int64_t e = d / heads;
  auto split = [&](const std::string &name, int x) {
    return g.transpose(name + "/t", g.reshape(name + "/h", x, {b, t, heads, e}),
                       {0, 2, 1, 3});
  };
  auto attend = [&](const std::string &name, int x, int memory) {
    int norm =
        g.layerNorm(name + ".norm", x, g.parameter(name + ".norm.weight", {d}),
                    g.parameter(name + ".norm.bias", {d}));
    int source = memory < 0 ? norm : memory;
    int q = split(name + "/q", g.linear(name + ".q", norm, d, false));
    int k = split(name + "/k", g.linear(name + ".k", source, d, false));
    int v = split(name + "/v", g.linear(name + ".v", source, d, false));
    int y = g.transpose(name + "/yt", g.attention(name + ".attn", q, k, v),
                        {0, 2, 1, 3});
    y = g.linear(name + ".o", g.reshape(name + "/merge", y, {b, t, d}), d,
                 false);
    return g.add(name + "/residual", x, y);
  };
  auto feed = [&](const std::string &name, int x) {
    int h =
        g.layerNorm(name + ".norm", x, g.parameter(name + ".norm.weight", {d}),
                    g.parameter(name + ".norm.bias", {d}));
    h = g.unary(name + "/relu", g.linear(name + ".wi", h, 4 * d, false));
    return g.add(name + "/residual", x, g.linear(name + ".wo", h, d, false));
  };
  int shared = g.parameter("shared.weight", {128, d});
  int labels = g.input("labels", {b, t});
  int x = g.embedding("encoder.embed", g.input("ids", {b, t}), shared);
  x = feed("encoder.ff", attend("encoder.self", x, -1));
  int y = g.embedding("decoder.embed", g.input("decoder_ids", {b, t}), shared);
  y = attend("decoder.self", y, -1);
  y = feed("decoder.ff", attend("decoder.cross", y, x));
  int logits = g.einsum("lm_head", "btd,vd->btv", y, shared, {b, t, 128});
  g.train(meanLoss(g, g.crossEntropy("cross_entropy", logits, labels), labels));
  return g;
}

TrainGraph makeConvNet(int64_t batch) {
  TrainGraph g;
  int x = g.input("image", {batch, 3, 8, 8});
  auto conv = [&](const std::string &name, int value, int64_t out) {
    int64_t in = g.shape(value)[1];
    return g.convolution(name, value,
                         g.parameter(name + ".weight", {out, in, 3, 3}));
  };
  x = g.unary("relu1", conv("conv1", x, 16));
  int y = g.unary("relu2", conv("conv2", x, 32));
  y = conv("conv3", y, 16);
  x = g.unary("relu3", g.add("residual", x, y));
  x = g.sum("pool", "bcij->bc", x, {batch, 16});
  x = g.linear("fc", x, 10);
  g.train(g.scale("loss", g.sum("total", "bn->", x, {})));
  return g;
}

} // namespace merak::planning::test
