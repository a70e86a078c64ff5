#include "test/unit-compiler/ptx/Ptx.h"

#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace merak::ptx {
namespace {

// An entry of two parameters and 64 threads around `body`; %rd1 and %rd2 hold
// the parameters, %r1 the thread, %rd3 = %rd1 + 4 threads, %rd4 = %rd2 + 4
// threads.
std::string entryOf(const std::string &body) {
  return R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry kernel(
	.param .u64 .ptr .align 1 kernel_param_0,
	.param .u64 kernel_param_1
)
.reqntid 64
{
	.reg .pred 	%p<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	.shared .align 4 .b8 kernel_shared[256];

	ld.param.b64 	%rd5, [kernel_param_0];
	cvta.to.global.u64 	%rd1, %rd5;
	ld.param.b64 	%rd2, [kernel_param_1];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd6, %r1, 4;
	add.s64 	%rd3, %rd1, %rd6;
	add.s64 	%rd4, %rd2, %rd6;
	mov.b64 	%rd7, kernel_shared;
	add.s64 	%rd8, %rd7, %rd6;
)" + body +
         "\n\tret;\n\n}\n";
}

class PtxRun : public testing::Test {
protected:
  PtxRun() {
    for (int i = 0; i < 128; ++i)
      in_[i] = i;
  }
  // What is wrong with the kernel; empty: nothing.
  std::string run(const std::string &body, int64_t blocks = 1,
                  uint64_t seed = 1) {
    Result<Module> module = Module::parse(entryOf(body));
    if (!module.ok())
      return module.status().str();
    const Entry *entry = module->find("kernel");
    if (!entry)
      return "no entry";
    const uint64_t parameters[] = {std::bit_cast<uint64_t>(&in_[0]),
                                   std::bit_cast<uint64_t>(&out_[0])};
    const Region regions[] = {
        {reinterpret_cast<char *>(in_), sizeof(in_), "in"},
        {reinterpret_cast<char *>(out_), sizeof(out_), "out"}};
    executed_ = 0;
    return merak::ptx::run(*entry, parameters, blocks, regions, seed,
                           &executed_)
        .str();
  }
  int64_t executed_ = 0;
  alignas(16) int32_t in_[128], out_[128] = {};
};

TEST_F(PtxRun, ThreadsReadAndWriteTheirOwn) {
  EXPECT_EQ(run("ld.global.b32 %r2, [%rd3];\nshl.b32 %r3, %r2, 1;\n"
                "st.global.b32 [%rd4], %r3;"),
            "");
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(out_[i], 2 * i);
  EXPECT_EQ(out_[64], 0);
  EXPECT_EQ(executed_, 64 * (9 + 4)); // before the body, the body, ret
}

TEST_F(PtxRun, PredicatesLoopsAndBlocks) {
  // Every thread adds its number of the grid as often as it has threads below.
  EXPECT_EQ(run("mov.u32 %r2, %ctaid.x;\nshl.b32 %r3, %r2, 6;\n"
                "add.s32 %r4, %r3, %r1;\nmul.wide.u32 %rd9, %r4, 4;\n"
                "add.s64 %rd10, %rd2, %rd9;\nmov.b32 %r5, 0;\nmov.b32 %r6, 0;\n"
                "$L1:\nsetp.ge.u32 %p1, %r6, %r1;\n@%p1 bra $L2;\n"
                "add.s32 %r5, %r5, %r4;\nadd.s32 %r6, %r6, 1;\nbra.uni $L1;\n"
                "$L2:\n@!%p1 bra $L3;\nst.global.b32 [%rd10], %r5;\n$L3:",
                2),
            "");
  for (int i = 0; i < 128; ++i)
    EXPECT_EQ(out_[i], i * (i % 64));
}

TEST_F(PtxRun, VectorsAndParts) {
  EXPECT_EQ(run("setp.gt.u32 %p1, %r1, 15;\n@%p1 bra $END;\n"
                "mul.wide.u32 %rd9, %r1, 16;\nadd.s64 %rd10, %rd1, %rd9;\n"
                "add.s64 %rd11, %rd2, %rd9;\n"
                "ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd10];\n"
                "mov.b64 %rd12, {%r3, %r2};\nmov.b64 {%r6, %r7}, %rd12;\n"
                "st.global.v2.b32 [%rd11], {%r6, %r7};\n"
                "st.global.v2.b32 [%rd11+8], {%r5, %r4};\n$END:"),
            "");
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(out_[i], i ^ 1);
}

TEST_F(PtxRun, ShufflesWithinAWarp) {
  EXPECT_EQ(run("shfl.sync.bfly.b32 %r2|%p1, %r1, 5, 31, -1;\n"
                "shfl.sync.idx.b32 %r3, %r1, 3, 31, -1;\n"
                "shfl.sync.up.b32 %r4|%p2, %r1, 1, 0, -1;\n"
                "shfl.sync.down.b32 %r5|%p3, %r1, 1, 31, -1;\n"
                "selp.b32 %r6, 1, 0, %p2;\nselp.b32 %r7, 1, 0, %p3;\n"
                "shl.b32 %r8, %r3, 8;\nor.b32 %r9, %r2, %r8;\n"
                "shl.b32 %r10, %r4, 16;\nor.b32 %r11, %r9, %r10;\n"
                "shl.b32 %r12, %r6, 30;\nor.b32 %r13, %r11, %r12;\n"
                "st.global.b32 [%rd4], %r13;"),
            "");
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out_[i] & 255, i ^ 5) << i;
    EXPECT_EQ(out_[i] >> 8 & 255, i / 32 * 32 + 3) << i;
    EXPECT_EQ(out_[i] >> 16 & 255, i % 32 == 0 ? i : i - 1) << i;
    EXPECT_EQ(out_[i] >> 30 & 1, i % 32 != 0) << i;
  }
}

