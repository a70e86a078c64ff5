// Damaged checkpoints: each is refused with the name of a tensor or a file, or
// loads the same. MERAK_MUTATIONS says how many are tried.
#include "runtime/checkpoint/Generations.h"
#include "runtime/plan/Checksum.h"
#include "test/unit/checkpoint/Layouts.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <random>

namespace merak::runtime::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

int64_t mutations() {
  const char *text = std::getenv("MERAK_MUTATIONS");
  return text ? std::atoll(text) : 600;
}

std::string mutated(std::string bytes, std::mt19937 &random) {
  auto position = [&] { return bytes.empty() ? 0 : random() % bytes.size(); };
  const int times = 1 + int(random() % 3);
  for (int i = 0; i < times; ++i) {
    const size_t at = position(), length = 1 + random() % 40;
    switch (random() % 9) {
    case 0: // one bit
      if (!bytes.empty())
        bytes[at] = char(bytes[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (!bytes.empty())
        bytes[at] = char(random());
      break;
    case 2: // another digit
      if (!bytes.empty())
        bytes[at] = char('0' + random() % 10);
      break;
    case 3:
      bytes.erase(at, length);
      break;
    case 4:
      bytes.insert(at, std::string(length, char(random())));
      break;
    case 5:
      bytes.insert(at, bytes.substr(position(), length));
      break;
    case 6:
      bytes.resize(at);
      break;
    case 7:
      for (size_t k = at; k < std::min(bytes.size(), at + length); ++k)
        bytes[k] = 0;
      break;
    default:
      bytes += bytes.substr(at, length);
      break;
    }
  }
  return bytes;
}

// A value anywhere in the JSON.
Json &anywhere(Json &json, std::mt19937 &random) {
  if (!json.is_structured() || json.empty() || random() % 6 == 0)
    return json;
  auto at = json.begin();
  std::advance(at, int64_t(random() % json.size()));
  return anywhere(*at, random);
}

Json anotherValue(std::mt19937 &random) {
  const Json values[] = {-1,
                         0,
                         1,
                         2,
                         3,
                         6,
                         8,
                         48,
                         1e300,
                         "",
                         "F32",
                         "BF16",
                         "w",
                         "w@0,0",
                         nullptr,
                         Json::array(),
                         true,
                         {6, 8},
                         INT64_MAX,
                         UINT64_MAX,
                         "rank-0.safetensors",
                         Json::object()};
  return values[random() % std::size(values)];
}

// Wrong, with the right checksum: what tells is what the pieces must be. Names
// and roles of tensors, and the state, say nothing about others.
std::string mutatedManifest(const std::string &text, std::mt19937 &random) {
  Json json = Json::parse(text);
  const int times = 1 + int(random() % 2);
  for (int i = 0; i < times; ++i) {
    Json &tensors = json["tensors"];
    auto tensor = tensors.begin();
    std::advance(tensor, int64_t(random() % tensors.size()));
    static const char *const kParts[] = {"dtype", "shape", "pieces"};
    Json &part = (*tensor)[kParts[random() % 3]];
    Json &value = anywhere(random() % 8 == 0 ? json["shards"] : part, random);
    if (value.is_array() && !value.empty() && random() % 2)
      value.erase(random() % value.size());
    else if (value.is_number_integer() && random() % 2)
      value = static_cast<int64_t>(value.get<uint64_t>() +
                                   (random() % 2 ? 1 : -1)); // wraps
    else
      value = anotherValue(random);
  }
  json.erase("checksum");
  const std::string content = json.dump();
  json["checksum"] = checksumText(Checksum::of(content.data(), content.size()));
  return json.dump();
}

// One that an older version wrote: no checksums.
void makeOld(const std::string &dir) {
  Json json = Json::parse(readFile(dir + "/index.json"));
  for (const char *key : {"checksum", "run", "state", "shards"})
    json.erase(key);
  json["version"] = 1;
  writeFile(dir + "/index.json", json.dump(1));
}

struct Counts {
  int64_t refused = 0, same = 0;
};

class Mutations : public testing::Test {
protected:
  void SetUp() override {
    folder_ = temporaryFolder() + "/saved";
    source_ = holder(1);
    source_->fill(5);
    CheckpointState state;
    state.step = 7;
    state.samples = 56;
    state.seed = 3;
    state.data = "tokens";
    ASSERT_TRUE(save(*source_, folder_, {6, 48}).ok());
    ASSERT_TRUE(save(*source_, folder_, state).ok());
    for (const char *name : kNames)
      expected_.push_back(source_->gather(name));
    target_ = holder(2);
  }

  // Puts other bytes in the place of a file's, and loads.
  void try_(const std::string &file, const std::string &bytes,
            const std::string &path, Counts &counts) {
    const std::string good = readFile(file);
    writeFile(file, bytes);
    target_->fill(-1);
    CheckpointState state;
    const Status status = load(*target_, path, state);
    if (status.ok()) {
      ++counts.same;
      EXPECT_EQ(state.step, 7);
      EXPECT_EQ(state.samples, 56);
      EXPECT_EQ(state.note, "");
      for (size_t i = 0; i < std::size(kNames); ++i)
        EXPECT_EQ(target_->gather(kNames[i]), expected_[i]) << kNames[i];
      if (HasFailure())
        fs::copy_file(file, folder_ + "/../found",
                      fs::copy_options::overwrite_existing);
    } else {
      ++counts.refused;
      for (const std::string &message : status.messages())
        EXPECT_TRUE(message.find('"') != std::string::npos &&
                    (message.find(folder_) != std::string::npos ||
                     message.find("tensor \"") != std::string::npos))
            << message;
    }
    writeFile(file, good);
  }

  void report(const Counts &counts) {
    RecordProperty("refused", std::to_string(counts.refused));
    RecordProperty("same", std::to_string(counts.same));
    std::printf("%lld refused, %lld loaded the same\n",
                static_cast<long long>(counts.refused),
                static_cast<long long>(counts.same));
  }

  std::string folder_;
  std::unique_ptr<Holder> source_, target_;
  std::vector<std::string> expected_;
};

} // namespace

TEST_F(Mutations, OfAnyFileAreRefusedOrLoadTheSame) {
  std::mt19937 random(1);
  const std::string dir = folder_ + "/step-7/";
  const std::string files[] = {folder_ + "/latest", dir + "index.json",
                               dir + "index.json", dir + "rank-0.safetensors",
                               dir + "rank-1.safetensors"};
  Counts counts;
  for (int64_t i = 0; i < mutations() && !HasFailure(); ++i) {
    const std::string &file = files[random() % std::size(files)];
    SCOPED_TRACE("mutation " + std::to_string(i) + " of " + file);
    try_(file, mutated(readFile(file), random), folder_, counts);
  }
  EXPECT_GT(counts.refused, mutations() / 2);
  report(counts);
}

TEST_F(Mutations, WithTheRightChecksumAreRefusedOrLoadTheSame) {
  std::mt19937 random(2);
  const std::string file = folder_ + "/step-7/index.json";
  Counts counts;
  for (int64_t i = 0; i < mutations() && !HasFailure(); ++i) {
    SCOPED_TRACE("mutation " + std::to_string(i));
    try_(file, mutatedManifest(readFile(file), random), folder_, counts);
  }
  EXPECT_GT(counts.refused, mutations() / 2);
  report(counts);
}

// What an older version wrote has no checksums; its structure is checked alike.
TEST_F(Mutations, OfOldOnesAreRefusedOrLoadTheSame) {
  std::mt19937 random(3);
  const std::string dir = folder_ + "/step-7";
  makeOld(dir);
  Counts counts;
  for (int64_t i = 0; i < mutations() && !HasFailure(); ++i) {
    SCOPED_TRACE("mutation " + std::to_string(i));
    Json json =
        Json::parse(mutatedManifest(readFile(dir + "/index.json"), random));
    json.erase("checksum");
    json.erase("shards");
    try_(dir + "/index.json", json.dump(), dir, counts);
  }
  EXPECT_GT(counts.refused, mutations() / 2);
  report(counts);
}

// Files of two generations beside each other are not one.
TEST_F(Mutations, FilesOfAnotherGenerationAreRefused) {
  source_->fill(6);
  ASSERT_TRUE(save(*source_, folder_, {8, 64}).ok());
  source_->fill(5);
  for (const char *name :
       {"index.json", "rank-0.safetensors", "rank-1.safetensors"}) {
    Counts counts;
    try_(folder_ + "/step-7/" + name, readFile(folder_ + "/step-8/" + name),
         folder_ + "/step-7", counts);
    EXPECT_EQ(counts.refused, 1) << name;
  }
}

} // namespace merak::runtime::test
