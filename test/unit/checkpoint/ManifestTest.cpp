// What a manifest says is complete and consistent, or it is refused.
#include "runtime/checkpoint/Manifest.h"

#include "runtime/plan/Checksum.h"
#include "test/unit/checkpoint/CheckpointTesting.h"

#include <nlohmann/json.hpp>

#include <random>

namespace merak::runtime::test {
namespace {

using Json = nlohmann::ordered_json;

// By counting.
bool tilesByCounting(const std::vector<int64_t> &shape,
                     const std::vector<ManifestPiece> &pieces) {
  int64_t elements = 1;
  for (int64_t size : shape)
    elements *= size;
  for (int64_t flat = 0; flat < elements; ++flat) {
    std::vector<int64_t> index(shape.size());
    for (int64_t rest = flat, d = int64_t(shape.size()); d-- > 0;
         rest /= shape[size_t(d)])
      index[size_t(d)] = rest % shape[size_t(d)];
    int held = 0;
    for (const ManifestPiece &piece : pieces) {
      bool inside = true;
      for (size_t d = 0; d < shape.size(); ++d)
        inside &= index[d] >= piece.origin[d] &&
                  index[d] < piece.origin[d] + piece.extent[d];
      held += inside;
    }
    if (held != 1)
      return false;
  }
  return true;
}

// Cuts a box at random until there are so many.
void cut(std::vector<ManifestPiece> &pieces, size_t count,
         std::mt19937 &random) {
  for (int tries = 0; pieces.size() < count && tries < 20; ++tries) {
    const size_t which = random() % pieces.size();
    ManifestPiece first = pieces[which];
    if (first.extent.empty())
      return;
    const size_t d = random() % first.extent.size();
    if (first.extent[d] < 2)
      continue;
    const int64_t at = 1 + int64_t(random() % uint64_t(first.extent[d] - 1));
    ManifestPiece second = first;
    second.origin[d] += at;
    second.extent[d] -= at;
    pieces[which].extent[d] = at;
    pieces.push_back(second);
  }
}

Manifest example() {
  Manifest manifest;
  manifest.model = "m.onnx";
  manifest.state.step = 3;
  manifest.state.samples = 24;
  manifest.state.run = "0123456789abcdef";
  manifest.shards["rank-0.safetensors"] = {100, 7};
  ManifestTensor w;
  w.dtype = planpb::F32;
  w.shape = {4, 2};
  w.pieces = {{"rank-0.safetensors", "w@0,0", {0, 0}, {3, 2}},
              {"rank-0.safetensors", "w@3,0", {3, 0}, {1, 2}}};
  manifest.tensors.emplace_back("w", w);
  return manifest;
}

std::string errorOf(const std::string &text) {
  const std::string path = temporaryFolder() + "/index.json";
  writeFile(path, text);
  auto read = readManifest(path);
  const std::string error = read.status().str(), at = "\"" + path + "\": ";
  return error.starts_with(at) ? error.substr(at.size()) : error;
}

// The error after a change that the checksum does not tell.
std::string changed(const std::function<void(Json &)> &change) {
  Json json = Json::parse(manifestText(example()));
  change(json);
  json.erase("checksum");
  const std::string text = json.dump();
  json["checksum"] = checksumText(Checksum::of(text.data(), text.size()));
  return errorOf(json.dump());
}

} // namespace

TEST(Manifest, PiecesTileAsCountingSays) {
  std::mt19937 random(11);
  int tiles = 0, others = 0;
  for (int round = 0; round < 4000; ++round) {
    const size_t rank = random() % 4;
    std::vector<int64_t> shape;
    for (size_t d = 0; d < rank; ++d)
      shape.push_back(int64_t(random() % 5) + (random() % 8 != 0));
    std::vector<ManifestPiece> pieces = {
        {"", "", std::vector<int64_t>(rank, 0), shape}};
    cut(pieces, 1 + random() % 5, random);
    if (random() % 2 == 0) { // harm it
      ManifestPiece &piece = pieces[random() % pieces.size()];
      const int kind = int(random() % 4);
      if (kind == 0)
        pieces.push_back(piece);
      else if (kind == 1)
        pieces.erase(pieces.begin() + (&piece - pieces.data()));
      else if (rank > 0)
        (kind == 2 ? piece.origin : piece.extent)[random() % rank] =
            int64_t(random() % 4);
    }
    const bool expected = tilesByCounting(shape, pieces);
    (expected ? tiles : others) += 1;
    // Pieces beyond the tensor are refused before.
    bool inside = true;
    for (const ManifestPiece &piece : pieces)
      for (size_t d = 0; d < rank; ++d)
        inside &= piece.origin[d] + piece.extent[d] <= shape[d];
    if (inside) {
      EXPECT_EQ(tileOnce(shape, pieces), expected) << round;
    }
  }
  EXPECT_GT(tiles, 1000);
  EXPECT_GT(others, 1000);
}

TEST(Manifest, ReadsWhatItWrites) {
  const std::string path = temporaryFolder() + "/index.json";
  writeFile(path, manifestText(example()));
  auto read = readManifest(path);
  ASSERT_TRUE(read.ok()) << read.status().str();
  EXPECT_EQ(manifestText(*read), manifestText(example()));
}

TEST(Manifest, ProblemsNameTheTensor) {
  auto tensor = [](Json &json) -> Json & { return json["tensors"]["w"]; };
  EXPECT_EQ(changed([](Json &) {}), "");
  EXPECT_EQ(changed([&](Json &j) { tensor(j)["pieces"][1]["origin"][0] = 2; }),
            "tensor \"w\": is not held exactly once by its pieces");
  EXPECT_EQ(changed([&](Json &j) { tensor(j)["pieces"].erase(0); }),
            "tensor \"w\": is not held exactly once by its pieces");
  EXPECT_EQ(changed([&](Json &j) { tensor(j)["pieces"][1]["extent"][0] = 2; }),
            "tensor \"w\": has a piece outside of it");
  EXPECT_EQ(changed([&](Json &j) {
              tensor(j)["shape"] = {4, -2};
            }),
            "tensor \"w\": is malformed");
  EXPECT_EQ(changed([&](Json &j) {
              tensor(j)["shape"] = {int64_t(1) << 40, int64_t(1) << 40, 0};
            }),
            "tensor \"w\": is malformed");
  EXPECT_EQ(changed([&](Json &j) { tensor(j)["dtype"] = "F7"; }),
            "tensor \"w\": has the unsupported type \"F7\"");
  EXPECT_EQ(changed([&](Json &j) { tensor(j)["role"] = "king"; }),
            "tensor \"w\": is malformed");
  EXPECT_EQ(changed([&](Json &j) {
              tensor(j)["pieces"][0]["file"] = "../rank-0.safetensors";
            }),
            "tensor \"w\": has a malformed piece");
  EXPECT_EQ(changed([&](Json &j) {
              tensor(j)["pieces"][0]["file"] = "rank-1.safetensors";
            }),
            "tensor \"w\": nothing is known of \"rank-1.safetensors\"");
  EXPECT_EQ(changed([&](Json &j) { tensor(j)["pieces"][0]["key"] = "w@3,0"; }),
            "tensor \"w\": \"w@3,0\" in \"rank-0.safetensors\" is used twice");
}

// Sizes of which sums or products have no 64 bits are refused before they are
// added or multiplied.
TEST(Manifest, SizesHaveNoOverflow) {
  auto tensor = [](Json &json) -> Json & { return json["tensors"]["w"]; };
  for (uint64_t size : {uint64_t{1} << 53, uint64_t{1} << 62,
                        uint64_t{INT64_MAX}, UINT64_MAX}) {
    EXPECT_EQ(changed([&](Json &j) {
                tensor(j)["shape"] = {size, size};
              }),
              "tensor \"w\": is malformed");
    for (const char *key : {"origin", "extent"})
      EXPECT_EQ(changed([&](Json &j) {
                  tensor(j)["pieces"][0][key] = {size, size};
                }),
                "tensor \"w\": has a malformed piece");
  }
}

TEST(Manifest, CountsHaveRanges) {
  for (const char *key : {"step", "samples"})
    for (const Json &value :
         {Json(-1), Json(1.5), Json("7"), Json(uint64_t(1) << 60), Json()})
      EXPECT_EQ(changed([&](Json &j) { j[key] = value; }),
                "\"" + std::string(key) +
                    "\" is no count: expected 0 to 9007199254740992, found " +
                    value.dump());
  EXPECT_EQ(changed([](Json &j) { j["state"]["loss_scale"] = 1024; }), "");
  for (const Json &value : {Json(0), Json(-2), Json("2"), Json()})
    EXPECT_EQ(changed([&](Json &j) { j["state"]["loss_scale"] = value; }),
              "its run or state is malformed");
  for (const Json &value : {Json(-1), Json(1.5), Json()})
    EXPECT_EQ(changed([&](Json &j) { j["state"]["loss_scale_steps"] = value; }),
              "its run or state is malformed");
  EXPECT_EQ(changed([](Json &j) { j["state"].erase("skipped"); }),
            "its run or state is malformed");
  EXPECT_EQ(changed([](Json &j) {
              j["shards"]["rank-0.safetensors"]["checksum"] = "7";
            }),
            "shard \"rank-0.safetensors\" is malformed");
}

} // namespace merak::runtime::test
