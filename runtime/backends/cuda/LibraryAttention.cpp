// attention and its gradient: by a fused kernel of cuDNN where it has one for
// 16-bit operands, else as matrix products around a masked softmax, one batch
// entry at a time.
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/core/DType.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>

namespace merak::cuda {

namespace {

// q, out: [b, tq, h, d]; k, v: [b, tk, hk, d]; lse: [b, h, tq].
struct Shape {
  int64_t b = 0, tq = 0, h = 0, d = 0, tk = 0, hk = 0;
  planpb::DType dtype = planpb::F32;
  bool masked = false;
  int64_t maskBatchStride = 0;
  ScoreArgs scores; // scale, causal, mask and lse strides

  uint64_t scoreCount() const { return static_cast<uint64_t>(h * tq * tk); }
  bool half() const { return dtype != planpb::F32; }
  // Scores, weights of a 16-bit type, and the same for their gradients.
  uint64_t workspace(int copies) const {
    const uint64_t wide = alignUp(scoreCount() * 4);
    const uint64_t narrow = half() ? alignUp(scoreCount() * 2) : 0;
    return copies * (wide + narrow) + kMatmulWorkspace;
  }
};

bool readShape(Request &request, size_t maskAt, const View &lse, Shape &s) {
  const View &q = request.inputs[0], &k = request.inputs[1];
  const View &v = request.inputs[2];
  if (!request.expect(q.rank() == 4 && k.rank() == 4 && v.rank() == 4,
                      "expected q, k and v of rank 4"))
    return false;
  s.b = q.shape[0], s.tq = q.shape[1], s.h = q.shape[2], s.d = q.shape[3];
  s.tk = k.shape[1], s.hk = k.shape[2];
  s.dtype = q.dtype;
  expectReal(request, q, "q");
  expectReal(request, lse, "lse");
  request.shape(k, "k", {s.b, s.tk, s.hk, s.d});
  request.shape(v, "v", {s.b, s.tk, s.hk, s.d});
  request.shape(lse, "lse", {s.b, s.h, s.tq});
  request.expect(s.hk > 0 && s.h % s.hk == 0,
                 fmt::format("{} key heads do not divide {} heads", s.hk, s.h));
  s.scores.scale = static_cast<float>(request.real("scale"));
  s.scores.causal = request.integer("causal", 0) != 0;
  s.scores.heads = s.h, s.scores.queries = s.tq, s.scores.keys = s.tk;
  s.scores.features = s.d;
  const std::string kind = request.text("mask", "none");
  if (!request.ok())
    return false;
  s.scores.lseStrides[0] = lse.strides[1];
  s.scores.lseStrides[1] = lse.strides[2];
  if (kind == "none")
    return true;
  request.expect(kind == "bool" || kind == "float",
                 fmt::format("unknown mask '{}'", kind));
  if (!request.expect(request.inputs.size() > maskAt, "the mask is missing"))
    return false;
  const View &mask = request.inputs[maskAt];
  if (kind == "bool")
    request.type(mask, "mask", planpb::BOOL);
  else
    expectReal(request, mask, "mask");
  std::vector<int64_t> strides, shape = {s.b, s.h, s.tq, s.tk};
  if (request.expect(cpu::broadcastStrides(mask, shape, strides),
                     "the mask does not broadcast to the scores")) {
    s.masked = s.scores.masked = true;
    s.maskBatchStride = strides[0];
    std::copy(strides.begin() + 1, strides.end(), s.scores.maskStrides);
  }
  return request.ok();
}

// All of q's kind have one type: products have no other.
void sameType(Request &request, const View &view, const char *what,
              const Shape &s) {
  request.type(view, what, s.dtype);
}

char *at(const View &view, int64_t batch) {
  const int64_t size = runtime::dtypeSize(view.dtype);
  return static_cast<char *>(view.data) + batch * view.strides[0] * size;
}

// A matrix for each head.
struct Heads {
  char *data;
  Type type;
  int64_t rowStride, columnStride, headStride, heads;

  // [t, heads, d] of a batch entry of a [b, t, heads, d] view, by head.
  static Heads of(const View &view, int64_t batch) {
    return {at(view, batch), typeOf(view.dtype), view.strides[1],
            view.strides[3], view.strides[2],    view.shape[2]};
  }
  Heads transposed() const {
    return {data, type, columnStride, rowStride, headStride, heads};
  }
  void skip(int64_t head) {
    const int64_t size = type == Type::F32 ? 4 : 2;
    data += head * headStride * size;
  }
};

class Products {
public:
  Products(Launcher &launcher, void *workspace)
      : launcher_(launcher), workspace_(workspace) {}

