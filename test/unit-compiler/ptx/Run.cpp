// Blocks of threads that execute an entry.
#include "test/unit-compiler/ptx/Ptx.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace merak::ptx {

namespace {

constexpr int kWarp = 32;
constexpr int64_t kMostSteps = 50'000'000; // of a thread

// Who touched a byte last, in which stretch between barriers.
struct Touch {
  int64_t thread = -1; // of all blocks
  int32_t barrier = 0, warpBarrier = 0;
};
struct Cell {
  Touch written, read;
  bool manyRead = false; // by several since the last barrier of the block
  bool isWritten = false;
};

struct Thread {
  std::vector<uint64_t> registers;
  int64_t at = 0, steps = 0;
  int32_t barrier = 0, warpBarrier = 0;
  bool ended = false;
};

class Run {
public:
  Run(const Entry &entry, std::span<const uint64_t> parameters, int64_t blocks,
      std::span<const Region> regions, uint64_t seed)
      : entry_(entry), parameters_(parameters), blocks_(blocks),
        regions_(regions), random_(seed) {
    for (const Region &region : regions)
      cells_.emplace_back(region.bytes);
  }

  Status run() {
    if (entry_.parameters != static_cast<int>(parameters_.size()))
      return Status::error(fmt::format("expected {} parameters, found {}",
                                       entry_.parameters, parameters_.size()));
    std::vector<int64_t> order(static_cast<size_t>(blocks_));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    for (int64_t block : order) {
      MERAK_RETURN_IF_ERROR(runBlock(block));
      for (const Thread &thread : threads_)
        executed_ += thread.steps;
    }
    return {};
  }
  int64_t executed() const { return executed_; }

private:
  Status problem(const Instruction &in, int thread,
                 const std::string &what) const {
    return Status::error(fmt::format("{}, line {}, block {}, thread {}: {}",
                                     entry_.name, in.line, block_, thread,
                                     what));
  }
  const Instruction &instruction(const Thread &thread) const {
    return entry_.code[size_t(thread.at)];
  }

  Status runBlock(int64_t block) {
    block_ = block;
    threads_.assign(size_t(entry_.threads), Thread());
    for (Thread &thread : threads_)
      thread.registers.assign(size_t(entry_.registers), 0);
    shared_.assign(size_t(entry_.sharedBytes), char(0x5a));
    sharedCells_.assign(size_t(entry_.sharedBytes), Cell());
    const int warps = (entry_.threads + kWarp - 1) / kWarp;
    std::vector<int> order(static_cast<size_t>(warps));
    std::iota(order.begin(), order.end(), 0);
    while (true) {
      std::shuffle(order.begin(), order.end(), random_);
      for (int warp : order)
        MERAK_RETURN_IF_ERROR(runWarp(warp));
      // All wait at one barrier, or all have ended.
      const Thread &first = threads_.front();
      for (int i = 0; i < entry_.threads; ++i) {
        const Thread &thread = threads_[size_t(i)];
        if (thread.ended != first.ended ||
            (!first.ended && thread.at != first.at))
          return problem(instruction(first.ended ? thread : first), i,
                         "not all threads come to this barrier");
      }
      if (first.ended)
        return {};
      for (Thread &thread : threads_) {
        ++thread.barrier;
        ++thread.at;
      }
    }
  }

  // Until all its threads wait at a barrier of the block, or have ended.
  Status runWarp(int warp) {
    const int begin = warp * kWarp;
    const int end = std::min(begin + kWarp, entry_.threads);
    std::vector<int> order(static_cast<size_t>(end - begin));
    std::iota(order.begin(), order.end(), begin);
    while (true) {
      std::shuffle(order.begin(), order.end(), random_);
      for (int i : order)
        MERAK_RETURN_IF_ERROR(runThread(i));
      const Thread &first = threads_[size_t(begin)];
      const bool meets =
          !first.ended && instruction(first).kind != Instruction::Barrier;
      for (int i = begin; i < end; ++i) {
        const Thread &other = threads_[size_t(i)];
        const bool waits =
            !other.ended && instruction(other).kind != Instruction::Barrier;
        if ((meets || waits) &&
            (other.ended || first.ended || other.at != first.at))
          return problem(instruction(meets ? first : other), i,
                         "not all threads of the warp come here");
      }
      if (!meets)
        return {};
      if (instruction(first).kind == Instruction::Shuffle)
        MERAK_RETURN_IF_ERROR(shuffle(begin, end));
      for (int i = begin; i < end; ++i) {
        Thread &thread = threads_[size_t(i)];
        if (instruction(thread).kind == Instruction::WarpBarrier)
          ++thread.warpBarrier;
        ++thread.at;
      }
    }
  }

