#include "runtime/core/DType.h"

namespace merak::runtime {
namespace {

struct Row {
  planpb::DType dtype;
  const char *name;
};
constexpr Row kRows[] = {
    {planpb::F32, "F32"},   {planpb::I64, "I64"},   {planpb::I32, "I32"},
    {planpb::BOOL, "BOOL"}, {planpb::BF16, "BF16"}, {planpb::F16, "F16"},
    {planpb::F64, "F64"},   {planpb::U8, "U8"},     {planpb::I8, "I8"},
    {planpb::I16, "I16"},   {planpb::U16, "U16"},   {planpb::U32, "U32"},
    {planpb::U64, "U64"},
};

} // namespace

const char *safetensorsName(planpb::DType dtype) {
  for (const Row &row : kRows)
    if (row.dtype == dtype)
      return row.name;
  return "";
}

planpb::DType parseSafetensorsName(std::string_view name) {
  for (const Row &row : kRows)
    if (name == row.name)
      return row.dtype;
  return planpb::DTYPE_INVALID;
}

} // namespace merak::runtime