  // c = alpha a b (+ c) for every head: a [m, k], b [k, n], c [m, n]. Where
  // an operand has fewer heads, heads / its heads of the others share one; if
  // it is c, their products are added up.
  Status run(int64_t m, int64_t n, int64_t k, Heads a, Heads b, Heads c,
             float alpha, bool adds) {
    const int64_t heads = std::max(a.heads, b.heads);
    if (m == 0 || n == 0 || heads == 0)
      return {};
    if (k == 0)
      return adds ? Status() : clear(m, n, c);
    const int64_t groups = std::min({a.heads, b.heads, c.heads});
    const int64_t shared = heads / groups;
    if (shared == 1)
      return batch(m, n, k, a, b, c, heads, alpha, adds);
    if (c.heads == groups) { // sums over the heads of a group, in order
      Heads x = a, y = b;
      x.headStride *= a.heads == groups ? 1 : shared;
      y.headStride *= b.heads == groups ? 1 : shared;
      for (int64_t i = 0; i < shared; ++i) {
        Heads p = x, q = y;
        if (a.heads != groups)
          p.data += i * a.headStride * (a.type == Type::F32 ? 4 : 2);
        if (b.heads != groups)
          q.data += i * b.headStride * (b.type == Type::F32 ? 4 : 2);
        MERAK_RETURN_IF_ERROR(
            batch(m, n, k, p, q, c, groups, alpha, adds || i > 0));
      }
      return {};
    }
    for (int64_t g = 0; g < groups; ++g) {
      Heads x = a, y = b, z = c;
      for (Heads *operand : {&x, &y, &z})
        if (operand->heads == groups) {
          operand->skip(g);
          operand->headStride = 0;
        } else {
          operand->skip(g * shared);
        }
      MERAK_RETURN_IF_ERROR(batch(m, n, k, x, y, z, shared, alpha, adds));
    }
    return {};
  }

private:
  Status batch(int64_t m, int64_t n, int64_t k, const Heads &a, const Heads &b,
               const Heads &c, int64_t count, float alpha, bool adds) {
    Matmul product;
    bool swapped = false;
    if (!blasProduct({m, k, a.rowStride, a.columnStride},
                     {k, n, b.rowStride, b.columnStride},
                     {m, n, c.rowStride, c.columnStride}, product, swapped))
      return Status::error("attention: operands that no product addresses");
    product.batch = count;
    product.strideA = (swapped ? b : a).headStride;
    product.strideB = (swapped ? a : b).headStride;
    product.strideC = c.headStride;
    product.ab = a.type;
    product.c = c.type;
    return launcher_.multiply(product,
                              {(swapped ? b : a).data, (swapped ? a : b).data,
                               c.data, alpha, adds ? 1.0f : 0.0f},
                              workspace_);
  }
  Status clear(int64_t m, int64_t n, const Heads &c) {
    Loops<1> all;
    all.rank = 3;
    all.count = c.heads * m * n;
    const int64_t sizes[] = {c.heads, m, n};
    const int64_t strides[] = {c.headStride, c.rowStride, c.columnStride};
    std::copy_n(sizes, 3, all.sizes);
    std::copy_n(strides, 3, all.strides[0]);
    return runClear(launcher_, all, {c.data, c.type});
  }

