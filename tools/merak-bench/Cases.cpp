#include "tools/merak-bench/Cases.h"

#include "passes/CostModel/PlanCosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

using namespace merak::planpb;

namespace merak::bench {
namespace {

using Shape = std::vector<int64_t>;
using Attrs = std::map<std::string, std::string>;

class Grid {
public:
  explicit Grid(const GridSizes &sizes) : sizes_(sizes) {
    program_.add_procedures()->set_name("grid");
    program_.add_streams()->set_name("compute");
  }
  Program take() { return std::move(program_); }

  void all() {
    products();
    attention();
    convolutions();
    rows();
    moves();
    updates();
  }

private:
  // -------------------------------------------------------------- building

  uint32_t buffer(const Shape &shape, DType dtype = F32) {
    Buffer *buffer = program_.add_buffers();
    buffer->set_dtype(dtype);
    int64_t elements = 1;
    for (int64_t size : shape) {
      buffer->add_shape(size);
      elements *= size;
    }
    buffer->set_bytes(uint64_t(elements * dtypeSize(dtype)));
    return uint32_t(program_.buffers_size() - 1);
  }
  static Operand view(uint32_t buffer, const Shape &shape, const Shape &strides,
                      int64_t offset = 0) {
    Operand operand;
    operand.set_buffer(buffer);
    operand.set_offset(offset);
    operand.mutable_shape()->Add(shape.begin(), shape.end());
    operand.mutable_strides()->Add(strides.begin(), strides.end());
    return operand;
  }
  Operand dense(const Shape &shape, DType dtype = F32) {
    Shape strides(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;)
      strides[d - 1] = strides[d] * shape[d];
    return view(buffer(shape, dtype), shape, strides);
  }

  Instruction &add(const std::string &op, const Attrs &attrs,
                   const std::vector<Operand> &inputs,
                   const std::vector<Operand> &outputs,
                   bool accumulate = false) {
    Instruction *inst = program_.mutable_procedures(0)->add_instructions();
    inst->set_kind(Instruction::LIBRARY);
    inst->set_op(op);
    inst->set_accumulate(accumulate);
    for (const auto &[key, value] : attrs)
      (*inst->mutable_attrs())[key] = value;
    double bytes = 0;
    auto touch = [&](const Operand &operand, int times) {
      bytes += times * double(elementCount(operand)) *
               dtypeSize(program_.buffers(int(operand.buffer())).dtype());
    };
    for (const Operand &operand : inputs) {
      *inst->add_inputs() = operand;
      touch(operand, 1);
    }
    for (const Operand &operand : outputs) {
      *inst->add_outputs() = operand;
      touch(operand, accumulate ? 2 : 1);
    }
    inst->set_bytes(bytes);
    return *inst;
  }
  static void integer(Instruction &inst, int64_t value) {
    inst.add_scalars()->set_i(value);
  }
  static void real(Instruction &inst, double value) {
    inst.add_scalars()->set_f(value);
  }

  // ----------------------------------------------------------------- grids

  // Forward, gradient of the data, gradient of the weights, which is f32.
  void products() {
    for (DType type : sizes_.types)
      for (int64_t m : sizes_.rows)
        for (int64_t k : sizes_.sides)
          for (int64_t n : sizes_.sides) {
            const double flops = 2.0 * double(m * n * k);
            if (flops > sizes_.mostFlops)
              continue;
            auto product = [&](const char *equation, const Shape &a,
                               const Shape &b, Operand out, bool sums) {
              add("einsum", {{"equation", equation}},
                  {dense(a, type), dense(b, type)}, {out}, sums)
                  .set_flops(flops);
            };
            product("mk,kn->mn", {m, k}, {k, n}, dense({m, n}, type), false);
            product("mn,kn->mk", {m, n}, {k, n}, dense({m, k}, type), false);
            product("mk,mn->kn", {m, k}, {m, n}, dense({k, n}), true);
          }
  }

  // Causal or not, on a packed [b, t, 3, h, d] tensor, as models have it.
  void attention() {
    for (DType type : sizes_.types)
      for (int64_t t : sizes_.sequences)
        for (int64_t d : sizes_.headElements)
          for (const char *causal : {"0", "1"})
            attention(type, t, d, causal);
  }
  void attention(DType type, int64_t t, int64_t d, const char *causal) {
    const int64_t b = sizes_.attentionBatch, h = sizes_.heads;
    uint32_t packed = buffer({b, t, 3, h, d}, type);
    uint32_t gradient = buffer({b, t, 3, h, d}, type);
    auto part = [&](uint32_t from, int64_t index) {
      return view(from, {b, t, h, d}, {t * 3 * h * d, 3 * h * d, d, 1},
                  index * h * d);
    };
    Operand out = dense({b, t, h, d}, type), lse = dense({b, h, t});
    Attrs attrs = {{"scale", "0.125"}, {"causal", causal}, {"mask", "none"}};
    add("attention", attrs, {part(packed, 0), part(packed, 1), part(packed, 2)},
        {out, lse});
    add("attention_grad", attrs,
        {part(packed, 0), part(packed, 1), part(packed, 2), out, lse,
         dense({b, t, h, d}, type)},
        {part(gradient, 0), part(gradient, 1), part(gradient, 2)});
  }

