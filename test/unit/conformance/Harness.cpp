#include "test/unit/conformance/Harness.h"

#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace merak::conformance {

using runtime::View;

int64_t elements(const Shape &shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<>());
}

Tensor zeros(const Shape &shape, planpb::DType dtype) {
  return {dtype, shape, std::vector<double>(elements(shape), 0.0)};
}

// Writes a value as an element of the type.
void encode(planpb::DType dtype, double value, void *to) {
  auto put = [&](auto x) { std::memcpy(to, &x, sizeof(x)); };
  switch (dtype) {
  case planpb::F32:
    return put(static_cast<float>(value));
  case planpb::F64:
    return put(value);
  case planpb::I64:
    return put(static_cast<int64_t>(value));
  case planpb::I32:
    return put(static_cast<int32_t>(value));
  case planpb::BOOL:
    return put(static_cast<uint8_t>(value != 0));
  case planpb::BF16:
    return put(runtime::floatToBf16(static_cast<float>(value)));
  case planpb::F16:
    return put(runtime::floatToF16(static_cast<float>(value)));
  case planpb::U8:
    return put(static_cast<uint8_t>(value));
  default:
    return put(static_cast<int8_t>(value));
  }
}

double decode(planpb::DType dtype, const void *from) {
  auto get = [&](auto x) {
    std::memcpy(&x, from, sizeof(x));
    return x;
  };
  switch (dtype) {
  case planpb::F32:
    return get(float{});
  case planpb::F64:
    return get(double{});
  case planpb::I64:
    return static_cast<double>(get(int64_t{}));
  case planpb::I32:
    return get(int32_t{});
  case planpb::BOOL:
  case planpb::U8:
    return get(uint8_t{});
  case planpb::BF16:
    return runtime::bf16ToFloat(get(uint16_t{}));
  case planpb::F16:
    return runtime::f16ToFloat(get(uint16_t{}));
  default:
    return get(int8_t{});
  }
}

int64_t Placed::at(int64_t index) const {
  int64_t position = offset;
  for (size_t d = view.shape.size(); d-- > 0;) {
    position += index % view.shape[d] * view.strides[d];
    index /= view.shape[d];
  }
  return position;
}

Placed place(const Tensor &tensor, MemoryLayout layout, bool isInput) {
  Placed placed;
  int64_t width = runtime::dtypeSize(tensor.dtype);
  View &view = placed.view;
  view.dtype = tensor.dtype;
  view.shape = tensor.shape;
  size_t rank = tensor.shape.size();
  view.strides.assign(rank, 0);
  int64_t step = 1;
  for (size_t i = 0; i < rank; ++i) {
    size_t d = layout == MemoryLayout::Reversed ? i : rank - 1 - i;
    view.strides[d] = step;
    step *= tensor.shape[d];
    if (layout == MemoryLayout::Padded)
      step += 3;
  }
  if (layout == MemoryLayout::Broadcast && isInput && rank > 0)
    view.strides[0] = 0;
  placed.offset = layout == MemoryLayout::Unaligned ? 1 : 0;
  int64_t last = placed.offset;
  for (size_t d = 0; d < rank; ++d)
    last += std::max<int64_t>(tensor.shape[d] - 1, 0) * view.strides[d];
  // One element more than needed, a gap whose content must stay.
  placed.bytes.assign(static_cast<size_t>((last + 2) * width), kGap);
  for (int64_t i = 0; i < tensor.size(); ++i)
    encode(tensor.dtype, tensor.v[i], &placed.bytes[placed.at(i) * width]);
  view.data = placed.bytes.data() + placed.offset * width;
  return placed;
}

void roundToType(Tensor &tensor) {
  unsigned char word[8];
  for (double &value : tensor.v) {
    encode(tensor.dtype, value, word);
    value = decode(tensor.dtype, word);
  }
}

Tensor random(const Shape &shape, unsigned seed, double low, double high,
              planpb::DType dtype) {
  Tensor tensor = zeros(shape, dtype);
  std::mt19937 engine(seed * 7919 + 17);
  bool floating = dtype == planpb::F32 || dtype == planpb::F64 ||
                  dtype == planpb::F16 || dtype == planpb::BF16;
  for (double &value : tensor.v) {
    double unit = static_cast<double>(engine()) / 4294967296.0;
    value = low + (high - low) * unit;
    if (!floating)
      value = std::floor(value);
  }
  roundToType(tensor);
  return tensor;
}

Tensor integers(const Shape &shape, const std::vector<double> &values,
                planpb::DType dtype) {
  Tensor tensor = zeros(shape, dtype);
  for (int64_t i = 0; i < tensor.size(); ++i)
    tensor.v[i] = values[i % values.size()];
  return tensor;
}

const char *layoutName(MemoryLayout layout) {
  const char *names[] = {"dense", "unaligned", "padded", "reversed",
                         "broadcast"};
  return names[static_cast<int>(layout)];
}

Case forLayout(Case c, MemoryLayout layout) {
  if (layout == MemoryLayout::Broadcast)
    for (Tensor &input : c.inputs) {
      if (input.shape.empty() || input.shape[0] == 0)
        continue;
      int64_t row = input.size() / input.shape[0];
      for (int64_t i = row; i < input.size(); ++i)
        input.v[i] = input.v[i % row];
    }
  if (c.derive)
    c.derive(c);
  return c;
}