  Launcher &launcher_;
  void *workspace_;
};

// Scores and what becomes of them, [h, tq, tk].
struct Scores {
  Ref wide, narrow; // f32, and in the type of the operands
  Heads heads(const Ref &r, const Shape &s) const {
    return {r.data, r.type, s.tk, 1, s.tq * s.tk, s.h};
  }
};

Scores takeScores(Launcher &launcher, const Shape &s) {
  Scores scores;
  scores.wide = {launcher.workspace(s.scoreCount() * 4), Type::F32};
  scores.narrow =
      s.half() ? Ref{launcher.workspace(s.scoreCount() * 2), typeOf(s.dtype)}
               : scores.wide;
  return scores;
}

void bind(ScoreArgs &args, const Shape &s, const View &lse, const View *mask,
          int64_t batch) {
  args.lse = ref(lse);
  args.lse.data = at(lse, batch);
  if (mask && s.masked) {
    args.mask = ref(*mask);
    args.mask.data +=
        batch * s.maskBatchStride * runtime::dtypeSize(mask->dtype);
  }
}

Status forward(const Shape &s, const KernelCall &call, Launcher &launcher) {
  const View &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2];
  const View *mask = call.inputs.size() > 3 ? &call.inputs[3] : nullptr;
  const Scores scores = takeScores(launcher, s);
  Products products(launcher, launcher.workspace(kMatmulWorkspace));
  for (int64_t b = 0; b < s.b; ++b) {
    MERAK_RETURN_IF_ERROR(products.run(
        s.tq, s.tk, s.d, Heads::of(q, b), Heads::of(k, b).transposed(),
        scores.heads(scores.wide, s), s.scores.scale, false));
    ScoreArgs args = s.scores;
    args.scores = scores.wide;
    args.weights = scores.narrow;
    args.accumulate = call.accumulate;
    bind(args, s, call.outputs[1], mask, b);
    MERAK_RETURN_IF_ERROR(
        launcher.rows<KernelId::AttentionWeights>(args, s.h * s.tq, s.tk));
    MERAK_RETURN_IF_ERROR(products.run(
        s.tq, s.d, s.tk, scores.heads(scores.narrow, s), Heads::of(v, b),
        Heads::of(call.outputs[0], b), 1, call.accumulate));
  }
  return {};
}

Status backward(const Shape &s, const KernelCall &call, Launcher &launcher) {
  const View &q = call.inputs[0], &k = call.inputs[1], &v = call.inputs[2];
  const View &out = call.inputs[3], &dout = call.inputs[5];
  const View *mask = call.inputs.size() > 6 ? &call.inputs[6] : nullptr;
  const Scores p = takeScores(launcher, s), dp = takeScores(launcher, s);
  Products products(launcher, launcher.workspace(kMatmulWorkspace));
  const bool adds = call.accumulate;
  for (int64_t b = 0; b < s.b; ++b) {
    const Heads hq = Heads::of(q, b), hk = Heads::of(k, b);
    const Heads hv = Heads::of(v, b), hd = Heads::of(dout, b);
    MERAK_RETURN_IF_ERROR(products.run(s.tq, s.tk, s.d, hq, hk.transposed(),
                                       p.heads(p.wide, s), s.scores.scale,
                                       false));
    MERAK_RETURN_IF_ERROR(products.run(s.tq, s.tk, s.d, hd, hv.transposed(),
                                       dp.heads(dp.wide, s), 1, false));
    ScoreArgs args = s.scores;
    args.scores = p.wide;
    args.weights = p.narrow;
    args.gradients = dp.wide;
    args.scoreGradients = dp.narrow;
    args.out = ref(out);
    args.out.data = at(out, b);
    args.dout = ref(dout);
    args.dout.data = at(dout, b);
    for (int i = 0; i < 3; ++i) {
      args.outStrides[i] = out.strides[i + 1];
      args.doutStrides[i] = dout.strides[i + 1];
    }
    bind(args, s, call.inputs[4], mask, b);
    MERAK_RETURN_IF_ERROR(
        launcher.rows<KernelId::AttentionGrad>(args, s.h * s.tq, s.tk));
    const Heads weights = p.heads(p.narrow, s), ds = dp.heads(dp.narrow, s);
    MERAK_RETURN_IF_ERROR(products.run(s.tq, s.d, s.tk, ds, hk,
                                       Heads::of(call.outputs[0], b), 1, adds));
    MERAK_RETURN_IF_ERROR(products.run(s.tk, s.d, s.tq, ds.transposed(), hq,
                                       Heads::of(call.outputs[1], b), 1, adds));
    MERAK_RETURN_IF_ERROR(products.run(s.tk, s.d, s.tq, weights.transposed(),
                                       hd, Heads::of(call.outputs[2], b), 1,
                                       adds));
  }
  return {};
}

// ------------------------------------------------- the library's own kernel

// [b, t, h, d] as [b, h, t, d].
FusedTensor byHead(const View &view) { return fusedTensor(view, {0, 2, 1, 3}); }

// False if the operands are none that such kernels take: repeated by strides of
// 0, empty, of 32 bits, queries without keys. Nor does a mask go there: a row
// that it hides from all keys is zero here and not a number in cuDNN, whose
// backward pass with masks has been wrong at some lengths besides.
bool readFused(const Request &request, const Shape &s, const View &lse,
               FusedAttention &a) {
  if (!s.half() || request.instruction.accumulate() || s.d % 8 != 0 ||
      s.b * s.tq * s.tk * s.h == 0 || (s.scores.causal && s.tq > s.tk) ||
      s.masked)
    return false;
  auto repeats = [](const View &view) {
    for (size_t d = 0; d < view.shape.size(); ++d)
      if (view.shape[d] > 1 && view.strides[d] == 0)
        return true;
    return false;
  };
  for (const View &input : request.inputs)
    if (repeats(input))
      return false;
  a.causal = s.scores.causal;
  a.scale = s.scores.scale;
  a.q = byHead(request.inputs[0]);
  a.k = byHead(request.inputs[1]);
  a.v = byHead(request.inputs[2]);
  if (!lse.dense() || lse.dtype != planpb::F32)
    return false;
  a.lse = {Type::F32, {s.b, s.h, s.tq, 1}, {s.h * s.tq, s.tq, 1, 1}};
  return true;
}

KernelResult createAttention(Request &request, const Device &device) {
  Shape s;
  const bool masked = request.text("mask", "none") != "none";
  if (!request.counts(masked ? 4 : 3, 2) ||
      !readShape(request, 3, request.outputs[1], s))
    return request.status();
  request.shape(request.outputs[0], "out", {s.b, s.tq, s.h, s.d});
  sameType(request, request.inputs[1], "k", s);
  sameType(request, request.inputs[2], "v", s);
  sameType(request, request.outputs[0], "out", s);
  if (!request.ok())
    return request.status();
  KernelResult other =
      makeKernel([s](const KernelCall &call,
                     Launcher &launcher) { return forward(s, call, launcher); },
                 s.workspace(1));
  FusedAttention a;
  if (!readFused(request, s, request.outputs[1], a))
    return other;
  a.out = byHead(request.outputs[0]);
  return withFused(device.fused(a), {0, 1, 2, ~0, ~1}, std::move(other));
}

KernelResult createAttentionGrad(Request &request, const Device &device) {
  Shape s;
  const bool masked = request.text("mask", "none") != "none";
  if (!request.counts(masked ? 7 : 6, 3) ||
      !readShape(request, 6, request.inputs[4], s))
    return request.status();
  request.shape(request.inputs[3], "out", {s.b, s.tq, s.h, s.d});
  request.shape(request.inputs[5], "dout", {s.b, s.tq, s.h, s.d});
  request.shape(request.outputs[0], "dq", {s.b, s.tq, s.h, s.d});
  request.shape(request.outputs[1], "dk", {s.b, s.tk, s.hk, s.d});
  request.shape(request.outputs[2], "dv", {s.b, s.tk, s.hk, s.d});
  const std::pair<const View *, const char *> same[] = {
      {&request.inputs[1], "k"},    {&request.inputs[2], "v"},
      {&request.inputs[5], "dout"}, {&request.outputs[0], "dq"},
      {&request.outputs[1], "dk"},  {&request.outputs[2], "dv"}};
  for (const auto &[view, what] : same)
    sameType(request, *view, what, s);
  expectReal(request, request.inputs[3], "out");
  if (!request.ok())
    return request.status();
  KernelResult other = makeKernel(
      [s](const KernelCall &call, Launcher &launcher) {
        return backward(s, call, launcher);
      },
      s.workspace(2));
  FusedAttention a;
  if (request.inputs[3].dtype != s.dtype ||
      !readFused(request, s, request.inputs[4], a))
    return other;
  a.backward = true;
  a.out = byHead(request.inputs[3]);
  a.dout = byHead(request.inputs[5]);
  a.dq = byHead(request.outputs[0]);
  a.dk = byHead(request.outputs[1]);
  a.dv = byHead(request.outputs[2]);
  return withFused(device.fused(a), {0, 1, 2, 3, 4, 5, ~0, ~1, ~2},
                   std::move(other));
}

// ------------------------------------------------------ a part of the queries

// Which part of all queries is here is known at the call. Each part has a
// kernel of its own, on the keys that its last query sees: there the last query
// and the last key are aligned, as every library has it. Of 8 queries and 8
// keys in two parts the first has 4 keys and the second 8.
class Parts : public Kernel {
public:
  explicit Parts(int64_t queries) : queries_(queries) {}

