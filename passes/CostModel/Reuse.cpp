#include "passes/CostModel/Reuse.h"

#include <algorithm>
#include <cmath>

using namespace merak::planpb;

namespace merak::costmodel {
namespace {

constexpr double kLeastPiece = 4096, kMostPieces = 1 << 16;

// The arena of one rank while its program goes on.
class Touches {
public:
  Touches(const Program &program, const std::vector<double> &distances)
      : program_(program), distances_(distances) {
    const double arena = double(program.arena_bytes());
    piece_ = std::max(kLeastPiece, std::ceil(arena / kMostPieces));
    last_.assign(size_t(arena / piece_) + 1, -arena);
  }

  // Adds what is found at each distance to `sums`, in bytes.
  void touch(const Operand &operand, const Call &call,
             std::vector<double> &sums) {
    const Buffer &buffer = program_.buffers(int(operand.buffer()));
    const double size = double(dtypeSize(buffer.dtype()));
    double low = double(operand.offset()), high = low, elements = 1;
    for (int d = 0; d < operand.shape_size(); ++d) {
      const double reach =
          double(operand.shape(d) - 1) * double(operand.strides(d));
      (reach < 0 ? low : high) += reach;
      elements *= double(operand.shape(d));
    }
    if (elements <= 0)
      return;
    const double base =
        double(buffer.offset()) +
        double(slotOf(buffer, call)) * double(buffer.slot_stride());
    const size_t first = piece(base + low * size);
    const size_t end = piece(base + (high + 1) * size - 1) + 1;
    const double each = elements * size / double(end - first);
    for (size_t p = first; p < end; ++p) {
      const double bytes =
          std::min(now_ - last_[p], double(program_.arena_bytes()));
      const std::vector<double> &shares = of(bytes);
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += each * shares[i];
      // What was touched a moment ago and is touched again moves nothing away.
      if (bytes > distances_.front())
        now_ += each;
      last_[p] = now_;
    }
  }

private:
  size_t piece(double byte) const {
    return std::min(last_.size() - 1, size_t(std::max(0.0, byte) / piece_));
  }
  // Neighbouring pieces mostly have the same past.
  const std::vector<double> &of(double bytes) {
    if (bytes != known_ || shares_.empty()) {
      known_ = bytes;
      shares_ = distanceShares(distances_, bytes);
    }
    return shares_;
  }

  const Program &program_;
  const std::vector<double> &distances_;
  double piece_, now_ = 0;
  std::vector<double> last_; // when a piece was touched, in bytes touched
  double known_ = 0;
  std::vector<double> shares_;
};

} // namespace

std::vector<double> distanceShares(const std::vector<double> &distances,
                                   double bytes) {
  std::vector<double> shares(distances.size(), 0);
  if (shares.empty())
    return shares;
  size_t above = 0;
  while (above < distances.size() && distances[above] < bytes)
    ++above;
  if (above == 0 || above == distances.size()) {
    shares[above == 0 ? 0 : above - 1] = 1;
    return shares;
  }
  const double share = std::log(bytes / distances[above - 1]) /
                       std::log(distances[above] / distances[above - 1]);
  shares[above] = share;
  shares[above - 1] = 1 - share;
  return shares;
}

Reuse::Reuse(const Program &program, const std::vector<double> &distances) {
  if (distances.empty())
    return;
  Touches touches(program, distances);
  for (bool counts : {false, true})
    for (const Call &call : program.calls())
      for (const Instruction &inst :
           program.procedures(int(call.procedure())).instructions()) {
        std::vector<double> sums(distances.size(), 0);
        for (const Operand &operand : inst.inputs())
          touches.touch(operand, call, sums);
        for (const Operand &operand : inst.outputs())
          touches.touch(operand, call, sums);
        if (!counts)
          continue;
        std::vector<double> &all = shares_[&inst];
        all.resize(distances.size(), 0);
        for (size_t i = 0; i < sums.size(); ++i)
          all[i] += sums[i];
      }
  for (auto it = shares_.begin(); it != shares_.end();) {
    double total = 0;
    for (double bytes : it->second)
      total += bytes;
    for (double &bytes : it->second)
      bytes /= std::max(total, 1e-300);
    it = total > 0 ? std::next(it) : shares_.erase(it);
  }
}

std::vector<double> Reuse::shares(const Instruction &instruction) const {
  auto it = shares_.find(&instruction);
  return it == shares_.end() ? std::vector<double>() : it->second;
}

} // namespace merak::costmodel
