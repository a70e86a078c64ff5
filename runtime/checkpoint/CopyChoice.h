// Which of the copies that hosts still have a run goes on from.
//
// A host that was away may come back with copies that the run has since gone
// past, or that it has gone another way from. So each start notes on its hosts
// what it went on from, and what is taken is on the line of the newest start:
// a generation that it made, or the one it went on from itself.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace merak::runtime {

struct CopyBase {
  int64_t start = 0;           // the one that notes it
  int64_t from = -1, step = 0; // of a generation; -1: a checkpoint or nothing
  bool operator==(const CopyBase &) const = default;
};

// What one host has of a generation.
struct FoundGeneration {
  int64_t start = 0, step = 0; // who made it, when
  std::string manifest;        // checksum of its manifest
  int64_t parts = 0;           // of it, on all hosts
  std::vector<int> good;       // here, and undamaged
  std::vector<int> damaged;    // here
  bool operator==(const FoundGeneration &) const = default;
};

struct FoundCopies {
  std::optional<CopyBase> base;
  std::vector<FoundGeneration> generations;
  bool operator==(const FoundCopies &) const = default;
};

std::string packFound(const FoundCopies &found);
Result<FoundCopies> unpackFound(const std::string &text);

struct CopyChoice {
  bool found = false;
  int64_t start = 0, step = 0;
  std::string manifest;
  int64_t parts = 0;
  std::vector<std::vector<int>> present; // by host
  // Newer generations that cannot be taken: parts that are on no host.
  struct Lacking {
    int64_t step = 0;
    std::string manifest;
    std::vector<int> parts;
    bool damaged = false; // some of them are there
  };
  std::vector<Lacking> lacking; // the newest first
};

// found[host]
CopyChoice chooseCopies(const std::vector<FoundCopies> &found);

} // namespace merak::runtime
