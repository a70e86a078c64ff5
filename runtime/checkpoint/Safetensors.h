// The safetensors format: 8 bytes of header length, a JSON header with type,
// shape and range of each tensor, then the data.
#pragma once

#include "runtime/checkpoint/Files.h"
#include "runtime/core/MappedFile.h"
#include "runtime/plan/plan.pb.h"

#include <functional>
#include <map>
#include <vector>

namespace merak::runtime {

struct SafetensorsEntry {
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  const char *data = nullptr; // not aligned
};

struct SafetensorsFile {
  std::shared_ptr<MappedFile> file;
  std::map<std::string, SafetensorsEntry> tensors;
};

// Checks the header against the length of the file: the tensors fill it, each
// byte belongs to one. Tensors of types that the plan does not know are an
// error.
Result<SafetensorsFile> openSafetensors(const std::string &path);
// The same, of a file that is mapped already.
Result<SafetensorsFile> readSafetensors(std::shared_ptr<MappedFile> file);

struct SafetensorsOutput {
  std::string name;
  planpb::DType dtype;
  std::vector<int64_t> shape;
  // Puts the dense data into memory of the right size; called once, in order,
  // so that only one tensor at a time is in memory twice.
  std::function<Status(char *)> fill;
};

// What stands before the data, in a file of these tensors one after the other;
// `dataBytes`: of them all.
std::string safetensorsHead(const std::vector<SafetensorsOutput> &tensors,
                            uint64_t &dataBytes);

// What a file must be when it is read again.
struct FileCheck {
  uint64_t bytes = 0, checksum = 0;
  bool operator==(const FileCheck &) const = default;
};

// Makes the file, which must not be there, and puts it onto the disk.
Result<FileCheck>
makeSafetensors(Files &files, const std::string &path,
                const std::vector<SafetensorsOutput> &tensors);

// Writes beside `path`, under a name that nothing has, and renames, so that
// `path` is never half a file.
Status writeSafetensors(const std::string &path,
                        const std::vector<SafetensorsOutput> &tensors);

} // namespace merak::runtime
