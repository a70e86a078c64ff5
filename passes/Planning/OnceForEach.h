// What is made once for each key and stays, by whichever thread asks first.
#pragma once

#include <map>
#include <mutex>
#include <optional>

namespace merak::planning {

template <typename Key, typename Value> class OnceForEach {
public:
  // `make` gives the value of the key. Threads that want the same one wait for
  // the first of them; it may ask for those of other keys.
  template <typename Make> const Value &of(const Key &key, const Make &make) {
    std::unique_lock lock(mutex);
    Entry &entry = all[key]; // stays where it is
    lock.unlock();
    std::call_once(entry.made, [&] { entry.value.emplace(make()); });
    return *entry.value;
  }

private:
  struct Entry {
    std::once_flag made;
    std::optional<Value> value;
  };
  std::mutex mutex;
  std::map<Key, Entry> all;
};

} // namespace merak::planning
