#include "runtime/data/DataSource.h"

#include "runtime/core/DType.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <sys/stat.h>

namespace merak::runtime {

DataSource::DataSource(const planpb::PlanFile &plan) : plan_(plan) {
  for (int i = 0; i < plan.inputs_size(); ++i)
    inputs_[plan.inputs(i).name()] = i;
}

Status DataSource::read(const std::string &input, int64_t step,
                        const std::vector<layout::Box> &boxes, void *data,
                        const std::vector<int64_t> &shape) {
  const auto found = inputs_.find(input);
  if (found == inputs_.end())
    return Status::error(fmt::format("the plan has no input \"{}\"", input));
  const planpb::Input &proto = plan_.inputs(found->second);
  for (const layout::Box &box : boxes) {
    if (box.elements() == 0)
      continue;
    const int64_t row = proto.batched() && !box.globalOrigin.empty()
                            ? position(step) + box.globalOrigin[0]
                            : 0;
    MERAK_RETURN_IF_ERROR(readBox(found->second, row, box, data, shape));
    if (proto.limit() > 0)
      MERAK_RETURN_IF_ERROR(checkIds(found->second, row, box, data, shape));
  }
  return {};
}

std::string DataSource::hashOf(const void *data, uint64_t bytes) {
  constexpr uint64_t kFirst = 1 << 16; // is read in no time
  return checksumText(Checksum::of(data, std::min(bytes, kFirst)));
}

Status DataSource::checkIds(int input, int64_t row, const layout::Box &box,
                            const void *data,
                            const std::vector<int64_t> &shape) const {
  const planpb::Input &proto = plan_.inputs(input);
  if (proto.dtype() != planpb::I64 && proto.dtype() != planpb::I32)
    return {};
  const size_t rank = shape.size();
  // Runs along the last dimension of the box.
  std::vector<int64_t> index(rank, 0);
  const int64_t run = rank ? box.extent[rank - 1] : 1;
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d)
      offset = offset * shape[d] + box.localOrigin[d] + index[d];
    for (int64_t i = 0; i < run; ++i) {
      const int64_t value =
          proto.dtype() == planpb::I64
              ? static_cast<const int64_t *>(data)[offset + i]
              : static_cast<const int32_t *>(data)[offset + i];
      if ((value < 0 || value >= proto.limit()) &&
          !(proto.has_allowed() && value == proto.allowed()))
        return Status::error(fmt::format(
            "{}: value {} of \"{}\" is not in [0, {}){}",
            describe(input, row + (rank > 1 ? index[0]
                                   : rank   ? i
                                            : 0)),
            value, proto.name(), proto.limit(),
            proto.has_allowed() ? fmt::format(" and not {}", proto.allowed())
                                : std::string()));
    }
    size_t d = rank ? rank - 1 : 0;
    while (d > 0 && ++index[d - 1] == box.extent[d - 1])
      index[--d] = 0;
    if (d == 0)
      return {};
  }
}

Result<std::unique_ptr<DataSource>> openData(const planpb::PlanFile &plan,
                                             const DataOptions &options) {
  if (options.path == "synthetic")
    return makeSyntheticData(plan, options);
  struct stat info;
  if (stat(options.path.c_str(), &info) != 0)
    return Status::error(fmt::format("\"{}\": no such file or folder (give a "
                                     "folder of .npy files, tokens.bin or "
                                     "\"synthetic\")",
                                     options.path));
  if (S_ISDIR(info.st_mode))
    return openNpyData(plan, options);
  return openTokenData(plan, options);
}

} // namespace merak::runtime