// Thread i takes what thread 63 - i has put into shared memory.
const char *kExchange = R"(
	st.shared.b32 	[%rd8], %r1;
	{}
	sub.s32 	%r2, 63, %r1;
	mul.wide.u32 	%rd9, %r2, 4;
	add.s64 	%rd10, %rd7, %rd9;
	ld.shared.b32 	%r3, [%rd10];
	st.global.b32 	[%rd4], %r3;
)";

TEST_F(PtxRun, ABarrierIsNeeded) {
  EXPECT_EQ(run(fmt::format(fmt::runtime(kExchange), "bar.sync 0;")), "");
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(out_[i], 63 - i);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const std::string said =
        run(fmt::format(fmt::runtime(kExchange), ""), 1, seed);
    EXPECT_TRUE(said.find("with no barrier between") != std::string::npos ||
                said.find("nobody has written") != std::string::npos)
        << said;
  }
  // One of the warp is not enough where warps exchange.
  EXPECT_NE(run(fmt::format(fmt::runtime(kExchange), "bar.warp.sync -1;")), "");
}

TEST_F(PtxRun, ABarrierOfTheWarpIsEnoughWithinIt) {
  const std::string within = R"(
	st.shared.b32 	[%rd8], %r1;
	bar.warp.sync 	-1;
	xor.b32 	%r2, %r1, 31;
	mul.wide.u32 	%rd9, %r2, 4;
	add.s64 	%rd10, %rd7, %rd9;
	ld.shared.b32 	%r3, [%rd10];
	st.global.b32 	[%rd4], %r3;
)";
  EXPECT_EQ(run(within), "");
  EXPECT_EQ(out_[3], 28);
}

