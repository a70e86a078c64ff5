// What checkpoints do to files, one system call after the other. Tests derive
// from it, and stop or fail before any of them.
#pragma once

#include "runtime/core/Status.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace merak::runtime {

class Files {
public:
  virtual ~Files() = default;

  enum class Call {
    makeFolder,
    create,
    write,
    sync,
    close,
    syncFolder,
    rename,
    exchange,
    remove,
    removeFolder,
  };

  // A file that did not exist, open for writing; closed when it is destroyed,
  // which reports nothing: `close` does.
  class Output {
  public:
    Output(Files &files, std::string path, int descriptor)
        : files_(files), path_(std::move(path)), descriptor_(descriptor) {}
    ~Output();
    Output(const Output &) = delete;
    Output &operator=(const Output &) = delete;
    Status write(const void *data, size_t bytes);
    // Onto the disk, then closed.
    Status close();

  private:
    Files &files_;
    std::string path_;
    int descriptor_;
  };
  Result<std::unique_ptr<Output>> create(const std::string &path);

  // There may be such a folder already.
  Status makeFolder(const std::string &path);
  // The entries of the folder onto the disk.
  Status syncFolder(const std::string &path);
  // `to` may be a file, which is replaced in one step.
  Status rename(const std::string &from, const std::string &to);
  // Two names of one folder change places in one step. False: the file system
  // cannot.
  Result<bool> exchange(const std::string &a, const std::string &b);
  Status remove(const std::string &path);
  Status removeFolder(const std::string &path); // an empty one

  // The files of this machine.
  static Files &system();

protected:
  // Before each system call; an error takes its place.
  virtual Status before(Call call, const std::string &path);
};

// What lies at a path, without following a link at its end.
enum class Entry { none, file, folder, link, other };
Entry entryAt(const std::string &path);
std::string joinPath(const std::string &folder, const std::string &name);

// All of a small file; empty if it is not there or cannot be read.
std::string textOrNone(const std::string &path);
// A new file, not synced.
Status createText(Files &files, const std::string &path,
                  const std::string &text);
// A small text file, written and synced under a name of its own and renamed to
// `folder`/`name`; then the folder is synced.
Status replaceText(Files &files, const std::string &folder,
                   const std::string &name, const std::string &temporary,
                   const std::string &text);
// Names of all entries, sorted.
Result<std::vector<std::string>> namesIn(const std::string &folder);

} // namespace merak::runtime