  // What no query of a part sees is zero.
  struct Part {
    std::unique_ptr<Kernel> kernel;
    struct Unseen {
      size_t output;
      int64_t begin; // bytes
      Loops<1> all;
    };
    std::vector<Unseen> unseen;
  };
  void add(Part part) {
    workspace = std::max(workspace, part.kernel->workspace);
    parts_.push_back(std::move(part));
  }

  Status run(const KernelCall &call, Launcher &launcher) override {
    const int64_t index = cpu::scalarInteger(call, 0) / queries_;
    if (index < 0 || index >= static_cast<int64_t>(parts_.size()))
      return Status::error(
          fmt::format("attention: part {} of {}", index, parts_.size()));
    Part &part = parts_[static_cast<size_t>(index)];
    for (const Part::Unseen &unseen : part.unseen) {
      if (call.accumulate)
        break;
      Ref to = ref(call.outputs[unseen.output]);
      to.data += unseen.begin;
      MERAK_RETURN_IF_ERROR(runClear(launcher, unseen.all, to));
    }
    return part.kernel->run(call, launcher);
  }

private:
  int64_t queries_; // of a part
  std::vector<Part> parts_;
};

View firstKeys(View view, int64_t dim, int64_t keys) {
  auto &size = view.shape[static_cast<size_t>(dim)];
  size = std::min(size, keys); // a mask may be broadcast
  return view;
}

// Views of the keys from `begin` on, [b, tk, hk, d], to be filled with zeros.
Parts::Part::Unseen unseen(Request &request, size_t output, int64_t begin) {
  View rest = request.outputs[output];
  rest.shape[1] -= begin;
  Nest nest(rest.shape, {rest.strides});
  nest.sortBy(0);
  return {output, begin * rest.strides[1] * runtime::dtypeSize(rest.dtype),
          makeLoops<1>(request, nest)};
}

using Create = KernelResult (*)(Request &, const Device &);

// The mask is input `maskAt`; outputs from `keyed` on are of keys.
KernelResult byPart(Request &request, const Device &device, Create create,
                    size_t maskAt, size_t keyed) {
  const bool readable =
      request.inputs.size() >= maskAt && request.inputs[0].rank() == 4 &&
      request.inputs[1].rank() == 4 && request.inputs[2].rank() == 4;
  if (!readable || !request.has("queries") || request.integer("causal", 0) == 0)
    return create(request, device);
  const int64_t here = request.inputs[0].shape[1];
  const int64_t keys = request.inputs[1].shape[1];
  const int64_t all = request.integer("queries");
  if (!request.expect(here > 0 && all % here == 0,
                      fmt::format("{} queries are no part of {}", here, all)))
    return request.status();
  auto parts = std::make_unique<Parts>(here);
  for (int64_t end = here; end <= all; end += here) {
    const int64_t seen = std::clamp<int64_t>(end + keys - all, 0, keys);
    std::vector<View> inputs(request.inputs.begin(), request.inputs.end());
    std::vector<View> outputs(request.outputs.begin(), request.outputs.end());
    inputs[1] = firstKeys(inputs[1], 1, seen);
    inputs[2] = firstKeys(inputs[2], 1, seen);
    if (inputs.size() > maskAt && inputs[maskAt].rank() > 0)
      inputs[maskAt] =
          firstKeys(inputs[maskAt], inputs[maskAt].rank() - 1, seen);
    Parts::Part part;
    for (size_t output = keyed; output < outputs.size(); ++output) {
      if (seen < keys)
        part.unseen.push_back(unseen(request, output, seen));
      outputs[output] = firstKeys(outputs[output], 1, seen);
    }
    Request inner(request.instruction, inputs, outputs);
    KernelResult kernel = create(inner, device);
    if (!kernel.ok())
      return kernel.status();
    part.kernel = std::move(*kernel);
    parts->add(std::move(part));
  }
  return std::unique_ptr<Kernel>(std::move(parts));
}

KernelResult createForward(Request &request, const Device &device) {
  return byPart(request, device, createAttention, 3, 2);
}
KernelResult createBackward(Request &request, const Device &device) {
  return byPart(request, device, createAttentionGrad, 6, 1);
}

constexpr KernelEntry kEntries[] = {
    {"attention", createForward, Strides::Rows},
    {"attention_grad", createBackward, Strides::Rows},
};

} // namespace

std::span<const KernelEntry> attentionKernels() { return kEntries; }

} // namespace merak::cuda
