// The readers on damaged graphs, the same ones on every machine: bytes of a good text are changed,
// or a value of its tree. No crash, no hang, no exception, under sanitizers in
// `make test-sanitizers`. `make fuzz` looks further.
#include <exception>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/partitioner/fuzz/readers.h"
#include "tests/testing/seed.h"

namespace autopart::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string MutateBytes(std::string text, TestRandom& random) {
  for (int changes = 1 + random.Below(4); changes > 0 && !text.empty(); --changes) {
    const int at = random.Below(static_cast<int>(text.size()));
    const int length = 1 + random.Below(static_cast<int>(std::min<size_t>(40, text.size() - at)));
    switch (random.Below(6)) {
      case 0:
        text[at] = static_cast<char>(random.Below(256));
        break;
      case 1:
        text[at] ^= static_cast<char>(1 << random.Below(8));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.insert(at, 1, "[]{},:\"-+.0123456789eE\\ntf"[random.Below(26)]);
        break;
      default:
        text.resize(at);
        break;
    }
  }
  return text;
}

// All values of a tree, the root included.
void Collect(Json& json, std::vector<Json*>& values) {
  values.push_back(&json);
  if (json.is_structured()) {
    for (Json& child : json) Collect(child, values);
  }
}

Json Odd(TestRandom& random) {
  static const std::vector<Json> kOdd = {nullptr,
                                         true,
                                         "",
                                         "1",
                                         Json::array(),
                                         Json::object(),
                                         Json::array({0}),
                                         -1,
                                         0,
                                         1,
                                         2,
                                         7,
                                         0.5,
                                         -0.5,
                                         1e-15,
                                         1e15,
                                         1e300,
                                         1.7e308,
                                         5e-324,
                                         2147483647,
                                         2147483648,
                                         -2147483649,
                                         int64_t{1} << 53,
                                         INT64_MAX,
                                         INT64_MIN,
                                         UINT64_MAX};
  return kOdd[random.Below(static_cast<int>(kOdd.size()))];
}

std::string MutateTree(const std::string& text, TestRandom& random) {
  Json tree = Json::parse(text);
  for (int changes = 1 + random.Below(3); changes > 0; --changes) {
    std::vector<Json*> values;
    Collect(tree, values);
    Json& value = *values[random.Below(static_cast<int>(values.size()))];
    switch (random.Below(5)) {
      case 0:
        if (value.is_structured() && !value.empty()) {  // lose a part
          auto it = value.begin();
          std::advance(it, random.Below(static_cast<int>(value.size())));
          value.erase(it);
          break;
        }
        [[fallthrough]];
      case 1:
        if (value.is_array() && !value.empty()) {  // repeat an element
          value.push_back(Json(value[random.Below(static_cast<int>(value.size()))]));
          break;
        }
        [[fallthrough]];
      case 2: {  // another value of the text
        const Json other = *values[random.Below(static_cast<int>(values.size()))];
        value = other;
        break;
      }
      default:
        value = Odd(random);
    }
  }
  return tree.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Mutations : public ::testing::TestWithParam<Reader> {};

TEST_P(Mutations, OfGoodTextsAreReadOrRefused) {
  const Reader& reader = GetParam();
  const std::vector<std::string> samples = reader.samples();
  for (const std::string& sample : samples) EXPECT_TRUE(reader.feed(sample)) << sample;
  int graphs = 0, total = 0;
  for (const uint64_t seed : Seeds(0, reader.num_mutations)) {
    TestRandom random(seed);
    const std::string& sample = samples[random.Below(static_cast<int>(samples.size()))];
    const std::string text =
        random.OneIn(2) ? MutateBytes(sample, random) : MutateTree(sample, random);
    try {
      graphs += reader.feed(text);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << Replay(seed) << "\n" << text;
    }
    ++total;
  }
  std::printf("%d of %d were graphs all the same\n", graphs, total);
  // Were there fewer, only the first checks would be met.
  EXPECT_TRUE(total == 1 || graphs > total / 20);
}

INSTANTIATE_TEST_SUITE_P(Readers, Mutations, ::testing::ValuesIn(Readers()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace autopart::testing
