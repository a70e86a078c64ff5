#include "runtime/core/Arena.h"

#include "runtime/plan/Joined.h"
#include "runtime/plan/UnionFind.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) static_cast<void>(0)
#endif

namespace merak::runtime {

namespace {

constexpr uint64_t kAlignment = 256; // as devices allocate; divides kZone

// Byte i of a zone: words of 16 bits, 0x7f81 to 0x7fbe.
unsigned char pattern(uint64_t number, uint64_t i) {
  return i % 2 ? 0x7f : static_cast<unsigned char>(0x81 + number % 62);
}

uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Buffers that lie in one allocation, at the distances that they have in the
// plan: one, or those that a joined collective takes as one array.
struct Block {
  std::vector<int> buffers;
  uint64_t begin = 0, end = 0; // in the plan's arena, of slot 0
  uint64_t slots = 1;

  uint64_t stride() const { return aligned(end - begin + Arena::kZone); }
  uint64_t bytes() const { return Arena::kZone + slots * stride(); }
};

std::vector<Block> blocksOf(const planpb::Program &program) {
  const size_t count = size_t(program.buffers_size());
  UnionFind joined(count);
  for (const planpb::Procedure &procedure : program.procedures())
    for (const planpb::Instruction &instruction : procedure.instructions())
      if (isJoined(instruction))
        for (const planpb::Operand &operand : instruction.inputs())
          if (std::max(operand.buffer(), instruction.inputs(0).buffer()) <
              count)
            joined.unite(int(operand.buffer()),
                         int(instruction.inputs(0).buffer()));
  std::map<int, Block> blocks;
  for (int b = 0; b < program.buffers_size(); ++b) {
    const planpb::Buffer &buffer = program.buffers(b);
    auto [found, isNew] = blocks.try_emplace(joined.find(b));
    Block &block = found->second;
    const uint64_t end = buffer.offset() + buffer.bytes();
    block.begin =
        isNew ? buffer.offset() : std::min(block.begin, buffer.offset());
    block.end = std::max(block.end, end);
    block.slots = std::max<uint64_t>(block.slots, buffer.slots());
    block.buffers.push_back(b);
  }
  std::vector<Block> list;
  for (auto &[first, block] : blocks)
    list.push_back(std::move(block));
  return list;
}

// The changed byte that is nearest to the slot: of a zone behind it the first
// one, before it the last. Its distance from there; `bytes`: none is changed.
// The host's zones may be poisoned.
#if defined(__SANITIZE_ADDRESS__)
__attribute__((no_sanitize_address))
#endif
uint64_t
nearestChange(const char *zone, uint64_t bytes, uint64_t number, bool behind) {
  for (uint64_t k = 0; k < bytes; ++k) {
    const uint64_t i = behind ? k : bytes - 1 - k;
    if (static_cast<unsigned char>(zone[i]) != pattern(number, i))
      return k;
  }
  return bytes;
}

} // namespace

Arena::~Arena() {
  if (backend_.isHost())
    for ([[maybe_unused]] const Zone &zone : zones_)
      ASAN_UNPOISON_MEMORY_REGION(zone.begin, zone.bytes);
  for (void *block : blocks_)
    (separate_ ? backend_ : packed_).release(block);
}

uint64_t Arena::bytes(const planpb::Program &program, bool separate) {
  if (!separate)
    return program.arena_bytes();
  uint64_t sum = 0;
  for (const Block &block : blocksOf(program))
    sum += block.bytes();
  return sum;
}

Status Arena::take(bool separate, BufferMemory given) {
  separate_ = separate;
  given_ = std::move(given);
  places_.resize(size_t(program_.buffers_size()));
  if (!separate)
    return takePacked();
  if (!given_.empty())
    return Status::error("buffers that lie apart have no red zones");
  return takeSeparate();
}

std::shared_ptr<char> Arena::given(int buffer) const {
  const auto found = given_.find(buffer);
  return found == given_.end() ? nullptr : found->second;
}

// What lies behind a given buffer moves up by its place: of buffers at 0, 64
// and 192 without the second one the third is at 64.
Status Arena::takePacked() {
  std::map<uint64_t, uint64_t> holes; // bytes, by offset
  for (const auto &[b, memory] : given_) {
    const uint64_t begin = program_.buffers(b).offset();
    const uint64_t end = begin + (program_.buffers(b).bytes() + 63) / 64 * 64;
    holes[begin] = std::min(end, program_.arena_bytes()) - begin;
  }
  uint64_t sum = 0;
  for (auto &[begin, bytes] : holes)
    bytes = sum += bytes;
  auto memory = packed_.allocate(program_.arena_bytes() - sum);
  if (!memory)
    return memory.status();
  blocks_.push_back(*memory);
  for (int b = 0; b < program_.buffers_size(); ++b) {
    const planpb::Buffer &buffer = program_.buffers(b);
    const auto behind = holes.lower_bound(buffer.offset());
    const uint64_t moved =
        behind == holes.begin() ? 0 : std::prev(behind)->second;
    char *own = given(b).get();
    places_[size_t(b)] = {
        own ? own : static_cast<char *>(*memory) + buffer.offset() - moved,
        buffer.slot_stride(),
        {},
        {}};
  }
  return {};
}

Status Arena::takeSeparate() {
  for (const Block &block : blocksOf(program_)) {
    auto memory = backend_.allocate(block.bytes());
    if (!memory)
      return memory.status();
    blocks_.push_back(*memory);
    char *first = static_cast<char *>(*memory);
    const uint64_t bytes = block.end - block.begin, stride = block.stride();
    const uint64_t number = zones_.size();
    const Zone before{first, kZone, number};
    const Zone behind{first + kZone + bytes, stride - bytes, number + 1};
    MERAK_RETURN_IF_ERROR(fill(before));
    for (uint64_t slot = 0; slot < block.slots; ++slot)
      MERAK_RETURN_IF_ERROR(fill(
          {behind.begin + slot * stride, behind.bytes, behind.number + slot}));
    for (int b : block.buffers)
      places_[b] = {first + kZone + program_.buffers(b).offset() - block.begin,
                    stride, before, behind};
  }
  return backend_.synchronize(nullptr);
}

Status Arena::fill(Zone zone) {
  std::vector<unsigned char> bytes(zone.bytes);
  for (uint64_t i = 0; i < zone.bytes; ++i)
    bytes[i] = pattern(zone.number, i);
  MERAK_RETURN_IF_ERROR(
      backend_.copyToDevice(zone.begin, bytes.data(), zone.bytes, nullptr));
  zones_.push_back(zone);
  if (backend_.isHost())
    ASAN_POISON_MEMORY_REGION(zone.begin, zone.bytes);
  return {};
}

Status Arena::checkZone(Zone zone, int buffer, bool behind,
                        StreamHandle stream) const {
  std::vector<char> copy;
  if (!backend_.isHost()) {
    copy.resize(zone.bytes);
    MERAK_RETURN_IF_ERROR(
        backend_.copyToHost(copy.data(), zone.begin, zone.bytes, stream));
  }
  const uint64_t at = nearestChange(copy.empty() ? zone.begin : copy.data(),
                                    zone.bytes, zone.number, behind);
  if (at == zone.bytes)
    return {};
  return Status::error(
      fmt::format("wrote {} buffer \"{}\", {} bytes from its {}",
                  behind ? "behind" : "before", program_.buffers(buffer).name(),
                  behind ? at : at + 1, behind ? "end" : "begin"));
}

// What lies before a later slot is the zone behind the one before.
Status Arena::check(int buffer, uint32_t slot, StreamHandle stream) const {
  if (!separate_)
    return {};
  const Place &place = places_[size_t(buffer)];
  auto behind = [&](uint32_t of) {
    return Zone{place.behind.begin + of * place.stride, place.behind.bytes,
                place.behind.number + of};
  };
  MERAK_RETURN_IF_ERROR(checkZone(slot == 0 ? place.before : behind(slot - 1),
                                  buffer, false, stream));
  return checkZone(behind(slot), buffer, true, stream);
}

Status Arena::checkAll(StreamHandle stream) const {
  Status problems;
  if (separate_)
    for (int b = 0; b < program_.buffers_size(); ++b)
      for (uint32_t slot = 0; slot < std::max(1u, program_.buffers(b).slots());
           ++slot)
        problems.merge(check(b, slot, stream));
  return problems;
}

} // namespace merak::runtime
