#include "runtime/rates/Work.h"

#include <cmath>
#include <fmt/format.h>
#include <sstream>

namespace merak::rates {

using planpb::Instruction;

std::optional<RateClass> classOf(const Instruction &instruction) {
  if (instruction.kind() == Instruction::KERNEL)
    return RateClass::Elementwise;
  if (instruction.kind() != Instruction::LIBRARY)
    return std::nullopt;
  const LibraryKernel *kernel = findLibraryKernel(instruction.op());
  return kernel ? kernel->rates : RateClass::Rows;
}

Seconds
expectedSeconds(const planpb::Program &program,
                const std::function<double(const Instruction &)> &seconds) {
  std::vector<Seconds> each(size_t(program.procedures_size()));
  for (int p = 0; p < program.procedures_size(); ++p)
    for (const Instruction &inst : program.procedures(p).instructions())
      if (auto of = classOf(inst))
        each[size_t(p)][size_t(*of)] += seconds(inst);
  Seconds sum{};
  for (const planpb::Call &call : program.calls())
    for (size_t c = 0; c < sum.size(); ++c)
      sum[c] += each[call.procedure()][c];
  return sum;
}

std::string toText(const std::vector<Seconds> &ranks) {
  std::string text;
  for (const Seconds &rank : ranks)
    for (size_t c = 0; c < rank.size(); ++c)
      text +=
          fmt::format("{:.6g}{}", rank[c], c + 1 < rank.size() ? ' ' : '\n');
  return text;
}

Result<std::vector<Seconds>> parseSeconds(const std::string &text) {
  std::istringstream in(text);
  std::vector<Seconds> ranks;
  std::vector<double> numbers;
  for (double number; in >> number;)
    numbers.push_back(number);
  bool sound = in.eof() && numbers.size() % kRateClasses == 0;
  for (size_t i = 0; sound && i < numbers.size(); ++i) {
    sound = std::isfinite(numbers[i]) && numbers[i] >= 0;
    if (i % kRateClasses == 0)
      ranks.emplace_back();
    ranks.back()[i % kRateClasses] = numbers[i];
  }
  if (!sound)
    return Status::error(fmt::format(
        "expected {} seconds for each rank, found \"{}\"", kRateClasses, text));
  return ranks;
}

} // namespace merak::rates
