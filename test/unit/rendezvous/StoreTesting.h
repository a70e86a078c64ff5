// Several ranks of one process, each with a store of its own.
#pragma once

#include "runtime/comm/rendezvous/TcpStore.h"

#include <gtest/gtest.h>

#include <thread>

namespace merak::runtime::test {

// Runs `body` as every rank, each a thread; all leave together.
inline void runStores(int size, const std::function<void(Store &store)> &body,
                      double silence = 7) {
  auto listener = StoreListener::open(0);
  ASSERT_TRUE(listener.ok()) << listener.status().str();
  const int port = (*listener)->port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      TcpStoreOptions options{rank,    size, {"127.0.0.1"}, port,
                              "token", 20,   silence};
      auto store = openTcpStore(options, rank ? nullptr : std::move(*listener));
      ASSERT_TRUE(store.ok()) << store.status().str();
      body(**store);
      (*store)->leave(20);
    });
  for (std::thread &thread : threads)
    thread.join();
}

} // namespace merak::runtime::test
