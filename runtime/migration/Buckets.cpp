#include "runtime/migration/Buckets.h"

#include <algorithm>
#include <tuple>

namespace merak::migration {

size_t Buckets::firstOpen(size_t lane) {
  size_t &open = open_[lane];
  while (open < used_.size() && !hasRoom(open, lane, mostBytes()))
    ++open;
  return open;
}

void Buckets::add(int sender, int receiver, Piece piece) {
  size_t at = std::max(firstOpen(out(sender)), firstOpen(in(receiver)));
  while (at < used_.size() && (!hasRoom(at, out(sender), piece.bytes) ||
                               !hasRoom(at, in(receiver), piece.bytes)))
    ++at;
  if (at == used_.size()) {
    used_.emplace_back(open_.size(), 0);
    messages_.emplace_back();
  }
  used_[at][out(sender)] += piece.bytes;
  used_[at][in(receiver)] += piece.bytes;
  Message &message = messages_[at][{sender, receiver}];
  message.sender = sender;
  message.receiver = receiver;
  message.bytes += piece.bytes;
  message.pieces.push_back(std::move(piece));
}

namespace {

// An order of messages in which few wait: the device that has sent the least
// so far sends next, to the one of its receivers that is free first, the
// longest message first. Bytes stand for time.
class Order {
public:
  explicit Order(int devices) : out_(size_t(devices), 0), in_(out_) {}

  std::vector<Message> of(std::vector<Message> messages) {
    std::map<int, std::vector<Message *>> open; // by sender
    for (Message &message : messages)
      open[message.sender].push_back(&message);
    std::vector<Message> result;
    while (!open.empty()) {
      const auto sender = std::min_element(
          open.begin(), open.end(), [&](const auto &a, const auto &b) {
            return out_[size_t(a.first)] < out_[size_t(b.first)];
          });
      std::vector<Message *> &own = sender->second;
      int64_t &out = out_[size_t(sender->first)];
      auto key = [&](const Message *message) {
        return std::tuple(std::max(out, in_[size_t(message->receiver)]),
                          -message->bytes, message->receiver);
      };
      const auto next = std::min_element(
          own.begin(), own.end(),
          [&](const Message *a, const Message *b) { return key(a) < key(b); });
      int64_t &in = in_[size_t((*next)->receiver)];
      out = in = std::max(out, in) + (*next)->bytes;
      result.push_back(std::move(**next));
      own.erase(next);
      if (own.empty())
        open.erase(sender);
    }
    // A device begins its next bucket when it has sent and received all.
    for (const Message &message : result)
      for (int device : {message.sender, message.receiver})
        out_[size_t(device)] = in_[size_t(device)] =
            std::max(out_[size_t(device)], in_[size_t(device)]);
    return result;
  }

private:
  std::vector<int64_t> out_, in_; // bytes until a device is free
};

} // namespace

std::vector<Bucket> Buckets::take() {
  std::vector<Bucket> result;
  Order order(devices_);
  for (auto &messages : messages_) {
    std::vector<Message> list;
    for (auto &[pair, message] : messages)
      list.push_back(std::move(message));
    result.push_back({order.of(std::move(list))});
  }
  return result;
}

} // namespace merak::migration
