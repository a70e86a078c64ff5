#include "runtime/core/HostBackend.h"

#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <cstdint>

using namespace merak;
using namespace merak::runtime;
using merak::runtime::test::TestBackend;

namespace {

planpb::Instruction affine() {
  planpb::Instruction instruction;
  instruction.set_kind(planpb::Instruction::KERNEL);
  instruction.set_op("merak_test_affine");
  instruction.set_rows(64);
  instruction.add_scalars();
  instruction.add_scalars();
  return instruction;
}

} // namespace

TEST(HostBackend, MemoryIsAlignedAndCleared) {
  ThreadPool pool(1);
  TestBackend backend(pool);
  for (uint64_t bytes : {0ull, 1ull, 100ull, 8ull << 20}) {
    auto memory = backend.allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 64, 0u);
    for (uint64_t i = 0; i < bytes; ++i)
      ASSERT_EQ(static_cast<char *>(*memory)[i], 0);
    backend.release(*memory);
  }
}

TEST(HostBackend, RunsGeneratedKernelsForAnyNumberOfThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    TestBackend backend(pool);
    ASSERT_TRUE(backend.loadKernels(MERAK_TEST_KERNELS).ok());
    const planpb::Instruction instruction = affine();
    std::vector<float> in(512), out(512, -1);
    for (int i = 0; i < 512; ++i)
      in[i] = float(i);
    const View x{in.data(), planpb::F32, {64, 8}, {8, 1}};
    const View y{out.data(), planpb::F32, {64, 8}, {8, 1}};
    auto prepared = backend.prepare(instruction, {&x, 1}, {&y, 1});
    ASSERT_TRUE(prepared.ok()) << prepared.status().str();
    const ScalarValue scalars[] = {ScalarValue::real(0.5),
                                   ScalarValue::integer(3)};
    KernelCall call{&instruction, prepared->get(), {&x, 1}, {&y, 1}, scalars};
    ASSERT_TRUE(backend.run(call).ok());
    for (int i = 0; i < 512; ++i)
      ASSERT_EQ(out[i], float(i) * 0.5f + 3);
  }
}

TEST(HostBackend, SaysWhichKernelIsMissing) {
  ThreadPool pool(1);
  TestBackend backend(pool);
  planpb::Instruction instruction = affine();
  auto none = backend.prepare(instruction, {}, {});
  EXPECT_EQ(none.status().str(),
            "kernel \"merak_test_affine\": the plan has no file of kernels");
  ASSERT_TRUE(backend.loadKernels(MERAK_TEST_KERNELS).ok());
  instruction.set_op("absent");
  auto absent = backend.prepare(instruction, {}, {});
  EXPECT_NE(absent.status().str().find("kernel \"absent\" is not in"),
            std::string::npos);
  EXPECT_NE(backend.loadKernels("/nowhere/kernels.so")
                .str()
                .find("cannot open kernels"),
            std::string::npos);
}
