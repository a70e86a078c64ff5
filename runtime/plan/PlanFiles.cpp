// Plan directories on disk: checksums, loading, saving by rename.
#include "runtime/plan/Checksum.h"
#include "runtime/plan/Plan.h"
#include "runtime/plan/Serialized.h"
#include "support/ReadFile.h"

#include "runtime/plan/Signature.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <set>
#include <unistd.h>

namespace fs = std::filesystem;
using namespace merak::planpb;

namespace merak {

std::string serialized(const google::protobuf::Message &message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  {
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

namespace {

constexpr char kManifest[] = "plan.pb";
// PlanFile.checksum on the wire: tag of field 25, fixed64, then eight bytes.
constexpr size_t kTrailer = 10;
constexpr char kTrailerTag[] = "\xc9\x01";

std::string errnoText() { return std::strerror(errno); }

Result<std::string> readAll(const fs::path &path, const std::string &shown) {
  std::error_code error;
  if (!fs::exists(path, error))
    return Status::error(fmt::format("{}: missing", shown));
  std::string bytes;
  const std::string why = readFile(path.string(), bytes);
  if (why == "is a directory")
    return Status::error(fmt::format("{}: {}", shown, why));
  if (!why.empty())
    return Status::error(fmt::format("{}: cannot be read: {}", shown, why));
  return bytes;
}

bool parse(google::protobuf::Message &message, std::string_view bytes) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(),
                                                static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream coded(&stream);
  return message.ParseFromCodedStream(&coded) && coded.ConsumedEntireMessage();
}

Status newer(uint32_t version, const std::string &shown) {
  return Status::error(
      fmt::format("{}: plan version {} is newer than version {}, which this "
                  "program reads; use the tools that wrote the plan",
                  shown, version, kPlanVersion));
}

Status checkVersion(uint32_t version, const std::string &shown) {
  if (version > kPlanVersion)
    return newer(version, shown);
  if (version == 0)
    return Status::error(fmt::format("{}: has no plan version", shown));
  if (version < kOneMeshVersion)
    return Status::error(
        fmt::format("{}: plan version {} is older than version {}, which this "
                    "program reads; compile the model again",
                    shown, version, kOneMeshVersion));
  return {};
}

Status loadManifest(PlanFile &file, std::string_view bytes,
                    const std::string &shown) {
  bool tagged = bytes.size() >= kTrailer &&
                bytes.substr(bytes.size() - kTrailer, 2) == kTrailerTag;
  if (!tagged) {
    // A newer format may end otherwise; anything else was cut off.
    if (parse(file, bytes) && file.version() > kPlanVersion)
      return newer(file.version(), shown);
    return Status::error(
        fmt::format("{}: truncated, or not a plan ({} bytes without the "
                    "closing checksum)",
                    shown, bytes.size()));
  }
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + bytes.size() - 8, 8);
  uint64_t found = planChecksum(bytes.data(), bytes.size() - kTrailer);
  if (stored != found)
    return Status::error(
        fmt::format("{}: corrupted: checksum {:016x}, expected {:016x}", shown,
                    found, stored));
  if (!parse(file, bytes))
    return Status::error(fmt::format("{}: is not a plan manifest", shown));
  return checkVersion(file.version(), shown);
}

// What loading promises about the manifest: one program per file, ranks that
// name one, distinct ranks inside the mesh.
Status checkManifest(const PlanFile &file, const std::string &shown) {
  Status status;
  auto problem = [&](std::string text) {
    status.merge(Status::error(shown + ": " + text));
  };
  if (file.ranks_size() == 0)
    problem("has no ranks");
  std::set<std::string> checked;
  for (const FileCheck &check : file.files()) {
    checked.insert(check.name());
    if (check.name().empty() ||
        fs::path(check.name()).filename() != check.name())
      problem(fmt::format("names the file \"{}\", which is not in the plan's "
                          "directory",
                          check.name()));
  }
  std::vector<std::string> named(file.programs().begin(),
                                 file.programs().end());
  for (const std::string &name : {file.kernels(), file.constants()})
    if (!name.empty())
      named.push_back(name);
  for (const std::string &name : named)
    if (!checked.count(name))
      problem(fmt::format("has no checksum of \"{}\"", name));
  for (int rank = 0; rank < file.ranks_size(); ++rank)
    if (file.ranks(rank).mesh() >=
        static_cast<uint32_t>(std::max(1, file.meshes_size())))
      problem(fmt::format("rank {} is of mesh {}, but the plan has {}", rank,
                          file.ranks(rank).mesh(), file.meshes_size()));
  for (int rank = 0; rank < file.ranks_size(); ++rank)
    if (file.ranks(rank).program() >=
        static_cast<uint32_t>(file.programs_size()))
      problem(fmt::format("rank {} runs program {}, but the plan has {}", rank,
                          file.ranks(rank).program(), file.programs_size()));
  return status;
}

Status writeFile(const fs::path &path, std::string_view bytes) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0)
    return Status::error(
        fmt::format("{}: cannot be created: {}", path.string(), errnoText()));
  Status status;
  while (!bytes.empty()) {
    ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0) {
      status = Status::error(
          fmt::format("{}: cannot be written: {}", path.string(), errnoText()));
      break;
    }
    bytes.remove_prefix(n);
  }
  if (status.ok() && ::fsync(fd) != 0)
    status = Status::error(
        fmt::format("{}: cannot be written: {}", path.string(), errnoText()));
  ::close(fd);
  return status;
}