  Status shuffle(int begin, int end) {
    const Instruction &in = instruction(threads_[size_t(begin)]);
    uint32_t given[kWarp] = {};
    auto input = [&](int i, int which) {
      return static_cast<uint32_t>(value(
          threads_[size_t(i)], i, in.operands[size_t(in.results + which)]));
    };
    for (int i = begin; i < end; ++i) {
      given[i - begin] = input(i, 0);
      if (input(i, 3) != 0xffffffffu || end - begin != kWarp)
        return problem(in, i, "a shuffle of a part of the warp");
    }
    for (int i = begin; i < end; ++i) {
      const int lane = i - begin;
      const uint32_t by = input(i, 1) & 31, control = input(i, 2);
      const int segment = control >> 8 & 31, clamp = control & 31;
      const int low = lane & segment, high = low | (clamp & ~segment);
      int from = in.mode == Instruction::Butterfly ? lane ^ int(by)
                 : in.mode == Instruction::Index   ? low | (int(by) & ~segment)
                 : in.mode == Instruction::Up      ? lane - int(by)
                                                   : lane + int(by);
      const bool inside =
          in.mode == Instruction::Up ? from >= high : from <= high;
      if (!inside)
        from = lane;
      Thread &thread = threads_[size_t(i)];
      thread.registers[size_t(in.operands[0].value)] = given[from & 31];
      if (in.results == 2)
        thread.registers[size_t(in.operands[1].value)] = inside;
    }
    return {};
  }

  uint64_t value(const Thread &thread, int index,
                 const Operand &operand) const {
    switch (operand.kind) {
    case Operand::Register:
      return thread.registers[size_t(operand.value)] + uint64_t(operand.offset);
    case Operand::Parameter:
      return uint64_t(operand.value) * 8 + uint64_t(operand.offset);
    case Operand::Special: {
      const int64_t values[] = {index, block_, entry_.threads, blocks_,
                                index % kWarp};
      return uint64_t(values[operand.value]);
    }
    default:
      return uint64_t(operand.value + operand.offset);
    }
  }

  // To the next instruction at which threads meet.
  Status runThread(int index) {
    Thread &thread = threads_[size_t(index)];
    while (!thread.ended) {
      if (thread.at >= static_cast<int64_t>(entry_.code.size()))
        return Status::error(entry_.name + ": runs past its end");
      const Instruction &in = instruction(thread);
      if (++thread.steps > kMostSteps)
        return problem(in, index, "does not end");
      const bool runs = in.guard < 0 || (thread.registers[size_t(in.guard)] &
                                         1) == uint64_t(in.guardIs);
      if (!runs) {
        ++thread.at;
        continue;
      }
      switch (in.kind) {
      case Instruction::Compute: {
        uint64_t inputs[3] = {};
        for (size_t i = 1; i < in.operands.size(); ++i)
          inputs[i - 1] = value(thread, index, in.operands[i]);
        thread.registers[size_t(in.operands[0].value)] = in.compute(inputs);
        break;
      }
      case Instruction::Pack: {
        uint64_t all = 0;
        for (size_t i = in.operands.size() - 1; i > 0; --i)
          all = (all << (8 * in.bytes)) |
                (value(thread, index, in.operands[i]) & mask(in.bytes));
        thread.registers[size_t(in.operands[0].value)] = all;
        break;
      }
      case Instruction::Unpack: {
        uint64_t all = value(thread, index, in.operands.back());
        for (size_t i = 0; i + 1 < in.operands.size(); ++i) {
          thread.registers[size_t(in.operands[i].value)] = all & mask(in.bytes);
          all = in.bytes == 8 ? 0 : all >> (8 * in.bytes);
        }
        break;
      }
      case Instruction::Load:
      case Instruction::Store:
        MERAK_RETURN_IF_ERROR(access(thread, index, in));
        break;
      case Instruction::Branch:
        thread.at = in.target;
        continue;
      case Instruction::Return:
        thread.ended = true;
        continue;
      default:
        return {};
      }
      ++thread.at;
    }
    return {};
  }

  static uint64_t mask(int bytes) {
    return bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  }

