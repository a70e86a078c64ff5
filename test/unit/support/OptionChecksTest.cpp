#include "support/OptionChecks.h"

#include <gtest/gtest.h>

using namespace merak;

namespace {

TEST(OptionChecks, BytesHaveUnits) {
  EXPECT_EQ(bytesOf("0"), 0);
  EXPECT_EQ(bytesOf("4096"), 4096);
  EXPECT_EQ(bytesOf("9007199254740993"), 9007199254740993); // no double
  EXPECT_EQ(bytesOf("1B"), 1);
  EXPECT_EQ(bytesOf("25MB"), 25'000'000);
  EXPECT_EQ(bytesOf("40GiB"), int64_t(40) << 30);
  EXPECT_EQ(bytesOf("40 gib"), int64_t(40) << 30);
  EXPECT_EQ(bytesOf("37.5GiB"), int64_t(75) << 29);
  EXPECT_EQ(bytesOf("1.5kb"), 1500);
  EXPECT_EQ(bytesOf("2TB"), 2'000'000'000'000);
  EXPECT_EQ(bytesOf("1PiB"), int64_t(1) << 50);
}

TEST(OptionChecks, OtherTextsAreNoBytes) {
  for (const char *text : {"", "GB", "x", "-1", "-1GB", "1.5", "40 GB or so",
                           "40G", "40Gi", "40EB", "0.1B", "1e3GB", "99999PB",
                           "nan", "inf", "40GBB", "0x10", "1..5GB"})
    EXPECT_EQ(bytesOf(text), std::nullopt) << text;
}

// What CLI11 would say of a value, and what the option then has.
std::pair<std::string, std::string> tell(const CLI::Validator &validator,
                                         std::string value) {
  std::string said = validator(value);
  return {said, value};
}

TEST(OptionChecks, SayWhatWasExpectedAndFound) {
  EXPECT_EQ(tell(isFrom(1), "7").first, "");
  EXPECT_EQ(tell(isFrom(1), "0").first,
            "expected a whole number from 1, found '0'");
  EXPECT_EQ(tell(isFrom(1), "1.5").first,
            "expected a whole number from 1, found '1.5'");
  EXPECT_EQ(tell(isFrom(0, 64), "65").first,
            "expected a whole number from 0 to 64, found '65'");
  EXPECT_EQ(tell(isNoLess(0), "0.5").first, "");
  EXPECT_EQ(tell(isNoLess(0), "-1").first,
            "expected a number from 0, found '-1'");
  EXPECT_EQ(tell(isNoLess(0), "nan").first,
            "expected a number from 0, found 'nan'");
  EXPECT_EQ(tell(inBytes(), "2MB"),
            std::pair(std::string(), std::string("2000000")));
  EXPECT_EQ(tell(inBytes(), "2 apples").first,
            "expected bytes, as 40000000000, 40GB or 37.5GiB, found "
            "'2 apples'");
}

} // namespace
