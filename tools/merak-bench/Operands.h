// Memory for the operands of a measured instruction, with values in it, and a
// stream to run it on.
#pragma once

#include "runtime/core/Backend.h"
#include "tools/merak-bench/Cases.h"

#include <map>

namespace merak::bench {

// Memory of one rank for the operands of all repetitions, in one block as the
// runtime has its arena.
class Arena {
public:
  // `source`: where memory comes from; null: from the backend.
  explicit Arena(runtime::Backend &backend,
                 runtime::MemorySource *source = nullptr)
      : backend_(backend), source_(source ? *source : backend) {}
  ~Arena();
  Arena(const Arena &) = delete;
  Status reserve(uint64_t bytes);
  char *take(uint64_t bytes);
  // Touches the block from `from` on, up to `end`, so that caches forget what
  // they held: a host reads, a device writes zeros.
  Status sweep(uint64_t from, uint64_t end);
  runtime::Backend &backend() const { return backend_; }
  static uint64_t rounded(uint64_t bytes);

private:
  static constexpr uint64_t kAlign = 256; // as a plan's buffers on a device
  runtime::Backend &backend_;
  runtime::MemorySource &source_;
  char *data_ = nullptr;
  uint64_t bytes_ = 0, used_ = 0;
  volatile char swept_ = 0;
};

// A stream of the backend that is given back.
class OwnStream {
public:
  explicit OwnStream(runtime::Backend &backend) : backend_(backend) {}
  ~OwnStream() {
    if (stream_)
      backend_.destroyStream(stream_);
  }
  OwnStream(const OwnStream &) = delete;
  Status create() {
    auto made = backend_.createStream();
    if (made.ok())
      stream_ = *made;
    return made.status();
  }
  runtime::StreamHandle get() const { return stream_; }

private:
  runtime::Backend &backend_;
  runtime::StreamHandle stream_ = nullptr;
};

// What one set of operands holds in an arena.
uint64_t operandBytes(const Case &one);

// What each buffer of a case begins with, on the host: numbers in (0, 1), for
// contractions in (-1, 1), indices without an order below what they count.
// Zeros would be quicker to multiply.
class OperandValues {
public:
  explicit OperandValues(const Case &one);
  const std::vector<char> &of(uint32_t buffer) const {
    return values_.at(buffer);
  }

private:
  std::map<uint32_t, std::vector<char>> values_;
};

// One copy of the operands of a case. Scalars that change from step to step are
// those of the first.
class Operands {
public:
  static Result<Operands> create(Arena &arena, const Case &one,
                                 const OperandValues &values);

  std::vector<runtime::View> inputs, outputs;
  std::vector<runtime::ScalarValue> scalars;

private:
  Operands() = default;
};

// How many sets of operands a case runs through, so that `distance` bytes lie
// between two uses of one; small ones run through as many as are practical.
int setsFor(const Case &one, int64_t distance);

// A case made ready on a backend: on a host for each set of operands, since it
// may keep memory of its own that caches hold; on a device once.
class PreparedSets {
public:
  // Both must outlive this.
  PreparedSets(const Case &one, runtime::Backend &backend)
      : case_(one), backend_(backend) {}
  Status add(Arena &arena, const OperandValues &values, int sets);
  Status run(int set, runtime::StreamHandle stream);

private:
  const Case &case_;
  runtime::Backend &backend_;
  std::vector<Operands> operands_;
  std::vector<std::unique_ptr<runtime::Prepared>> prepared_;
};

} // namespace merak::bench
