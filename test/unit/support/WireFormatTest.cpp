// The walker of messages against protobuf's own parser, on whole messages, on
// damaged ones and on one that is larger than protobuf takes.
#include "support/WireFormat.h"

#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/mman.h>

namespace merak::wire {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

void fillRandomly(UnknownFieldSet &message, std::mt19937_64 &random) {
  for (uint64_t count = random() % 6; count > 0; --count) {
    const int number = 1 + static_cast<int>(random() % (1u << random() % 29));
    const uint64_t value = random() >> random() % 64;
    switch (random() % 4) {
    case 0:
      message.AddVarint(number, value);
      break;
    case 1:
      message.AddFixed64(number, value);
      break;
    case 2:
      message.AddFixed32(number, static_cast<uint32_t>(value));
      break;
    default:
      message.AddLengthDelimited(number, std::string(value % 300, 'x'));
    }
  }
}

Type typeOf(const UnknownField &known) {
  switch (known.type()) {
  case UnknownField::TYPE_VARINT:
    return kNumber;
  case UnknownField::TYPE_FIXED32:
    return kFixed32;
  case UnknownField::TYPE_FIXED64:
    return kFixed64;
  default:
    return kBytes;
  }
}

void expectEqual(const Field &field, const UnknownField &known) {
  EXPECT_EQ(static_cast<int>(field.number), known.number());
  ASSERT_EQ(field.type, typeOf(known));
  switch (field.type) {
  case kNumber:
    EXPECT_EQ(field.value, known.varint());
    break;
  case kFixed32:
    EXPECT_EQ(field.bytes.size(), 4u);
    break;
  case kFixed64:
    EXPECT_EQ(field.bytes.size(), 8u);
    break;
  default:
    EXPECT_EQ(field.bytes, known.length_delimited());
  }
}

TEST(WireFormat, AgreesWithProtobuf) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    UnknownFieldSet message;
    fillRandomly(message, random);
    std::string bytes;
    ASSERT_TRUE(message.SerializeToString(&bytes));
    std::vector<Field> fields;
    ASSERT_TRUE(readMessage(bytes, fields));
    ASSERT_EQ(static_cast<int>(fields.size()), message.field_count());
    std::string whole;
    for (int i = 0; i < message.field_count(); ++i) {
      expectEqual(fields[static_cast<size_t>(i)], message.field(i));
      whole += fields[static_cast<size_t>(i)].whole;
    }
    EXPECT_EQ(whole, bytes);
  }
}

// Cut anywhere, a message is one only if protobuf takes it for one.
TEST(WireFormat, CutMessages) {
  std::mt19937_64 random(11);
  int damaged = 0;
  for (int round = 0; round < 300; ++round) {
    UnknownFieldSet message;
    fillRandomly(message, random);
    std::string bytes;
    ASSERT_TRUE(message.SerializeToString(&bytes));
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string_view cut(bytes.data(), size);
      UnknownFieldSet known;
      std::vector<Field> fields;
      const bool good = readMessage(cut, fields);
      EXPECT_EQ(good, known.ParseFromArray(cut.data(), static_cast<int>(size)));
      damaged += !good;
    }
  }
  EXPECT_GT(damaged, 1000);
}

TEST(WireFormat, WhatIsNoField) {
  auto damagedAt = [](std::string_view message) -> long {
    Reader reader(message);
    for (Field field; reader.next(field);)
      ;
    return reader.damaged() ? reader.position() - message.data() : -1;
  };
  using namespace std::string_view_literals;
  EXPECT_EQ(damagedAt(""sv), -1);
  EXPECT_EQ(damagedAt("\x08\x01"sv), -1);
  EXPECT_EQ(damagedAt("\x00\x01"sv), 1);         // field 0
  EXPECT_EQ(damagedAt("\x08\x01\x0b\x01"sv), 3); // a group
  EXPECT_EQ(damagedAt("\x12\x05xy"sv), 2);       // five bytes, two there
  EXPECT_EQ(damagedAt("\x0dxyz"sv), 1);          // four bytes, three there
  EXPECT_EQ(damagedAt("\x08"sv), 1);             // no number
  const std::string endless = "\x08" + std::string(12, '\xff');
  EXPECT_EQ(damagedAt(endless), 11); // a number of more than ten bytes
  const std::string huge = "\x12" + std::string(9, '\xff') + "\x01";
  EXPECT_EQ(damagedAt(huge), 11); // a length of 2^64 - 1
}

TEST(WireFormat, NumbersPackedOrNot) {
  std::string packed, message;
  const std::vector<int64_t> want = {0, 1, 300, -1, int64_t{1} << 62};
  for (int64_t number : want) {
    std::string one;
    putNumber(one, 1, static_cast<uint64_t>(number));
    packed += one.substr(1); // without its tag
    message += one;
  }
  putBytes(message, 2, packed);
  std::vector<Field> fields;
  ASSERT_TRUE(readMessage(message, fields));
  std::vector<int64_t> singly, together;
  for (const Field &field : fields)
    EXPECT_TRUE(readNumbers(field, field.number == 1 ? singly : together));
  EXPECT_EQ(singly, want);
  EXPECT_EQ(together, want);
  fields.back().bytes.remove_suffix(1);
  EXPECT_FALSE(readNumbers(fields.back(), together));
}

// 5 GiB of weights between two fields; none of their pages is touched.
TEST(WireFormat, MoreThanProtobufTakes) {
  constexpr uint64_t kWeights = uint64_t{5} << 30;
  std::string front, back;
  putNumber(front, 1, 8);
  putLength(front, 9, kWeights);
  putNumber(back, 2, 77);
  const size_t size = front.size() + kWeights + back.size();
  void *mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    GTEST_SKIP() << "no address space";
  char *data = static_cast<char *>(mapped);
  front.copy(data, front.size());
  back.copy(data + front.size() + kWeights, back.size());
  std::vector<Field> fields;
  EXPECT_TRUE(readMessage({data, size}, fields));
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[1].bytes.size(), kWeights);
  EXPECT_EQ(fields[1].bytes.data(), data + front.size());
  EXPECT_EQ(fields[2].value, 77u);
  // One byte less, and the last field is damaged.
  Reader reader({data, size - 1});
  for (Field field; reader.next(field);)
    ;
  EXPECT_TRUE(reader.damaged());
  EXPECT_EQ(reader.position(), data + size - 1);
  munmap(mapped, size);
}

} // namespace
} // namespace merak::wire
