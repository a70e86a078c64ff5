#include "runtime/core/DType.h"

namespace merak::runtime {
namespace {

struct Row {
  planpb::DType dtype;
  int64_t size;
  const char *name;
  const char *safetensors;
};
constexpr Row kRows[] = {
    {planpb::F32, 4, "f32", "F32"},    {planpb::I64, 8, "i64", "I64"},
    {planpb::I32, 4, "i32", "I32"},    {planpb::BOOL, 1, "bool", "BOOL"},
    {planpb::BF16, 2, "bf16", "BF16"}, {planpb::F16, 2, "f16", "F16"},
    {planpb::F64, 8, "f64", "F64"},    {planpb::U8, 1, "u8", "U8"},
    {planpb::I8, 1, "i8", "I8"},
};

const Row *find(planpb::DType dtype) {
  for (const Row &row : kRows)
    if (row.dtype == dtype)
      return &row;
  return nullptr;
}

} // namespace

int64_t dtypeSize(planpb::DType dtype) {
  const Row *row = find(dtype);
  return row ? row->size : 0;
}

const char *dtypeName(planpb::DType dtype) {
  const Row *row = find(dtype);
  return row ? row->name : "invalid";
}

const char *safetensorsName(planpb::DType dtype) {
  const Row *row = find(dtype);
  return row ? row->safetensors : "";
}

planpb::DType parseSafetensorsName(std::string_view name) {
  for (const Row &row : kRows)
    if (name == row.safetensors)
      return row.dtype;
  return planpb::DTYPE_INVALID;
}

} // namespace merak::runtime
