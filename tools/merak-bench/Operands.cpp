#include "tools/merak-bench/Operands.h"

#include "passes/CostModel/PlanCosts.h"
#include "runtime/core/HalfFloat.h"

#include <algorithm>
#include <cstring>
#include <set>

using namespace merak::planpb;
using namespace merak::runtime;

namespace merak::bench {

Arena::~Arena() {
  if (data_)
    source_.release(data_);
}

Status Arena::reserve(uint64_t bytes) {
  auto memory = source_.allocate(bytes);
  if (!memory)
    return memory.status();
  data_ = static_cast<char *>(*memory);
  bytes_ = bytes;
  return {};
}

char *Arena::take(uint64_t bytes) {
  char *result = data_ + used_;
  used_ += rounded(bytes);
  return result;
}

Status Arena::sweep(uint64_t from, uint64_t end) {
  end = std::min(end, bytes_);
  if (from >= end)
    return {};
  if (!backend_.isHost()) {
    MERAK_RETURN_IF_ERROR(backend_.clear(data_ + from, end - from, nullptr));
    return backend_.synchronize(nullptr);
  }
  constexpr uint64_t kLine = 64;
  for (uint64_t i = from; i < end; i += kLine)
    swept_ = swept_ + data_[i];
  return {};
}

uint64_t Arena::rounded(uint64_t bytes) {
  return (std::max<uint64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
}

namespace {

std::set<uint32_t> buffersOf(const Case &one) {
  std::set<uint32_t> buffers;
  for (const Operand &operand : one.instruction->inputs())
    buffers.insert(operand.buffer());
  for (const Operand &operand : one.instruction->outputs())
    buffers.insert(operand.buffer());
  return buffers;
}

// What the integers of an instruction count: rows of a table, or classes.
int64_t indexLimit(const Instruction &inst) {
  const bool scatters = inst.op() == "scatter_add" && inst.outputs_size() > 0;
  if (!scatters && inst.inputs_size() == 0)
    return 1;
  const Operand &table = scatters ? inst.outputs(0) : inst.inputs(0);
  if (table.shape_size() == 0)
    return 1;
  const bool rows = scatters || inst.op() == "gather";
  return std::max<int64_t>(1, table.shape(rows ? 0 : table.shape_size() - 1));
}

uint64_t scrambled(int64_t i) {
  uint64_t x = (uint64_t(i) + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

// A block of numbers, again and again: there may be gigabytes.
template <typename T, typename Value>
void fill(std::vector<char> &bytes, Value value) {
  constexpr size_t kBlock = 1 << 20;
  T *data = reinterpret_cast<T *>(bytes.data());
  const size_t count = bytes.size() / sizeof(T);
  for (size_t i = 0; i < std::min(count, kBlock); ++i)
    data[i] = static_cast<T>(value(int64_t(i)));
  for (size_t at = kBlock; at < count; at += kBlock)
    std::memcpy(data + at, data, std::min(kBlock, count - at) * sizeof(T));
}

void fill(std::vector<char> &bytes, DType dtype, int64_t limit,
          bool negativeToo) {
  auto real = [&](int64_t i) {
    const float x = (float(scrambled(i) >> 40) + 0.5f) * 0x1p-24f;
    return negativeToo ? 2 * x - 1 : x;
  };
  auto index = [&](int64_t i) { return int64_t(scrambled(i) >> 20) % limit; };
  switch (dtype) {
  case F32:
    return fill<float>(bytes, real);
  case F64:
    return fill<double>(bytes, real);
  case BF16:
    return fill<uint16_t>(bytes,
                          [&](int64_t i) { return floatToBf16(real(i)); });
  case F16:
    return fill<uint16_t>(bytes,
                          [&](int64_t i) { return floatToF16(real(i)); });
  case I64:
    return fill<int64_t>(bytes, index);
  case I32:
    return fill<int32_t>(bytes, index);
  case BOOL:
    return fill<uint8_t>(bytes, [](int64_t i) { return scrambled(i) >> 63; });
  default:
    return; // zeros
  }
}

} // namespace

uint64_t operandBytes(const Case &one) {
  uint64_t bytes = 0;
  for (uint32_t buffer : buffersOf(one))
    bytes += Arena::rounded(one.program->buffers(int(buffer)).bytes());
  return bytes;
}

OperandValues::OperandValues(const Case &one) {
  const bool contracts =
      costmodel::kernelOf(*one.program, *one.instruction).k > 0;
  for (uint32_t number : buffersOf(one)) {
    const Buffer &buffer = one.program->buffers(int(number));
    std::vector<char> &bytes = values_[number];
    bytes.resize(buffer.bytes());
    fill(bytes, buffer.dtype(), indexLimit(*one.instruction), contracts);
  }
}

Result<Operands> Operands::create(Arena &arena, const Case &one,
                                  const OperandValues &values) {
  Operands result;
  std::map<uint32_t, char *> known;
  auto add = [&](const Operand &operand, std::vector<View> &views) -> Status {
    const Buffer &buffer = one.program->buffers(int(operand.buffer()));
    auto [it, fresh] = known.try_emplace(operand.buffer(), nullptr);
    if (fresh) {
      it->second = arena.take(buffer.bytes());
      const std::vector<char> &bytes = values.of(operand.buffer());
      MERAK_RETURN_IF_ERROR(arena.backend().copyToDevice(
          it->second, bytes.data(), bytes.size(), nullptr));
    }
    View view;
    view.dtype = buffer.dtype();
    view.shape.assign(operand.shape().begin(), operand.shape().end());
    view.strides.assign(operand.strides().begin(), operand.strides().end());
    view.data = it->second + operand.offset() * dtypeSize(buffer.dtype());
    views.push_back(view);
    return {};
  };
  for (const Operand &operand : one.instruction->inputs())
    MERAK_RETURN_IF_ERROR(add(operand, result.inputs));
  for (const Operand &operand : one.instruction->outputs())
    MERAK_RETURN_IF_ERROR(add(operand, result.outputs));
  for (const Scalar &scalar : one.instruction->scalars())
    result.scalars.push_back(scalar.has_f()   ? ScalarValue::real(scalar.f())
                             : scalar.has_i() ? ScalarValue::integer(scalar.i())
                             : scalar.runtime() == "lr"
                                 ? ScalarValue::real(1e-3)
                                 : ScalarValue::integer(1));
  return result;
}

int setsFor(const Case &one, int64_t distance) {
  constexpr uint64_t kMost = 256;
  return int(std::clamp<uint64_t>(
      uint64_t(distance) / std::max<uint64_t>(operandBytes(one), 1), 1, kMost));
}

Status PreparedSets::add(Arena &arena, const OperandValues &values, int sets) {
  for (int set = 0; set < sets; ++set) {
    auto operands = Operands::create(arena, case_, values);
    if (!operands)
      return operands.status();
    operands_.push_back(std::move(*operands));
    if (!prepared_.empty() && !backend_.isHost())
      continue;
    auto made = backend_.prepare(*case_.instruction, operands_.back().inputs,
                                 operands_.back().outputs);
    if (!made)
      return made.status();
    prepared_.push_back(std::move(*made));
  }
  return {};
}

Status PreparedSets::run(int set, StreamHandle stream) {
  const Operands &use = operands_[size_t(set)];
  Prepared *prepared =
      prepared_[std::min(size_t(set), prepared_.size() - 1)].get();
  return backend_.run({case_.instruction, prepared, use.inputs, use.outputs,
                       use.scalars, case_.instruction->accumulate(), stream});
}

} // namespace merak::bench
