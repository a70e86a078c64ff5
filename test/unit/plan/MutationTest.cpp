// The verifier against all small faults of a sound plan, and against nonsense:
// whatever a file holds, it answers in sentences.
#include "runtime/plan/Print.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>
#include <random>

namespace merak {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using planpb::Instruction;
using planpb::ScheduleStep;

// Every instruction of this plan is needed: without any one of them, or any one
// call wait, the verifier objects.
TEST(Mutation, EveryInstructionAndWaitIsNeeded) {
  const LoadedPlan sound = plantest::replicatedPlan(2);
  ASSERT_EQ(verifyPlan(sound).str(), "");
  int tried = 0;
  for (size_t p = 0; p < sound.programs.size(); ++p) {
    const planpb::Program &program = sound.programs[p];
    for (int proc = 0; proc < program.procedures_size(); ++proc) {
      for (int i = 0; i < program.procedures(proc).instructions_size(); ++i) {
        const Instruction &inst = program.procedures(proc).instructions(i);
        // Without one summand, or with the forward's y in the backward, it is
        // a sound plan of another model; and nobody waits for the norm.
        bool last = inst.kind() == Instruction::WAIT &&
                    i + 2 == program.procedures(proc).instructions_size();
        if (inst.op() == "reduce_sum" || inst.accumulate() || last ||
            (inst.op() == "fill" &&
             program.procedures(proc).action() == ScheduleStep::BACKWARD))
          continue;
        LoadedPlan plan = sound;
        plan.programs[p]
            .mutable_procedures(proc)
            ->mutable_instructions()
            ->DeleteSubrange(i, 1);
        EXPECT_FALSE(verifyPlan(plan).ok())
            << "program " << p << " procedure " << proc << " instruction " << i;
        ++tried;
      }
    }
    for (int c = 0; c < program.calls_size(); ++c) {
      for (int w = 0; w < program.calls(c).waits_size(); ++w) {
        LoadedPlan plan = sound;
        plan.programs[p].mutable_calls(c)->mutable_waits()->DeleteSubrange(w,
                                                                           1);
        EXPECT_FALSE(verifyPlan(plan).ok()) << "call " << c << " wait " << w;
        ++tried;
      }
      LoadedPlan plan = sound;
      plan.programs[p].mutable_calls()->DeleteSubrange(c, 1);
      EXPECT_FALSE(verifyPlan(plan).ok()) << "call " << c;
      ++tried;
    }
  }
  EXPECT_GT(tried, 50);
}

// Any two buffers put at one place clash, unless their lives do not meet.
TEST(Mutation, OverlapsAreSeen) {
  const LoadedPlan sound = plantest::samplePlan();
  int seen = 0, pairs = 0;
  for (size_t p = 0; p < sound.programs.size(); ++p) {
    int n = sound.programs[p].buffers_size();
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        if (a == b)
          continue;
        LoadedPlan plan = sound;
        planpb::Program &program = plan.programs[p];
        program.mutable_buffers(b)->set_offset(program.buffers(a).offset());
        program.set_arena_bytes(program.arena_bytes() + 1024);
        seen += !verifyPlan(plan).ok();
        ++pairs;
      }
    }
  }
  // Lives that do not meet: the norm, with x, h and dh of stage 0, with h, y
  // and dh of stage 1, each in both directions.
  EXPECT_EQ(pairs, 30 + 42);
  EXPECT_EQ(pairs - seen, 6 + 6);
}

// ------------------------------------------------------------ nonsense

class Mutator {
public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  // Changes one field somewhere below `message`; false if there is none.
  bool mutate(Message &message) {
    const Reflection *reflection = message.GetReflection();
    std::vector<const FieldDescriptor *> fields;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor *field = message.GetDescriptor()->field(i);
      if (!field->is_map())
        fields.push_back(field);
    }
    const FieldDescriptor *field = fields[random_() % fields.size()];
    bool isMessage = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field->is_repeated()) {
      int size = reflection->FieldSize(message, field);
      if (size == 0)
        return false;
      int at = random_() % size;
      if (isMessage && random_() % 4)
        return mutate(*reflection->MutableRepeatedMessage(&message, field, at));
      if (random_() % 3 == 0)
        reflection->RemoveLast(&message, field);
      else if (isMessage)
        reflection->SwapElements(&message, field, at, random_() % size);
      else
        setElement(message, reflection, field, at);
      return true;
    }
    if (isMessage)
      return reflection->HasField(message, field) &&
             mutate(*reflection->MutableMessage(&message, field));
    set(message, reflection, field);
    return true;
  }

private:
  int64_t number() {
    static constexpr int64_t kNumbers[] = {0,
                                           1,
                                           2,
                                           3,
                                           4,
                                           7,
                                           64,
                                           65,
                                           1000,
                                           -1,
                                           -7,
                                           int64_t{1} << 31,
                                           int64_t{1} << 40,
                                           INT64_MAX,
                                           INT64_MIN};
    return kNumbers[random_() % std::size(kNumbers)];
  }
  std::string word() {
    static const char *const kWords[] = {"",   "x",          "w0",   "pp",
                                         "mb", "all_gather", "grad", "act"};
    return kWords[random_() % std::size(kWords)];
  }
  void set(Message &message, const Reflection *reflection,
           const FieldDescriptor *field) {
    switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(&message, field, number());
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(&message, field, number());
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(&message, field, number());
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(&message, field, number());
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(&message, field, random_() % 2);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(&message, field, random_() % 12);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(&message, field, word());
    default:
      return;
    }
  }
  void setElement(Message &message, const Reflection *reflection,
                  const FieldDescriptor *field, int at) {
    switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetRepeatedInt64(&message, field, at, number());
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetRepeatedUInt32(&message, field, at, number());
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetRepeatedString(&message, field, at, word());
    default:
      return;
    }
  }
  std::mt19937 random_;
};

TEST(Mutation, NonsenseIsAnsweredInSentences) {
  const LoadedPlan sound = plantest::replicatedPlan(2);
  int broken = 0, rounds = 4000;
  for (int round = 0; round < rounds; ++round) {
    Mutator mutator(round);
    LoadedPlan plan = sound;
    for (int n = 1 + round % 3; n > 0;) {
      Message &message = round % 4
                             ? static_cast<Message &>(plan.programs[round % 2])
                             : static_cast<Message &>(plan.file);
      n -= mutator.mutate(message);
    }
    // Loading promises that ranks name programs that exist.
    if (plan.file.ranks_size() == 0)
      continue;
    Status status = verifyPlan(plan);
    broken += !status.ok();
    for (const std::string &message : status.messages()) {
      ASSERT_FALSE(message.empty());
      ASSERT_NE(message.back(), '.');
    }
  }
  EXPECT_GT(broken, rounds / 2);
}

// Printing takes any plan, to show what is wrong with it.
TEST(Mutation, NonsensePrints) {
  const LoadedPlan sound = plantest::replicatedPlan(2);
  for (int round = 0; round < 1000; ++round) {
    Mutator mutator(round);
    LoadedPlan plan = sound;
    while (!mutator.mutate(plan.programs[0])) {
    }
    EXPECT_FALSE(printPlan(plan).empty());
    diffPlans(sound, plan);
  }
}

} // namespace
} // namespace merak
