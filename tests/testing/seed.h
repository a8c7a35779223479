// Seeds of random tests. A failing test prints its seed; AUTOPART_SEED=7 runs that one alone, in
// every random test of the program.
#ifndef AUTOPART_TESTS_TESTING_SEED_H_
#define AUTOPART_TESTS_TESTING_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace autopart::testing {

// first, first + 1, .. (count of them), or the one of AUTOPART_SEED.
inline std::vector<uint64_t> Seeds(uint64_t first, int count) {
  if (const char* seed = std::getenv("AUTOPART_SEED")) return {std::strtoull(seed, nullptr, 10)};
  std::vector<uint64_t> seeds;
  for (int i = 0; i < count; ++i) seeds.push_back(first + i);
  return seeds;
}

// For SCOPED_TRACE.
inline std::string Replay(uint64_t seed) {
  return "replay with AUTOPART_SEED=" + std::to_string(seed);
}

// The same on every machine, unlike <random>'s distributions.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : random_(seed) {}
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  bool OneIn(int n) { return Below(n) == 0; }

 private:
  std::mt19937_64 random_;
};

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_TESTING_SEED_H_
