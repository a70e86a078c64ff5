// The function that fuzzers call; libFuzzer's name for it.
#pragma once

#include <cstddef>
#include <cstdint>

// Returns 1 if the bytes were a model that import accepts, else 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
