#include "runtime/launch/StopTogether.h"

#include <algorithm>
#include <csignal>

namespace merak::runtime {

StopTogether::StopTogether(Store *store) : store_(store) {
  if (store_)
    store_->listen(
        [this](int, const std::string &topic, const std::string &text) {
          if (topic == "stop")
            ask(text);
        });
}

StopTogether::~StopTogether() {
  if (store_)
    store_->listen(nullptr);
}

// Any thread; only the first time counts.
void StopTogether::ask(const std::string &cause) {
  std::lock_guard lock(mutex_);
  if (!cause_.empty())
    return;
  cause_ = cause;
  if (store_)
    (void)store_->contribute("steps begun", std::to_string(begun_));
}

Result<bool> StopTogether::mayBegin(int signal) {
  if (signal) {
    const std::string name = signal == SIGINT ? "SIGINT" : "SIGTERM";
    if (cause().empty() && store_)
      MERAK_RETURN_IF_ERROR(store_->notify("stop", name));
    ask(name);
  }
  std::unique_lock lock(mutex_);
  if (!cause_.empty() && limit_ < 0) {
    limit_ = begun_;
    if (store_) {
      lock.unlock();
      auto all = store_->collect("steps begun", kPatienceSeconds);
      if (!all.ok())
        return all.status();
      lock.lock();
      for (const std::string &count : *all)
        limit_ = std::max<int64_t>(limit_, std::stoll(count));
    }
  }
  if (!cause_.empty() && begun_ >= limit_)
    return false;
  ++begun_;
  return true;
}

std::string StopTogether::cause() const {
  std::lock_guard lock(mutex_);
  return cause_;
}

} // namespace merak::runtime