  void convolutions() {
    for (DType type : sizes_.types)
      for (int64_t channels : sizes_.channels)
        for (int64_t size : sizes_.images) {
          const int64_t batch = sizes_.convolutionBatch;
          Attrs attrs = {{"strides", "1,1"},
                         {"pads", "1,1,1,1"},
                         {"dilations", "1,1"},
                         {"group", "1"},
                         {"bias", "0"}};
          Operand x = dense({batch, channels, size, size}, type);
          Operand w = dense({channels, channels, 3, 3}, type);
          Operand y = dense({batch, channels, size, size}, type);
          add("conv", attrs, {x, w}, {y});
          add("conv_grad_input", attrs, {y, w}, {x});
          add("conv_grad_weight", attrs, {x, y}, {w});
        }
  }

  void rows() {
    const DType type = sizes_.types.front();
    for (const Shape &shape : sizes_.tables) {
      const int64_t n = shape[0], d = shape[1];
      Operand x = dense(shape, type), y = dense(shape, type),
              dx = dense(shape, type);
      Operand mean = dense({n}), rstd = dense({n});
      add("softmax", {{"axis", "1"}}, {x}, {y});
      add("softmax_grad", {{"axis", "1"}}, {x, y}, {dx});
      Attrs norm = {{"axis", "1"}, {"scale", "0"}, {"bias", "0"}};
      add("layer_norm", norm, {x}, {y, mean, rstd});
      add("layer_norm_grad", norm, {y, x, mean, rstd}, {dx});
      add("reduce_sum", {{"axes", "0"}}, {x}, {dense({1, d})}, true);
      Operand labels = dense({n}, I64), loss = dense({n}), lse = dense({n});
      add("softmax_cross_entropy", {}, {x, labels}, {loss, lse});
      integer(
          add("softmax_cross_entropy_grad", {}, {x, labels, lse, loss}, {dx}),
          0);
      integer(add("gather", {{"axis", "0"}}, {x, labels}, {y}), 0);
      integer(add("scatter_add", {{"axis", "0"}}, {y, labels}, {dense(shape)},
                  true),
              0);
    }
  }

  void moves() {
    const DType type = sizes_.types.front();
    for (int64_t n : sizes_.elements) {
      const int64_t side = 64, rest = n / side;
      add("copy", {}, {dense({n}, type)}, {dense({n}, type)});
      add("copy", {}, {dense({n}, type)}, {dense({n})}, true);
      // A slice of packed columns, and the transposed walk.
      add("copy", {},
          {view(buffer({rest, 3, side}, type), {rest, side}, {3 * side, 1})},
          {dense({rest, side}, type)});
      real(add("fill", {}, {}, {dense({n})}), 0);
      add("square_sum", {}, {dense({n})}, {dense({1})});
    }
  }

  void updates() {
    for (int64_t n : sizes_.elements) {
      Attrs adam = {{"beta1", "0.9"},
                    {"beta2", "0.999"},
                    {"eps", "1e-8"},
                    {"weight_decay", "0.01"},
                    {"clip", "0"}};
      Instruction &adamw = add("adamw_update", adam, {dense({n})},
                               {dense({n}), dense({n}), dense({n})});
      real(adamw, 1e-3);
      integer(adamw, 1);
      Attrs sgd = {{"momentum", "0"},
                   {"dampening", "0"},
                   {"nesterov", "0"},
                   {"weight_decay", "0"},
                   {"clip", "0"}};
      Instruction &plain = add("sgd_update", sgd, {dense({n})}, {dense({n})});
      real(plain, 1e-3);
      integer(plain, 1);
    }
  }

