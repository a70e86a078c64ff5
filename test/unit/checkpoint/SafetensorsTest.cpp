#include "test/unit/checkpoint/CheckpointTesting.h"

namespace merak::runtime::test {
namespace {

std::string withHeader(const std::string &header, const std::string &data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string errorOf(const std::string &bytes) {
  const std::string path = temporaryFolder() + "/x.safetensors";
  writeFile(path, bytes);
  auto file = openSafetensors(path);
  if (file.ok())
    return "";
  const std::string message = file.status().str();
  return message.substr(path.size() + 4);
}

} // namespace

TEST(Safetensors, WrittenFilesReadBack) {
  const std::string path = temporaryFolder() + "/x.safetensors";
  auto bytes = [](const std::string &text) {
    return [text](char *data) {
      std::memcpy(data, text.data(), text.size());
      return Status();
    };
  };
  ASSERT_TRUE(
      writeSafetensors(
          path, {{"a \"quoted\" name", planpb::I8, {2, 3}, bytes("abcdef")},
                 {"none", planpb::F32, {0}, bytes("")},
                 {"scalar", planpb::BF16, {}, bytes("xy")}})
          .ok());
  auto file = openSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status().str();
  const SafetensorsEntry &a = file->tensors.at("a \"quoted\" name");
  EXPECT_EQ(a.dtype, planpb::I8);
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::string(a.data, 6), "abcdef");
  EXPECT_EQ(std::string(file->tensors.at("scalar").data, 2), "xy");
  EXPECT_EQ(file->tensors.at("none").shape, (std::vector<int64_t>{0}));
  EXPECT_EQ((file->tensors.at("scalar").data - file->file->data()) % 2, 0);
}

// Written by another program.
TEST(Safetensors, ReadsTheReferenceCases) {
  auto file =
      openSafetensors(MERAK_TEST_DATA "/models/mlp-mse/grads.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().str();
  EXPECT_EQ(file->tensors.size(), 6u);
}

TEST(Safetensors, AFailedFillLeavesNoFile) {
  const std::string dir = temporaryFolder();
  EXPECT_EQ(writeSafetensors(dir + "/x",
                             {{"a",
                               planpb::I8,
                               {1},
                               [](char *) { return Status::error("lost"); }}})
                .str(),
            "lost");
  EXPECT_EQ(namesIn(dir)->size(), 0u);
  EXPECT_NE(writeSafetensors(dir + "/no/x", {}).str().find("cannot write"),
            std::string::npos);
}

TEST(Safetensors, BadFilesGetASentence) {
  const std::string good =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(errorOf(withHeader(good, "12345678")), "");
  EXPECT_EQ(errorOf(withHeader(good, "1234567")),
            "tensor \"a\" lies at bytes 0..8 of 7, expected 8 bytes");
  EXPECT_EQ(errorOf("short"),
            "not a safetensors file, or cut off in its header");
  EXPECT_EQ(errorOf(std::string(8, '\xff') + "{}"),
            "not a safetensors file, or cut off in its header");
  EXPECT_EQ(errorOf(withHeader("random bytes", "")), "the header is not JSON");
  EXPECT_EQ(errorOf(withHeader(R"({"a":7})", "")),
            "tensor \"a\" has no dtype, shape and data_offsets");
  EXPECT_EQ(errorOf(withHeader(
                R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})",
                "x")),
            "tensor \"a\" has the unsupported type \"F8_E4M3\"");
  EXPECT_EQ(
      errorOf(withHeader(
          R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "")),
      "tensor \"a\" has no valid shape");
  EXPECT_EQ(
      errorOf(withHeader(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "")),
      "tensor \"a\" lies at bytes 8..0 of 0, expected 8 bytes");
  // Sizes whose product wraps, beside a zero.
  EXPECT_EQ(errorOf(withHeader(
                R"({"a":{"dtype":"F32","shape":[4611686018427387904,0,4],)"
                R"("data_offsets":[0,0]}})",
                "")),
            "tensor \"a\" has no valid shape");
}

TEST(Safetensors, EachByteBelongsToOneTensor) {
  auto two = [](const std::string &first, const std::string &second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(errorOf(withHeader(two("[0,4]", "[4,8]"), "12345678")), "");
  EXPECT_EQ(errorOf(withHeader(two("[0,4]", "[0,4]"), "12345678")),
            "tensor \"b\" overlaps another one at byte 0 of the data");
  EXPECT_EQ(errorOf(withHeader(two("[0,4]", "[5,9]"), "123456789")),
            "tensor \"b\" lies behind a gap at byte 5 of the data");
  EXPECT_EQ(errorOf(withHeader(two("[0,4]", "[4,8]"), "123456789")),
            "1 bytes behind the last tensor");
}

} // namespace merak::runtime::test
