#include "runtime/data/Npy.h"

#include "runtime/core/DType.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

// A file of version `major` with this header text and data.
std::string npy(int major, const std::string &header, const std::string &data) {
  std::string bytes = "\x93NUMPY";
  bytes += char(major);
  bytes += '\0';
  bytes += char(header.size() & 255);
  bytes += char(header.size() >> 8);
  if (major > 1)
    bytes += std::string(2, '\0');
  return bytes + header + data;
}

std::string errorOf(const std::string &bytes) {
  const std::string path = temporaryFolder() + "/x.npy";
  writeFile(path, bytes);
  auto array = openNpy(path);
  if (array.ok())
    return "";
  const std::string message = array.status().str();
  EXPECT_EQ(message.find("\"" + path + "\": "), 0u) << message;
  return message.substr(path.size() + 4);
}

} // namespace

TEST(Npy, WrittenFilesReadBack) {
  const std::string dir = temporaryFolder();
  for (planpb::DType dtype :
       {planpb::F32, planpb::I64, planpb::I32, planpb::BOOL, planpb::F16,
        planpb::F64, planpb::BF16, planpb::U16})
    for (std::vector<int64_t> shape :
         {std::vector<int64_t>{}, {3}, {2, 3, 4}, {0, 5}}) {
      int64_t bytes = dtypeSize(dtype);
      for (int64_t size : shape)
        bytes *= size;
      std::string data;
      for (int64_t i = 0; i < bytes; ++i)
        data += char(i * 37);
      ASSERT_TRUE(writeNpy(dir + "/x.npy", dtype, shape, data.data()).ok());
      auto array = openNpy(dir + "/x.npy");
      ASSERT_TRUE(array.ok()) << array.status().str();
      EXPECT_EQ(array->dtype, dtype);
      EXPECT_EQ(array->shape, shape);
      EXPECT_EQ(std::string(array->data, size_t(bytes)), data);
      EXPECT_EQ((array->data - array->file->data()) % 64, 0);
    }
  EXPECT_FALSE(writeNpy(dir + "/y.npy", planpb::DTYPE_INVALID, {1}, "ab").ok());
  EXPECT_FALSE(writeNpy(dir + "/no/y.npy", planpb::I8, {1}, "a").ok());
}

// Files as NumPy itself writes them.
TEST(Npy, ReadsTheReferenceCases) {
  auto array = openNpy(MERAK_TEST_DATA "/models/gpt2-tiny/data/input_ids.npy");
  ASSERT_TRUE(array.ok()) << array.status().str();
  EXPECT_EQ(array->dtype, planpb::I64);
  EXPECT_EQ(array->shape, (std::vector<int64_t>{80, 32}));
}

TEST(Npy, ReadsVersionTwoAndOldSpellings) {
  const std::string path = temporaryFolder() + "/x.npy";
  writeFile(path, npy(2,
                      "{ \"x\": 1, 'shape': (2L, 1), 'fortran_order':False,"
                      "'descr' : '<i4'}\n",
                      std::string("\1\0\0\0\2\0\0\0", 8)));
  auto array = openNpy(path);
  ASSERT_TRUE(array.ok()) << array.status().str();
  EXPECT_EQ(array->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(array->data[4], 2);
}

TEST(Npy, BadFilesGetASentence) {
  const std::string good =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  EXPECT_EQ(errorOf(npy(1, good, "12345678")), "");
  EXPECT_EQ(errorOf(npy(1, good, "1234567")),
            "7 bytes of data, expected 8 for shape 2");
  EXPECT_EQ(errorOf(""), "not a .npy file");
  EXPECT_EQ(errorOf("random bytes, not an array"), "not a .npy file");
  EXPECT_EQ(errorOf(npy(9, good, "12345678")),
            "version 9 of .npy is not known");
  EXPECT_EQ(errorOf(npy(1, good, "").substr(0, 30)), "the header is cut off");
  EXPECT_EQ(errorOf(npy(1,
                        "{'descr': '>f4', 'fortran_order': False, 'shape': "
                        "(2,), }",
                        "12345678")),
            "elements of type \">f4\" are not supported");
  EXPECT_EQ(errorOf(npy(1, "{'descr': [('a', '<f4')]}", "")),
            "the header has no simple type");
  EXPECT_EQ(errorOf(npy(1,
                        "{'descr': '<f4', 'fortran_order': True, 'shape': "
                        "(2,), }",
                        "12345678")),
            "the array is in column-major order; save it in row-major order "
            "(numpy.ascontiguousarray)");
  EXPECT_EQ(
      errorOf(npy(1, "{'descr': '<f4', 'fortran_order': False}", "12345678")),
      "the header has no shape");
  EXPECT_EQ(errorOf(npy(1,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': "
                        "(99999999999999, 99999999999999)}",
                        "12345678")),
            "the shape is too large");
}
