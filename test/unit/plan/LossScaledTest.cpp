// Plans of a scaled loss in which some gradient keeps the scale.
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Verify.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Instruction;

// The last of two stages scales the loss; both know the factor of updates.
struct Scaled {
  LoadedPlan plan;
  Instruction *scale = nullptr, *factor[2], *update[2];

  Scaled() {
    for (int stage : {0, 1}) {
      planpb::Program &program = plan.programs.emplace_back();
      program.set_index(uint32_t(stage));
      planpb::Procedure &step = *program.add_procedures();
      step.set_name("step");
      auto add = [&](const char *op, bool scaled) {
        Instruction *made = step.add_instructions();
        made->set_kind(Instruction::LIBRARY);
        made->set_op(op);
        if (scaled)
          made->add_scalars()->set_runtime(kGradScale);
        return made;
      };
      if (stage == 1)
        scale = add("scale", true);
      factor[stage] = add("clip_factor", true);
      update[stage] = add("sgd_update", false);
      (*update[stage]->mutable_attrs())["clip"] = "1";
    }
  }
  std::string verify() const { return verifyLossScale(plan).str(); }
};

TEST(LossScaled, IsFine) {
  const Scaled scaled;
  EXPECT_EQ(scaled.verify(), "");
  EXPECT_TRUE(scalesLoss(scaled.plan));
}

TEST(LossScaled, NothingIsScaled) {
  Scaled scaled;
  scaled.scale->clear_scalars();
  for (Instruction *factor : scaled.factor)
    factor->clear_scalars();
  (*scaled.update[0]->mutable_attrs())["clip"] = "0";
  EXPECT_EQ(scaled.verify(), "");
  EXPECT_FALSE(scalesLoss(scaled.plan));
}

TEST(LossScaled, AFactorLeavesTheScale) {
  Scaled scaled;
  scaled.factor[0]->mutable_scalars(0)->set_f(1);
  EXPECT_EQ(scaled.verify(),
            "program 0 · procedure 0 \"step\" · instruction 0 clip_factor "
            "leaves the scale of the loss in the gradients");
}

TEST(LossScaled, AnUpdateTakesGradientsAsTheyAre) {
  Scaled scaled;
  (*scaled.update[1]->mutable_attrs())["clip"] = "0";
  EXPECT_EQ(scaled.verify(),
            "program 1 · procedure 0 \"step\" · instruction 2 sgd_update "
            "takes gradients of a scaled loss as they are");
}

TEST(LossScaled, AScaleIsTakenOutThatIsNotThere) {
  Scaled scaled;
  scaled.scale->mutable_scalars(0)->set_f(1);
  EXPECT_EQ(scaled.verify(),
            "program 0 · procedure 0 \"step\" · instruction 0 clip_factor "
            "takes out a scale that the loss does not have\n"
            "program 1 · procedure 0 \"step\" · instruction 1 clip_factor "
            "takes out a scale that the loss does not have");
}

} // namespace
} // namespace merak