BackendMaker &backendMaker() {
  static BackendMaker maker = [](runtime::ThreadPool &pool) {
    return std::make_unique<cpu::CpuBackend>(pool);
  };
  return maker;
}

OnDevice::OnDevice(runtime::Backend &backend, std::vector<Placed> &placed,
                   std::vector<View> &views)
    : backend_(backend), placed_(placed) {
  for (size_t i = 0; i < placed.size() && !backend.isHost(); ++i) {
    Placed &p = placed[i];
    auto memory = backend.allocate(p.bytes.size());
    status.merge(memory.status());
    if (!memory)
      return;
    memory_.push_back(*memory);
    status.merge(
        backend.copyToDevice(*memory, p.bytes.data(), p.bytes.size(), {}));
    views[i].data =
        static_cast<char *>(*memory) +
        (static_cast<unsigned char *>(p.view.data) - p.bytes.data());
  }
}

OnDevice::~OnDevice() {
  for (void *memory : memory_)
    backend_.release(memory);
}

void OnDevice::fetch() {
  for (size_t i = 0; i < memory_.size(); ++i)
    status.merge(backend_.copyToHost(placed_[i].bytes.data(), memory_[i],
                                     placed_[i].bytes.size(), {}));
}

Outcome runCase(const Case &c, MemoryLayout layout, int threads,
                bool accumulate, int over) {
  planpb::Instruction instruction;
  instruction.set_kind(planpb::Instruction::LIBRARY);
  instruction.set_op(c.op);
  instruction.set_accumulate(accumulate);
  for (const auto &[key, value] : c.attrs)
    (*instruction.mutable_attrs())[key] = value;
  std::vector<Placed> inputs, outputs;
  std::vector<View> in, out;
  for (const Tensor &tensor : c.inputs)
    inputs.push_back(place(tensor, layout, true));
  for (const Tensor &tensor : c.outputs)
    outputs.push_back(place(over >= 0 && outputs.empty()
                                ? c.inputs[static_cast<size_t>(over)]
                                : tensor,
                            layout, false));
  for (Placed &placed : inputs)
    in.push_back(placed.view);
  for (Placed &placed : outputs)
    out.push_back(placed.view);
  if (over >= 0)
    in[static_cast<size_t>(over)] = out[0];
  std::vector<View> shapesIn = in, shapesOut = out;
  for (View &view : shapesIn)
    view.data = nullptr;
  for (View &view : shapesOut)
    view.data = nullptr;

  Outcome outcome;
  runtime::ThreadPool pool(threads);
  const std::unique_ptr<runtime::Backend> backend = backendMaker()(pool);
  auto prepared = backend->prepare(instruction, shapesIn, shapesOut);
  outcome.status = prepared.status();
  if (!prepared.ok())
    return outcome;
  OnDevice inputMemory(*backend, inputs, in);
  OnDevice outputMemory(*backend, outputs, out);
  if (over >= 0) // where that is on the device
    in[static_cast<size_t>(over)] = out[0];
  runtime::KernelCall call;
  call.instruction = &instruction;
  call.prepared = prepared->get();
  call.inputs = in;
  call.outputs = out;
  call.scalars = c.scalars;
  call.accumulate = accumulate;
  outcome.status = inputMemory.status;
  outcome.status.merge(outputMemory.status);
  if (outcome.status.ok())
    outcome.status = backend->run(call);
  if (outcome.status.ok())
    outputMemory.fetch();
  outcome.status.merge(outputMemory.status);
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor result = zeros(c.outputs[i].shape, c.outputs[i].dtype);
    int64_t width = runtime::dtypeSize(result.dtype);
    std::vector<unsigned char> bits;
    std::vector<unsigned char> &bytes = outputs[i].bytes;
    for (int64_t j = 0; j < result.size(); ++j) {
      unsigned char *at = &bytes[outputs[i].at(j) * width];
      result.v[j] = decode(result.dtype, at);
      bits.insert(bits.end(), at, at + width);
    }
    for (int64_t j = 0; j < result.size(); ++j)
      std::fill_n(&bytes[outputs[i].at(j) * width], width, kGap);
    for (unsigned char byte : bytes)
      outcome.gapsUntouched = outcome.gapsUntouched && byte == kGap;
    outcome.outputs.push_back(std::move(result));
    outcome.bits.push_back(std::move(bits));
  }
  return outcome;
}

Tensor gradient(const Forward &forward, const Tensors &inputs, size_t which,
                const Tensors &weights) {
  Tensor result = zeros(inputs[which].shape);
  Tensors moved = inputs;
  auto weighted = [&] {
    Tensors out = forward(moved);
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i)
      for (int64_t j = 0; j < weights[i].size(); ++j)
        sum += weights[i].v[j] * out[i].v[j];
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < result.size(); ++i) {
    double &x = moved[which].v[i];
    double value = x;
    x = value + kStep;
    double high = weighted();
    x = value - kStep;
    double low = weighted();
    x = value;
    result.v[i] = (high - low) / (2 * kStep);
  }
  return result;
}

std::vector<Case> allCases() {
  std::vector<Case> cases;
  for (auto group : {einsumCases, moveCases, normCases, lossCases,
                     attentionCases, convCases, dropoutCases, optimizerCases})
    for (Case &c : group())
      cases.push_back(std::move(c));
  return cases;
}

} // namespace merak::conformance
