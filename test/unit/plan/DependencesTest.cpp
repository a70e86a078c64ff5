// Instructions that do several things at once: what ranks agree on follows from
// what each output is made from, and no less than that.
#include "runtime/plan/Dependences.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using plantest::ProgramBuilder;

layout::Layout split(const std::vector<int64_t> &shape, int dim) {
  layout::Layout layout = layout::Layout::replicated(shape);
  layout.dims[dim].factors[0].axes = {"tp"};
  return layout;
}

// A row-parallel linear layer on two ranks: x and the weight are split over tp
// along k, what comes back from the loss and the bias are not. One instruction
// makes the gradients of weight and bias.
struct RowParallel {
  LoadedPlan plan;

  explicit RowParallel(Instruction::Kind kind) {
    plan.file.set_version(kOneMeshVersion);
    plan.file.set_kernels("kernels.so");
    planpb::Axis *mesh = plan.file.add_mesh();
    mesh->set_name("tp");
    mesh->set_size(2);
    for (int64_t t = 0; t < 2; ++t) {
      planpb::Axis *at = plan.file.add_ranks()->add_coords();
      at->set_name("tp");
      at->set_size(t);
    }
    ProgramBuilder program({"compute"});
    int x = program.buffer("x", Buffer::ACTIVATIONS, {4, 8});
    int dy = program.buffer("dy", Buffer::ACTIVATIONS, {4, 6});
    int w = program.buffer("w", Buffer::PARAMETERS, {8, 6});
    int b = program.buffer("b", Buffer::PARAMETERS, {6});
    int dw = program.buffer("dw", Buffer::GRADIENTS, {8, 6});
    int db = program.buffer("db", Buffer::GRADIENTS, {6});
    program.holds(x, "x", split({4, 16}, 1));
    program.holds(dy, "dy", layout::Layout::replicated({4, 6}));
    program.holds(w, "w", split({16, 6}, 0));
    program.holds(b, "b", layout::Layout::replicated({6}));
    program.holds(dw, "grad:w", split({16, 6}, 0));
    program.holds(db, "grad:b", layout::Layout::replicated({6}));
    program.procedure("backward", Action::B);
    program.load("x", x);
    program.load("dy", dy);
    Instruction &both = program.library("einsum", {x, dy}, {dw, db});
    both.set_kind(kind);
    both.set_name("both");
    (*both.mutable_attrs())["equation"] = "bk,bn->kn";
    (*both.mutable_attrs())["sum"] = "1";
    program.call(0, 0);
    plan.programs = {program.proto()};
  }

  Instruction &both() {
    return *plan.programs[0].mutable_procedures(0)->mutable_instructions(2);
  }
  std::string verify() { return verifyReplication(plan).str(); }
};

constexpr char kWrong[] =
    "program 0 · gradient of \"b\" should be equal on all ranks along tp, but "
    "call 0 \"backward\" microbatch 0 · instruction 2 {} \"both\" makes it "
    "from values that differ there and were not reduced";
std::string wrong(const std::string &op) {
  std::string text = kWrong;
  return text.replace(text.find("{}"), 2, op);
}

TEST(Dependences, SumsOfAProductAreOfOneInput) {
  RowParallel layer(Instruction::LIBRARY);
  EXPECT_EQ(layer.verify(), "");
  (*layer.both().mutable_attrs())["sum"] = "0"; // of x, which is split
  EXPECT_EQ(layer.verify(), wrong("einsum"));
  layer.both().mutable_attrs()->erase("sum");
  EXPECT_EQ(layer.verify(), wrong("einsum"));
}

// Whatever is added to takes part; a bias that differs spoils its gradient.
TEST(Dependences, AccumulationAddsToItsOwnOutput) {
  RowParallel layer(Instruction::LIBRARY);
  layer.both().set_accumulate(true);
  EXPECT_EQ(layer.verify(), "");
  planpb::Program &program = layer.plan.programs[0];
  Instruction fill = program.procedures(0).instructions(2);
  fill.clear_inputs();
  fill.clear_attrs();
  fill.set_accumulate(false);
  fill.set_op("fill");
  fill.set_name("start");
  planpb::Scalar *value = fill.add_scalars();
  value->set_coordinate("tp");
  fill.mutable_outputs()->DeleteSubrange(0, 1);
  auto *list = program.mutable_procedures(0)->mutable_instructions();
  *list->Add() = fill;
  list->SwapElements(2, 3);
  EXPECT_NE(layer.verify().find("gradient of \"b\""), std::string::npos);
  EXPECT_EQ(layer.verify().find("gradient of \"w\""), std::string::npos);
}

TEST(Dependences, GeneratedKernelsSayWhatTheirOutputsDoNotRead) {
  RowParallel layer(Instruction::KERNEL);
  layer.both().set_op("merak_k0");
  EXPECT_EQ(layer.verify(), wrong("merak_k0"));
  auto &attrs = *layer.both().mutable_attrs();
  attrs[independenceAttr(1)] = independenceText({0}); // x
  EXPECT_EQ(layer.verify(), "");
  attrs[independenceAttr(1)] = independenceText({1}); // dy
  EXPECT_EQ(layer.verify(), wrong("merak_k0"));
}

TEST(Dependences, OnlyGeneratedKernelsMaySaySo) {
  RowParallel layer(Instruction::KERNEL);
  auto &attrs = *layer.both().mutable_attrs();
  auto problem = [&](const std::string &key, const std::string &text) {
    attrs[key] = text;
    std::string found = verifyStructure(layer.plan).str();
    attrs.erase(key);
    size_t at = found.find('"' + key);
    return at == std::string::npos
               ? found
               : found.substr(at, found.find('\n', at) - at);
  };
  EXPECT_EQ(problem("independent.0", "2"),
            "\"independent.0\" names input 2 of 2");
  EXPECT_EQ(problem("independent.2", "0"), "\"independent.2\"");
  EXPECT_EQ(problem("independent.", "0"), "\"independent.\"");
  for (const char *text : {"", "x", "0,", "0;1", ","})
    EXPECT_EQ(problem("independent.1", text), "\"independent.1\" is \"" +
                                                  std::string(text) +
                                                  "\", which lists no inputs");
  layer.both().set_kind(Instruction::LIBRARY);
  EXPECT_EQ(problem("independent.1", "0"),
            "\"independent.1\", but is no generated kernel");
}

TEST(Dependences, ResultsOfLibraryKernels) {
  auto reads = [](const std::string &op, int output, int inputs) {
    Instruction instruction;
    instruction.set_kind(Instruction::LIBRARY);
    instruction.set_op(op);
    std::string text;
    for (int i = 0; i < inputs; ++i)
      text += dependsOn(instruction, output, i) ? '1' : '0';
    return text;
  };
  EXPECT_EQ(reads("layer_norm", 0, 3), "111");
  EXPECT_EQ(reads("layer_norm", 1, 3), "100");
  EXPECT_EQ(reads("layer_norm", 2, 3), "100");
  EXPECT_EQ(reads("rms_norm", 1, 2), "10");
  EXPECT_EQ(reads("layer_norm_param_grad", 0, 4), "1111");
  EXPECT_EQ(reads("layer_norm_param_grad", 1, 4), "1000");
  EXPECT_EQ(reads("softmax_cross_entropy", 1, 2), "10");
  EXPECT_EQ(reads("attention", 0, 4), "1111");
  EXPECT_EQ(reads("attention", 1, 4), "1101");
  EXPECT_EQ(reads("something_new", 1, 3), "111");
}

} // namespace
} // namespace merak
