#include "runtime/migration/Buckets.h"

#include <algorithm>

namespace merak::migration {

size_t Buckets::firstOpen(int device) {
  size_t &open = open_[size_t(device)];
  while (open < used_.size() && !hasRoom(open, device, mostBytes()))
    ++open;
  return open;
}

void Buckets::add(int sender, int receiver, Piece piece) {
  size_t at = std::max(firstOpen(sender), firstOpen(receiver));
  while (at < used_.size() && (!hasRoom(at, sender, piece.bytes) ||
                               !hasRoom(at, receiver, piece.bytes)))
    ++at;
  if (at == used_.size()) {
    used_.emplace_back(size_t(devices_), 0);
    messages_.emplace_back();
  }
  used_[at][size_t(sender)] += piece.bytes;
  used_[at][size_t(receiver)] += piece.bytes;
  const int round = (receiver - sender + devices_) % devices_;
  Message &message = messages_[at][{round, sender}];
  message.sender = sender;
  message.receiver = receiver;
  message.bytes += piece.bytes;
  message.pieces.push_back(std::move(piece));
}

std::vector<Bucket> Buckets::take() {
  std::vector<Bucket> result;
  for (auto &messages : messages_) {
    Bucket &bucket = result.emplace_back();
    for (auto &[place, message] : messages)
      bucket.messages.push_back(std::move(message));
  }
  return result;
}

} // namespace merak::migration
