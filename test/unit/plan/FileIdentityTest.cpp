#include "runtime/plan/FileIdentity.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace merak;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kWhole = UINT64_MAX;

class Folder {
public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "merak-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string &name, const std::string &bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }
  std::string operator/(const std::string &name) const {
    return path_ + "/" + name;
  }

private:
  std::string path_;
};

planpb::SourceFile record(const std::string &path, uint64_t whole) {
  auto found = identifyFile(path, whole);
  EXPECT_TRUE(found.ok()) << found.status().str();
  planpb::SourceFile record;
  record.set_path(fs::path(path).filename());
  record.set_bytes(found->bytes);
  record.set_hash(found->hash);
  record.set_sampled(found->sampled);
  record.set_modified(found->modified);
  return record;
}

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i)
    text[i] = static_cast<char>(i * 131 >> 3);
  return text;
}

} // namespace

TEST(FileIdentity, EveryByteCounts) {
  const Folder folder;
  std::string bytes = pattern(3000);
  const std::string path = folder.file("a", bytes);
  const planpb::SourceFile before = record(path, kWhole);
  EXPECT_TRUE(checkSourceFile(before, path, SourceCheck::Sampled).ok());
  for (size_t at : {size_t{0}, size_t{1234}, bytes.size() - 1}) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] + 1);
    folder.file("a", other);
    EXPECT_NE(record(path, kWhole).hash(), before.hash());
    const Status status = checkSourceFile(before, path, SourceCheck::Sampled);
    EXPECT_NE(status.str().find("has changed since the plan was made: expected "
                                "contents of hash"),
              std::string::npos)
        << status.str();
    EXPECT_TRUE(checkSourceFile(before, path, SourceCheck::Off).ok());
  }
  folder.file("a", bytes + "x");
  EXPECT_NE(checkSourceFile(before, path, SourceCheck::Sampled)
                .str()
                .find("expected 3000 bytes, found 3001"),
            std::string::npos);
}

TEST(FileIdentity, CopiesAreTheSameFile) {
  const Folder folder;
  const std::string path = folder.file("a", pattern(10000));
  const planpb::SourceFile before = record(path, kWhole);
  fs::copy_file(path, folder / "b");
  fs::remove(path);
  std::string note;
  EXPECT_TRUE(
      checkSourceFile(before, folder / "b", SourceCheck::Sampled, &note).ok());
  EXPECT_TRUE(checkSourceFile(before, folder / "b", SourceCheck::Full).ok());
  EXPECT_EQ(note, "");
}

// A model that is saved again changes everywhere, or its length.
TEST(FileIdentity, SamplesNoticeAnotherModel) {
  const Folder folder;
  std::string bytes = pattern(9 << 20);
  const std::string path = folder.file("a", bytes);
  const planpb::SourceFile before = record(path, 0);
  EXPECT_TRUE(before.sampled());
  std::string note;
  EXPECT_TRUE(checkSourceFile(before, path, SourceCheck::Sampled, &note).ok());
  EXPECT_EQ(note, "");
  EXPECT_NE(checkSourceFile(before, path, SourceCheck::Full)
                .str()
                .find("compile with --hash=full"),
            std::string::npos);
  // A part of half a percent, and one that a sample covers in any case.
  for (auto [at, length] : {std::pair<size_t, size_t>{5 << 20, 45000},
                            {0, 1},
                            {bytes.size() - 1, 1}}) {
    std::string other = bytes;
    for (size_t i = 0; i < length; ++i)
      other[at + i] = static_cast<char>(other[at + i] + 1);
    folder.file("a", other);
    EXPECT_FALSE(checkSourceFile(before, path, SourceCheck::Sampled).ok());
  }
  // The same bytes, written later: said, not refused.
  folder.file("a", bytes);
  struct timespec times[2] = {{1, 0}, {1, 0}};
  utimensat(AT_FDCWD, path.c_str(), times, 0);
  EXPECT_TRUE(checkSourceFile(before, path, SourceCheck::Sampled, &note).ok());
  EXPECT_NE(note.find("was written since the plan was made"),
            std::string::npos);
}

TEST(FileIdentity, SmallFilesAreNeverSampled) {
  const Folder folder;
  const std::string path = folder.file("a", pattern(4 << 20));
  EXPECT_FALSE(record(path, 0).sampled());
  EXPECT_EQ(record(path, 0).hash(), record(path, kWhole).hash());
}

TEST(FileIdentity, OnlyFilesHaveOne) {
  const Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string &path : {folder / "pipe", std::string("/dev/zero")})
    EXPECT_EQ(identifyFile(path, kWhole).status().str(),
              "\"" + path + "\" is not a file");
  EXPECT_NE(
      identifyFile(folder / "none", kWhole).status().str().find("cannot open"),
      std::string::npos);
}
