#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"
#include <gtest/gtest.h>
namespace merak {
TEST(Verify, SamplePlansAreFine) {
  EXPECT_EQ(verifyPlan(plantest::samplePlan()).str(), "");
  EXPECT_EQ(verifyPlan(plantest::replicatedPlan(3)).str(), "");
}
} // namespace merak