  Status access(Thread &thread, int index, const Instruction &in) {
    const uint64_t address = value(thread, index, in.operands.back());
    const size_t count = in.operands.size() - 1;
    const uint64_t bytes = count * uint64_t(in.bytes);
    const bool stores = in.kind == Instruction::Store;
    char *data = nullptr;
    if (in.space == Instruction::Parameters) {
      if (stores || address % 8 != 0 || bytes != 8 ||
          address + 8 > 8 * parameters_.size())
        return problem(in, index, "no such parameter");
      data = reinterpret_cast<char *>(
          const_cast<uint64_t *>(parameters_.data()) + address / 8);
    } else {
      if (address % bytes != 0)
        return problem(in, index,
                       fmt::format("{} bytes at {:#x}, which is no multiple",
                                   bytes, address));
      std::span<Cell> cells;
      std::string where;
      bool watched = true;
      MERAK_RETURN_IF_ERROR(
          locate(in, index, address, bytes, data, cells, where, watched));
      for (size_t i = 0; i < bytes && (watched || stores); ++i)
        MERAK_RETURN_IF_ERROR(
            touch(thread, index, in, cells[i], stores, where));
    }
    for (size_t i = 0; i < count; ++i, data += in.bytes) {
      if (stores) {
        const uint64_t word = value(thread, index, in.operands[i]);
        std::memcpy(data, &word, size_t(in.bytes));
        continue;
      }
      uint64_t word = 0;
      std::memcpy(&word, data, size_t(in.bytes));
      if (in.isSigned && in.bytes < 8 && word >> (8 * in.bytes - 1))
        word |= ~mask(in.bytes);
      thread.registers[size_t(in.operands[i].value)] = word;
    }
    return {};
  }

  Status locate(const Instruction &in, int index, uint64_t address,
                uint64_t bytes, char *&data, std::span<Cell> &cells,
                std::string &where, bool &watched) {
    if (in.space == Instruction::Shared) {
      if (address + bytes > shared_.size())
        return problem(in, index,
                       fmt::format("{} bytes at {} of {} of shared memory",
                                   bytes, address, shared_.size()));
      data = shared_.data() + address;
      cells = std::span(sharedCells_).subspan(address, bytes);
      where = "shared memory";
      return {};
    }
    for (size_t r = 0; r < regions_.size(); ++r) {
      const uint64_t begin = reinterpret_cast<uint64_t>(regions_[r].data);
      if (address < begin || address + bytes > begin + regions_[r].bytes)
        continue;
      data = regions_[r].data + (address - begin);
      cells = std::span(cells_[r]).subspan(address - begin, bytes);
      where = regions_[r].name;
      watched = !regions_[r].isInPlace;
      return {};
    }
    return problem(in, index,
                   fmt::format("{} bytes outside of all operands", bytes));
  }

  // Whether this thread comes after the other's touch.
  bool isAfter(const Touch &before, const Thread &thread,
               int64_t global) const {
    if (before.thread < 0 || before.thread == global)
      return true;
    if (before.thread / entry_.threads != block_)
      return false;
    if (before.barrier < thread.barrier)
      return true;
    return before.thread / kWarp == global / kWarp &&
           before.warpBarrier < thread.warpBarrier;
  }

  Status touch(const Thread &thread, int index, const Instruction &in,
               Cell &cell, bool stores, const std::string &where) {
    const int64_t global = block_ * entry_.threads + index;
    auto race = [&](const char *what, const Touch &other) {
      return problem(in, index,
                     fmt::format("{} what thread {} of block {} {} in {}, with "
                                 "no barrier between",
                                 stores ? "writes" : "reads",
                                 other.thread % entry_.threads,
                                 other.thread / entry_.threads, what, where));
    };
    if (!isAfter(cell.written, thread, global))
      return race("writes", cell.written);
    if (stores) {
      if (!isAfter(cell.read, thread, global) ||
          (cell.manyRead && cell.read.barrier >= thread.barrier))
        return race("reads", cell.read);
      cell.written = {global, thread.barrier, thread.warpBarrier};
      cell.isWritten = true;
      cell.manyRead = false;
      cell.read = {};
      return {};
    }
    if (in.space == Instruction::Shared && !cell.isWritten)
      return problem(in, index, "reads shared memory that nobody has written");
    cell.manyRead = cell.read.thread >= 0 &&
                    (cell.manyRead || cell.read.thread != global) &&
                    !(cell.read.thread / entry_.threads == block_ &&
                      cell.read.barrier < thread.barrier);
    cell.read = {global, thread.barrier, thread.warpBarrier};
    return {};
  }

  const Entry &entry_;
  std::span<const uint64_t> parameters_;
  int64_t blocks_, block_ = 0, executed_ = 0;
  std::span<const Region> regions_;
  std::mt19937_64 random_;
  std::vector<std::vector<Cell>> cells_; // by region
  std::vector<Thread> threads_;
  std::vector<char> shared_;
  std::vector<Cell> sharedCells_;
};

} // namespace

Status run(const Entry &entry, std::span<const uint64_t> parameters,
           int64_t blocks, std::span<const Region> regions, uint64_t seed,
           int64_t *executed) {
  Run run(entry, parameters, blocks, regions, seed);
  Status status = run.run();
  if (executed)
    *executed += run.executed();
  return status;
}

} // namespace merak::ptx
