// PTX as the compiler writes it, executed on this processor and watched: what a
// GPU would do with a kernel, without one.
//
// Every thread has registers of its own and runs until it comes to an
// instruction at which threads meet: a barrier, a shuffle, the end. Nothing is
// in step between. Watched are
// - bounds and alignment of every access, by its width;
// - races: two threads at one byte, one of them writing, with no barrier
// between
//   that both pass (of the block, or of the warp for threads of one); threads
//   of different blocks have none;
// - reads of shared memory that nobody has written;
// - barriers and shuffles that not all threads come to.
//
// Known are the instructions that our kernels consist of (Operations.cpp);
// another one is an error that names it.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace merak::ptx {

// A register of the thread, a number, or the address of a symbol.
struct Operand {
  enum Kind { Register, Immediate, Parameter, Special } kind = Immediate;
  int64_t value = 0;  // number of the register, special register or parameter
  int64_t offset = 0; // added to an address
};

// Inputs as they lie in registers (narrower values in the low bits) to what the
// destination holds.
using Operation = uint64_t (*)(const uint64_t *inputs);
// Null if the instruction is none that computes one value from values.
Operation operationOf(const std::string &name);

struct Instruction {
  enum Kind {
    Compute,
    Pack,   // operands 1.. side by side in operand 0
    Unpack, // the last operand's parts in the others
    Load,
    Store,
    Shuffle,
    WarpBarrier,
    Barrier,
    Branch,
    Return
  } kind = Compute;
  enum Space { Global, Shared, Parameters } space = Global;
  enum Mode { Butterfly, Index, Up, Down } mode = Butterfly;
  Operation compute = nullptr;
  int bytes = 0; // of an element of an access, of a part
  bool isSigned = false;
  // Results first. Of accesses: elements, then (loads: behind them) the
  // address.
  std::vector<Operand> operands;
  int results = 0;
  int guard = -1; // register of the predicate
  bool guardIs = true;
  int64_t target = 0; // of a branch
  int line = 0;       // in the text
};

struct Entry {
  std::string name;
  std::vector<Instruction> code;
  int registers = 0;
  int parameters = 0; // of 8 bytes
  int threads = 0;    // of a block
  // Has instructions that devices may round as they like (ex2.approx).
  bool isApproximate = false;
  int64_t sharedBytes = 0;
};

// Memory that a kernel may touch.
struct Region {
  char *data = nullptr;
  uint64_t bytes = 0;
  std::string name;
  // Written where others may still read, and do nothing with it: rows beyond
  // the last read the last again. Only who writes is watched, and what comes
  // out.
  bool isInPlace = false;
};

class Module {
public:
  // Errors name the line.
  static Result<Module> parse(const std::string &text);
  const Entry *find(const std::string &name) const;
  const std::vector<Entry> &entries() const { return entries_; }

private:
  std::vector<Entry> entries_;
};

// Runs the blocks of an entry. In which order threads and blocks run depends on
// `seed`. The first problem is the error. Adds to `executed` the instructions
// of all threads.
Status run(const Entry &entry, std::span<const uint64_t> parameters,
           int64_t blocks, std::span<const Region> regions, uint64_t seed,
           int64_t *executed = nullptr);

} // namespace merak::ptx
