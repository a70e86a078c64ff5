// A shared library opened at run time, so that a machine without it gets a
// sentence and not a program that does not start.
#pragma once

#include "runtime/core/Status.h"

#include <string>
#include <vector>

namespace merak::cuda {

class Library {
public:
  Library() = default;
  Library(const Library &) = delete;
  Library &operator=(const Library &) = delete;

  // Opens the first name that can be found; `what` is for the message: "the
  // cuda backend needs <what>: <why>". Stays open: libraries of drivers cannot
  // be unloaded safely.
  Status open(const std::vector<std::string> &names, const std::string &what);
  // Missing symbols are collected, for `complete`.
  void *symbol(const char *name);
  Status complete() const;
  bool isOpen() const { return handle_; }

private:
  void *handle_ = nullptr;
  std::string name_, what_;
  std::vector<std::string> missing_;
};

} // namespace merak::cuda
