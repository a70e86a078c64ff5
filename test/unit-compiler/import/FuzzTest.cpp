// Damaged files end in a sentence, never in a crash.
#include "test/unit-compiler/import/TextModel.h"

#include <gtest/gtest.h>
#include <random>
#include <sstream>

using namespace merak;

static std::string readModel(const std::string &name) {
  std::ifstream file(std::string(MERAK_TEST_DATA) + "/models/" + name +
                         "/model.onnx",
                     std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

static void expectSentence(ImportFixture &fixture, const std::string &bytes,
                           const std::string &what) {
  ImportOptions options;
  options.globalBatch = 8;
  Imported imported = fixture.import(fixture.write("m.onnx", bytes), options);
  if (imported.ok())
    return;
  EXPECT_FALSE(imported.errors.empty()) << what;
  for (const std::string &error : imported.errors)
    EXPECT_EQ(error.rfind("m.onnx", 0), 0u) << what << ": " << error;
}

TEST(DamagedModels, Truncations) {
  ImportFixture fixture;
  std::string bytes = readModel("resnet-plain-tiny");
  ASSERT_GT(bytes.size(), 4000u);
  for (size_t size = 0; size < 600; size += 7)
    expectSentence(fixture, bytes.substr(0, size), std::to_string(size));
  for (size_t size = 600; size < bytes.size(); size += bytes.size() / 40)
    expectSentence(fixture, bytes.substr(0, size), std::to_string(size));
  // Not even a message: the file ends inside the graph.
  Imported imported =
      fixture.import(fixture.write("m.onnx", bytes.substr(0, 5000)), {});
  EXPECT_TRUE(imported.says("damaged or foreign data at byte"));
}

TEST(DamagedModels, RandomBytes) {
  ImportFixture fixture;
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(random() % 300, '\0');
    for (char &c : bytes)
      c = static_cast<char>(random());
    expectSentence(fixture, bytes, "random " + std::to_string(i));
  }
}

TEST(DamagedModels, FlippedBytes) {
  ImportFixture fixture;
  std::mt19937 random(11);
  for (const char *name : {"mlp-mse", "mlp-ce"}) {
    std::string bytes = readModel(name);
    // The graph's structure lies at the start; the weights follow.
    for (int i = 0; i < 250; ++i) {
      std::string damaged = bytes;
      for (int k = 0; k < 3; ++k)
        damaged[random() % 1200] = static_cast<char>(random());
      expectSentence(fixture, damaged, name + std::to_string(i));
    }
  }
}