Status writeParts(const fs::path &dir, PlanFile &file,
                  std::vector<Program> &programs,
                  const std::vector<PlanExtra> &extras) {
  PlanDigest digest;
  auto put = [&](const std::string &name, const std::string &bytes) {
    digest.add(bytes);
    FileCheck *check = file.add_files();
    check->set_name(name);
    check->set_bytes(bytes.size());
    check->set_checksum(planChecksum(bytes.data(), bytes.size()));
    return writeFile(dir / name, bytes);
  };
  file.set_version(versionOf(file));
  file.clear_programs();
  file.clear_files();
  file.clear_checksum();
  for (size_t i = 0; i < programs.size(); ++i) {
    programs[i].set_version(file.version());
    programs[i].set_index(static_cast<uint32_t>(i));
    std::string name = fmt::format("program-{}.pb", i);
    file.add_programs(name);
    MERAK_RETURN_IF_ERROR(put(name, serialized(programs[i])));
  }
  for (const PlanExtra &extra : extras) {
    std::string bytes = extra.contents;
    if (!extra.copyFrom.empty()) {
      Result<std::string> read = readAll(extra.copyFrom, extra.copyFrom);
      if (!read)
        return read.status();
      bytes = std::move(*read);
    }
    MERAK_RETURN_IF_ERROR(put(extra.name, bytes));
  }
  std::string manifest = serialized(file);
  uint64_t checksum = planChecksum(manifest.data(), manifest.size());
  manifest += kTrailerTag;
  manifest.append(reinterpret_cast<const char *>(&checksum), 8);
  digest.add(manifest);
  if (const std::string signature = digest.sign(); !signature.empty())
    MERAK_RETURN_IF_ERROR(writeFile(dir / kSignatureFile, signature));
  return writeFile(dir / kManifest, manifest);
}

Result<LoadedPlan> load(const std::string &dir, PlanDigest *digest);

} // namespace

uint64_t planChecksum(const void *data, size_t bytes) {
  return Checksum::of(data, bytes);
}

Result<LoadedPlan> loadPlan(const std::string &dir) {
  return load(dir, nullptr);
}

Result<LoadedPlan> loadPlanToRun(const std::string &dir, bool trust) {
  PlanDigest digest;
  auto plan = load(dir, trust ? nullptr : &digest);
  if (plan.ok() && !trust && !plan->file.kernels().empty())
    MERAK_RETURN_IF_ERROR(checkSignature(dir, digest));
  return plan;
}