// What is read must have been read by all before it is overwritten.
TEST_F(PtxRun, WritingWhatOthersStillReadIsARace) {
  const std::string again =
      std::string(kExchange) + "{}\nst.shared.b32 [%rd8], %r3;";
  EXPECT_EQ(run(fmt::format(fmt::runtime(again), "bar.sync 0;", "bar.sync 0;")),
            "");
  EXPECT_NE(run(fmt::format(fmt::runtime(again), "bar.sync 0;", ""))
                .find("with no barrier between"),
            std::string::npos);
}

TEST_F(PtxRun, BlocksMayNotShareWhatTheyWrite) {
  EXPECT_EQ(run("st.global.b32 [%rd4], %r1;"), "");
  EXPECT_NE(run("st.global.b32 [%rd4], %r1;", 2).find("in out"),
            std::string::npos);
  EXPECT_EQ(run("ld.global.b32 %r2, [%rd3];", 2), "");
}

TEST_F(PtxRun, BoundsAndAlignment) {
  EXPECT_NE(run("st.global.b32 [%rd4+260], %r1;").find("outside"),
            std::string::npos);
  EXPECT_EQ(run("st.global.b32 [%rd4+256], %r1;"), "");
  EXPECT_NE(run("ld.global.b32 %r2, [%rd3+-4];").find("thread 0: 4 bytes"),
            std::string::npos);
  EXPECT_NE(run("ld.global.b64 %rd9, [%rd3];").find("no multiple"),
            std::string::npos);
  EXPECT_NE(run("st.shared.b32 [%rd8+4], %r1;").find("of 256 of shared"),
            std::string::npos);
}

TEST_F(PtxRun, ThreadsThatDoNotMeet) {
  EXPECT_NE(run("setp.eq.s32 %p1, %r1, 7;\n@%p1 bra $END;\nbar.sync 0;\n$END:")
                .find("not all threads"),
            std::string::npos);
  EXPECT_NE(run("setp.eq.s32 %p1, %r1, 7;\n@%p1 bra $END;\n"
                "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\n$END:")
                .find("not all threads of the warp"),
            std::string::npos);
  EXPECT_NE(run("$L:\nbra.uni $L;").find("does not end"), std::string::npos);
}

TEST_F(PtxRun, WhatIsNotKnownIsNamed) {
  EXPECT_NE(run("tex.2d %r1, %r2;").find("tex.2d is not known"),
            std::string::npos);
  EXPECT_NE(run("bra $NOWHERE;").find("no label $NOWHERE"), std::string::npos);
  EXPECT_NE(run("ld.b32 %r1, [%rd1];").find("which memory"), std::string::npos);
  EXPECT_NE(run("add.s32 %r1;").find("expected 2 operands"), std::string::npos);
}

uint64_t compute(const char *name, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  const uint64_t inputs[] = {a, b, c};
  const Operation operation = operationOf(name);
  EXPECT_NE(operation, nullptr) << name;
  return operation ? operation(inputs) : 0;
}
uint64_t bits(float x) { return std::bit_cast<uint32_t>(x); }

TEST(PtxOperations, Integers) {
  EXPECT_EQ(compute("add.s32", 0xffffffff, 2), 1u);
  EXPECT_EQ(compute("mul.wide.s32", 0xffffffff, 3), uint64_t(-3));
  EXPECT_EQ(compute("mul.wide.u32", 0xffffffff, 3), 0x2fffffffdu);
  EXPECT_EQ(compute("mul.hi.u32", 0x80000000, 6), 3u);
  EXPECT_EQ(compute("mul.hi.s32", 0x80000000, 6), 0xfffffffdu);
  EXPECT_EQ(compute("shr.s32", 0x80000000, 40), 0xffffffffu);
  EXPECT_EQ(compute("shr.u32", 0x80000000, 40), 0u);
  EXPECT_EQ(compute("shl.b32", 1, 32), 0u);
  EXPECT_EQ(compute("bfe.u32", 0xabcd1234, 8, 8), 0x12u);
  EXPECT_EQ(compute("prmt.b32", 0x33221100, 0x77665544, 0x5140), 0x55114400u);
  EXPECT_EQ(compute("cvt.s64.s32", 0xffffffff), ~uint64_t{0});
  EXPECT_EQ(compute("cvt.u64.u32", 0xffffffff), 0xffffffffu);
  EXPECT_EQ(compute("rem.s32", uint32_t(-7), 3), 0xffffffffu);
}

