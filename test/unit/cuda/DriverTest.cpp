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
  unsetenv("LOCAL_RANK");
  EXPECT_EQ(*deviceOrdinal(), 0);
  setenv("LOCAL_RANK", "3", 1);
  EXPECT_EQ(*deviceOrdinal(), 3);
  setenv("MERAK_CUDA_DEVICE", "1", 1);
  EXPECT_EQ(*deviceOrdinal(), 1);
  setenv("MERAK_CUDA_DEVICE", "one", 1);
  EXPECT_EQ(deviceOrdinal().status().str(),
            "MERAK_CUDA_DEVICE: expected a number, found \"one\"");
  unsetenv("MERAK_CUDA_DEVICE");
  unsetenv("LOCAL_RANK");
}

} // namespace
} // namespace merak::cuda
