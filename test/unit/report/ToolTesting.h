// merak-plan in a test: a folder of the test's own, and what the tool printed.
#pragma once

#include "tools/merak-plan/PlanTool.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace merak::test {

class PlanToolTest : public ::testing::Test {
protected:
  void SetUp() override {
    const auto *own = ::testing::UnitTest::GetInstance()->current_test_info();
    root = std::filesystem::temp_directory_path() /
           ("merak-plan-tool-" + std::to_string(::getpid()) + "-" +
            own->test_suite_name() + "-" + own->name());
    std::filesystem::remove_all(root);
    std::filesystem::create_directories(root);
  }
  void TearDown() override { std::filesystem::remove_all(root); }

  // The exit code of `merak-plan COMMAND ARGUMENTS`.
  int runTool(const std::string &command, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"merak-plan", command});
    std::vector<const char *> raw;
    for (const std::string &argument : arguments)
      raw.push_back(argument.c_str());
    std::ostringstream outStream, errStream;
    const int code =
        planToolMain(int(raw.size()), raw.data(), outStream, errStream);
    out = outStream.str();
    err = errStream.str();
    return code;
  }

  std::filesystem::path root;
  std::string out, err;
};

} // namespace merak::test
