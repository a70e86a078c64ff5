#include "support/OptionErrors.h"

#include <gtest/gtest.h>

using namespace merak;

namespace {

TEST(OptionErrors, CountLetters) {
  EXPECT_EQ(lettersBetween("", ""), 0u);
  EXPECT_EQ(lettersBetween("steps", "steps"), 0u);
  EXPECT_EQ(lettersBetween("step", "steps"), 1u);
  EXPECT_EQ(lettersBetween("kitten", "sitting"), 3u);
  EXPECT_EQ(lettersBetween("", "abc"), 3u);
}

std::string said(std::vector<std::string> arguments) {
  CLI::App app("", "tool");
  std::string text;
  app.add_option("--steps", text, "");
  CLI::App *draw = app.add_subcommand("draw", "");
  draw->add_option("--columns", text, "");
  app.add_subcommand("print", "");
  app.require_subcommand(1);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::Error &error) {
    return sentenceOf(app, error);
  }
  return "nothing is wrong";
}

TEST(OptionErrors, SayWhatMayBeMeant) {
  EXPECT_EQ(said({"--steps=2", "draw", "--columns=3"}), "nothing is wrong");
  EXPECT_EQ(said({"--step=2", "draw"}),
            "The following argument was not expected: --step=2; did you mean "
            "--steps?");
  EXPECT_EQ(said({"draw", "--colums=2"}),
            "The following argument was not expected: --colums=2; did you mean "
            "--columns?");
  EXPECT_EQ(said({"draw", "--gpus=2"}),
            "The following argument was not expected: --gpus=2");
  EXPECT_EQ(said({"show"}), "expected one of the commands draw, print");
}

} // namespace
