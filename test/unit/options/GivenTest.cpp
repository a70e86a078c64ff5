// What a plan says of how it was compiled.
#include "compiler/Pipeline/Options.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

CompilerOptions parsed(std::vector<const char *> words) {
  words.insert(words.begin(), {"merakc", "m.onnx", "-o", "o"});
  ParsedOptions result = parseOptions(int(words.size()), words.data());
  EXPECT_EQ(result.text, "");
  return result.options;
}

using Texts = std::vector<std::string>;

TEST(Given, IsWhatSaysWhatIsTrainedAndWhere) {
  EXPECT_EQ(parsed({}).given, Texts());
  EXPECT_EQ(parsed({"--report=r.html", "-q", "--mesh=pp=2", "--keep-shared",
                    "--shape=a=1x2", "--shape=b=3", "--precision=bf16",
                    "--emit-strategy=s.json", "--forbid=zero"})
                .given,
            (Texts{"--shape=a=1x2", "--shape=b=3", "--keep-shared",
                   "--precision=bf16", "--mesh=pp=2", "--forbid=zero"}));
  // No command compiles these again.
  EXPECT_EQ(parsed({"--from=graph", "--mesh=pp=2"}).given, Texts());
}

TEST(Given, DoesNotDependOnTheOrderOfOptions) {
  EXPECT_EQ(parsed({"--mesh=pp=2", "--precision=bf16"}).given,
            parsed({"--precision=bf16", "--mesh=pp=2"}).given);
}

TEST(Family, HasAPlanForEachSituation) {
  const CompilerOptions all =
      parsed({"--for-rates=none", "--for-rates=2:3", "--for-rates=0:1.5,2:4"});
  ASSERT_EQ(all.family.size(), 3u);
  EXPECT_TRUE(all.forRates.empty());
  Texts outputs;
  for (size_t member = 0; member < 3; ++member)
    outputs.push_back(memberOf(all, member).output);
  EXPECT_EQ(outputs, (Texts{"o/healthy.plan", "o/rates-2x3.plan",
                            "o/rates-0x1.5-2x4.plan"}));
  const CompilerOptions last = memberOf(all, 2);
  EXPECT_EQ(last.forRates, (std::map<int64_t, double>{{0, 1.5}, {2, 4}}));
  EXPECT_EQ(last.given, Texts{"--for-rates=0:1.5,2:4"});
  // As if it had been given alone.
  EXPECT_EQ(last.given, parsed({"--for-rates=0:1.5,2:4"}).given);
  EXPECT_TRUE(parsed({"--for-rates=2:3"}).family.empty());
}

} // namespace
} // namespace merak
