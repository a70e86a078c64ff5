#include "runtime/backends/cpu/RoundedOperand.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <atomic>
#include <fmt/format.h>

namespace merak::cpu {

using runtime::Float8;

namespace {

constexpr int64_t kGrain = 16384; // elements of a thread's piece, at least

std::optional<Float8> float8Named(std::string_view name) {
  if (name == "e4m3")
    return runtime::kE4M3;
  if (name == "e5m2")
    return runtime::kE5M2;
  return std::nullopt;
}

} // namespace

std::optional<std::array<Float8, 2>> readRounds(Request &request) {
  if (!request.has("rounds"))
    return std::nullopt;
  const std::string text = request.text("rounds");
  const size_t comma = std::min(text.find(','), text.size());
  const auto a = float8Named(std::string_view(text).substr(0, comma));
  const auto b = float8Named(
      std::string_view(text).substr(std::min(comma + 1, text.size())));
  if (!request.expect(a && b,
                      fmt::format("expected 'rounds' to be e4m3 or e5m2 for "
                                  "each factor, found '{}'",
                                  text)))
    return std::nullopt;
  return std::array{*a, *b};
}

RoundedOperand::RoundedOperand(const Float8 &type, ScratchSlot slot,
                               const View &view)
    : type_(type), slot_(slot), copies_(!view.dense()),
      copy_(view, denseView(view, nullptr), false) {}

View RoundedOperand::run(const View &view, ThreadPool &pool) const {
  const int64_t count = view.elements();
  float *const rounded = scratch(slot_, count);
  const float *from = f32(view);
  if (copies_) {
    copy_.run(view.data, rounded, pool);
    from = rounded;
  }
  const Simd &s = simd();
  std::atomic<uint32_t> largest = 0;
  pool.parallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    const uint32_t here = s.largestBits(from + begin, end - begin);
    uint32_t known = largest.load(std::memory_order_relaxed);
    while (known < here && !largest.compare_exchange_weak(
                               known, here, std::memory_order_relaxed))
      ;
  });
  const int scale = runtime::scaleExponent(type_, largest);
  pool.parallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
    s.roundToFloat8(rounded + begin, from + begin, end - begin, type_, scale);
  });
  return denseView(view, rounded);
}

} // namespace merak::cpu