namespace {

// `digest`: of the very bytes that the plan is made of.
Result<LoadedPlan> load(const std::string &dir, PlanDigest *digest) {
  std::error_code error;
  if (!fs::exists(dir, error))
    return Status::error(fmt::format("{}: no such plan", dir));
  if (!fs::is_directory(dir, error))
    return Status::error(
        fmt::format("{}: a plan is a directory, this is a file", dir));
  std::string shown = (fs::path(dir) / kManifest).string();
  if (!fs::exists(shown, error))
    return Status::error(
        fmt::format("{}: not a plan: it holds no {}", dir, kManifest));
  Result<std::string> manifest = readAll(shown, shown);
  if (!manifest)
    return manifest.status();

  LoadedPlan plan;
  plan.dir = dir;
  MERAK_RETURN_IF_ERROR(loadManifest(plan.file, *manifest, shown));
  MERAK_RETURN_IF_ERROR(checkManifest(plan.file, shown));

  Status status;
  auto problem = [&](std::string text) {
    status.merge(Status::error(std::move(text)));
  };
  plan.programs.resize(plan.file.programs_size());
  for (const FileCheck &check : plan.file.files()) {
    std::string path = (fs::path(dir) / check.name()).string();
    Result<std::string> bytes = readAll(path, path);
    if (!bytes) {
      status.merge(bytes.status());
      continue;
    }
    if (bytes->size() != check.bytes()) {
      problem(
          fmt::format("{}: {}: {} bytes, expected {}", path,
                      bytes->size() < check.bytes() ? "truncated" : "too long",
                      bytes->size(), check.bytes()));
      continue;
    }
    uint64_t found = planChecksum(bytes->data(), bytes->size());
    if (found != check.checksum()) {
      problem(fmt::format("{}: corrupted: checksum {:016x}, expected {:016x}",
                          path, found, check.checksum()));
      continue;
    }
    if (digest)
      digest->add(*bytes);
    for (int i = 0; i < plan.file.programs_size(); ++i) {
      if (plan.file.programs(i) != check.name())
        continue;
      if (!parse(plan.programs[i], *bytes))
        problem(fmt::format("{}: is not a program", path));
      else
        status.merge(checkVersion(plan.programs[i].version(), path));
    }
  }
  if (!status.ok())
    return status;
  if (digest)
    digest->add(*manifest);
  return plan;
}

} // namespace

Status savePlan(const std::string &dir, PlanFile file,
                std::vector<Program> programs,
                const std::vector<PlanExtra> &extras) {
  std::error_code error;
  fs::path target(dir);
  if (!target.has_filename()) // "out.plan/"
    target = target.parent_path();
  bool exists = fs::exists(target, error);
  if (exists && !fs::is_directory(target, error))
    return Status::error(
        fmt::format("{}: a file is in the way of the plan", dir));
  bool empty = exists && fs::is_empty(target, error);
  if (exists && !empty && !fs::exists(target / kManifest, error))
    return Status::error(fmt::format(
        "{}: is not empty and not a plan, so it is left alone", dir));

  fs::path temporary = target.string() + fmt::format(".tmp-{}", ::getpid());
  fs::remove_all(temporary, error);
  if (!fs::create_directory(temporary, error))
    return Status::error(
        fmt::format("{}: cannot be created: {}", dir, error.message()));
  Status status = writeParts(temporary, file, programs, extras);
  fs::path old = target.string() + fmt::format(".old-{}", ::getpid());
  if (status.ok() && exists) {
    fs::rename(target, old, error);
    if (error)
      status = Status::error(
          fmt::format("{}: cannot be replaced: {}", dir, error.message()));
  }
  if (status.ok()) {
    fs::rename(temporary, target, error);
    if (error) {
      status = Status::error(
          fmt::format("{}: cannot be created: {}", dir, error.message()));
      if (exists) {
        std::error_code ignored;
        fs::rename(old, target, ignored);
      }
    }
  }
  std::error_code ignored;
  if (!status.ok())
    fs::remove_all(temporary, ignored);
  else if (exists)
    fs::remove_all(old, ignored);
  return status;
}

} // namespace merak