  const GridSizes &sizes_;
  Program program_;
};

std::string shapes(const google::protobuf::RepeatedPtrField<Operand> &list) {
  std::string text;
  for (const Operand &operand : list)
    text += fmt::format("{}{}", text.empty() ? "" : ",",
                        fmt::join(operand.shape(), "x"));
  return text;
}

std::string keyOf(const Program &program, const Instruction &inst) {
  const bool generated = inst.kind() == Instruction::KERNEL;
  const costmodel::Kernel work = costmodel::kernelOf(program, inst);
  std::string key = fmt::format(
      "{} {}->{}{}", generated ? inst.op() : work.name, shapes(inst.inputs()),
      shapes(inst.outputs()), inst.accumulate() ? "+" : "");
  if (!generated && work.dtype != "f32")
    key += fmt::format(" {}", work.dtype);
  return key;
}

// A library kernel of a plan: what it is asked for beside its shapes.
std::string requestOf(const Instruction &inst) {
  std::map<std::string, std::string> sorted(inst.attrs().begin(),
                                            inst.attrs().end());
  std::string text;
  for (const auto &[name, value] : sorted)
    text += fmt::format(" {}={}", name, value);
  return text;
}

} // namespace

namespace {

// In pairs around the capacities of a second-level cache of 2 MiB, of the share
// of a last-level one that a core of a large server has, and of the whole of
// it, since between them times change at once, not bit by bit.
const Shape kHostDistances{1 << 20,  3 << 20,   20 << 20,
                           48 << 20, 128 << 20, 384 << 20};
// Of a GPU, whose cache of 40 or 50 MiB has two halves.
const Shape kDeviceDistances{8 << 20, 32 << 20, 256 << 20};

} // namespace

const GridSizes &hostGrid(bool quick) {
  static const GridSizes kQuick{.rows = {64, 256, 1024},
                                .sides = {64, 256, 1024},
                                .mostFlops = 3e9,
                                .attentionBatch = 2,
                                .heads = 4,
                                .sequences = {64, 128, 256},
                                .headElements = {32, 64},
                                .convolutionBatch = 8,
                                .channels = {16},
                                .images = {16},
                                .tables = {{64, 64}, {256, 256}, {1024, 1024}},
                                .elements = {64, 4096, 65536, 1048576},
                                .types = {F32},
                                .distances = kHostDistances};
  static const GridSizes kWhole{
      .rows = {16, 64, 256, 1024, 4096},
      .sides = {32, 128, 512, 2048},
      .mostFlops = 3e9,
      .attentionBatch = 2,
      .heads = 4,
      .sequences = {32, 64, 128, 256, 512},
      .headElements = {16, 32, 64, 128},
      .convolutionBatch = 8,
      .channels = {8, 16, 64},
      .images = {8, 16, 32},
      .tables = {{32, 32},
                 {64, 128},
                 {256, 256},
                 {512, 512},
                 {1024, 1024},
                 {4096, 1024}},
      .elements = {64, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304},
      .types = {F32},
      .distances = kHostDistances};
  return quick ? kQuick : kWhole;
}

const GridSizes &deviceGrid(bool quick) {
  static const GridSizes kQuick{
      .rows = {1024, 8192},
      .sides = {256, 1024, 4096},
      .mostFlops = 3e11,
      .attentionBatch = 4,
      .heads = 16,
      .sequences = {512, 1024, 2048},
      .headElements = {64, 128},
      .convolutionBatch = 32,
      .channels = {64, 256},
      .images = {14, 56},
      .tables = {{1024, 1024}, {8192, 1024}, {8192, 50304}},
      .elements = {64, 65536, 1 << 20, 1 << 24, 1 << 26},
      .types = {BF16, F32},
      .distances = kDeviceDistances};
  static const GridSizes kWhole{.rows = {64, 512, 4096, 16384},
                                .sides = {64, 256, 1024, 4096, 16384},
                                .mostFlops = 1.2e12,
                                .attentionBatch = 4,
                                .heads = 16,
                                .sequences = {256, 512, 1024, 2048, 4096, 8192},
                                .headElements = {64, 128},
                                .convolutionBatch = 32,
                                .channels = {64, 128, 256, 512},
                                .images = {7, 14, 28, 56},
                                .tables = {{128, 128},
                                           {1024, 1024},
                                           {8192, 1024},
                                           {8192, 8192},
                                           {8192, 50304}},
                                .elements = {64, 4096, 65536, 1 << 18, 1 << 20,
                                             1 << 22, 1 << 24, 1 << 26},
                                .types = {BF16, F32},
                                .distances = kDeviceDistances};
  return quick ? kQuick : kWhole;
}

Program libraryProgram(const GridSizes &sizes) {
  Grid grid(sizes);
  grid.all();
  return grid.take();
}

std::vector<Case> casesOf(const Program &program) {
  std::vector<Case> cases;
  for (const Instruction &inst : program.procedures(0).instructions())
    cases.push_back({&program, &inst, keyOf(program, inst), {}});
  return cases;
}

std::vector<Case> casesOf(const LoadedPlan &plan, bool library) {
  constexpr double kLeastBytes = 1024;
  const std::string kernels = plan.dir + "/" + plan.file.kernels();
  std::vector<Case> cases;
  std::set<std::string> known;
  for (const Program &program : plan.programs)
    for (const Procedure &procedure : program.procedures())
      for (const Instruction &inst : procedure.instructions()) {
        const bool generated = inst.kind() == Instruction::KERNEL;
        if (!generated && !(library && inst.kind() == Instruction::LIBRARY))
          continue;
        std::string key = keyOf(program, inst);
        if (!generated)
          key += requestOf(inst);
        if (report::instructionBytes(program, inst) >= kLeastBytes &&
            known.insert(generated ? inst.op() : key).second)
          cases.push_back({&program, &inst, key, generated ? kernels : ""});
      }
  return cases;
}

} // namespace merak::bench