TEST(PtxOperations, Floats) {
  const float nan = std::nanf("");
  EXPECT_EQ(compute("copysign.f32", bits(-2), bits(3)), bits(-3));
  EXPECT_EQ(compute("max.f32", bits(nan), bits(3)), bits(3));
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(
      uint32_t(compute("max.NaN.f32", bits(nan), bits(3))))));
  EXPECT_EQ(compute("max.f32", bits(-0.0f), bits(0.0f)), bits(0.0f));
  EXPECT_EQ(compute("min.f32", bits(-0.0f), bits(0.0f)), bits(-0.0f));
  EXPECT_EQ(compute("setp.lt.f32", bits(nan), bits(3)), 0u);
  EXPECT_EQ(compute("setp.ltu.f32", bits(nan), bits(3)), 1u);
  EXPECT_EQ(compute("setp.ne.f32", bits(nan), bits(3)), 0u);
  EXPECT_EQ(compute("setp.neu.f32", bits(nan), bits(3)), 1u);
  EXPECT_EQ(compute("cvt.rni.f32.f32", bits(2.5f)), bits(2));
  EXPECT_EQ(compute("cvt.rzi.s32.f32", bits(-2.9f)), uint32_t(-2));
  EXPECT_EQ(compute("cvt.rzi.s32.f32", bits(3e9f)), 0x7fffffffu);
  EXPECT_EQ(compute("cvt.rzi.u32.f32", bits(nan)), 0u);
}

TEST(PtxOperations, F16) {
  EXPECT_EQ(compute("cvt.rn.f16.f32", bits(1.00048828125f)), 0x3c00u); // a tie
  EXPECT_EQ(compute("cvt.rn.f16.f32", bits(65520)), 0x7c00u);
  EXPECT_EQ(compute("cvt.rn.f16x2.f32", bits(2), bits(1)), 0x40003c00u);
  EXPECT_EQ(compute("cvt.f32.f16", 0xc000), bits(-2));
  EXPECT_EQ(compute("add.rn.f16", 0x3c00, 0x1000), 0x3c00u); // a tie
  EXPECT_EQ(compute("sub.rn.f16", 0x3c00, 0x4000), 0xbc00u);
  EXPECT_EQ(compute("mul.rn.f16", 0x4200, 0xc200), 0xc880u); // 3 times -3
  EXPECT_EQ(compute("neg.f16", 0x3c00), 0xbc00u);
}

TEST(PtxOperations, Bf16) {
  EXPECT_EQ(compute("cvt.rn.bf16.f32", bits(1.00390625f)), 0x3f80u); // a tie
  EXPECT_EQ(compute("cvt.rn.bf16.f32", bits(1.01171875f)), 0x3f82u);
  EXPECT_EQ(compute("cvt.rn.bf16.f32", bits(std::nanf(""))), 0x7fffu);
  EXPECT_EQ(compute("cvt.rn.bf16x2.f32", bits(2), bits(1)), 0x40003f80u);
  EXPECT_EQ(compute("cvt.f32.bf16", 0xc000), bits(-2));
  EXPECT_EQ(compute("fma.rn.bf16", 0x4000, 0x4040, 0xbf80), 0x40a0u); // 5
  // 1 + 2^-8 + 2^-30: above the tie, which rounding twice would not see.
  EXPECT_EQ(compute("fma.rn.bf16", 0x3f80, 0x3f80, 0x3b80), 0x3f80u);
  EXPECT_EQ(compute("fma.rn.bf16", 0x3b81, 0x3f80, 0x3f80), 0x3f81u);
}

} // namespace
} // namespace merak::ptx
