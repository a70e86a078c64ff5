// What a machine without a driver is told; and the choice of a device.
#include "runtime/backends/cuda/Driver.h"

#include <cstdlib>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace merak::cuda {
namespace {

TEST(CudaDriver, ItsLackIsOneSentence) {
  if (dlopen("libcuda.so.1", RTLD_NOW))
    GTEST_SKIP() << "this machine has a driver";
  for (int i = 0; i < 2; ++i) { // the second time as the first
    auto device = openDevice(0);
    ASSERT_FALSE(device.ok());
    ASSERT_EQ(device.status().messages().size(), 1u);
    EXPECT_EQ(device.status().str().rfind(
                  "the cuda backend needs NVIDIA's driver: libcuda.so.1: ", 0),
              0u)
        << device.status().str();
  }
}

TEST(CudaDriver, DeviceFromTheEnvironment) {
  unsetenv("MERAK_CUDA_DEVICE");
  EXPECT_EQ(*deviceOrdinal(0), 0);
  EXPECT_EQ(*deviceOrdinal(3), 3);
  setenv("MERAK_CUDA_DEVICE", "1", 1);
  EXPECT_EQ(*deviceOrdinal(3), 1);
  setenv("MERAK_CUDA_DEVICE", "one", 1);
  EXPECT_EQ(deviceOrdinal(0).status().str(),
            "MERAK_CUDA_DEVICE: expected a number, found \"one\"");
  unsetenv("MERAK_CUDA_DEVICE");
}

} // namespace
} // namespace merak::cuda
