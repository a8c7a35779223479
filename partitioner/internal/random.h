// A small generator whose numbers are the same on every machine (SplitMix64, Steele et al. 2014);
// the distributions of <random> are not.
#ifndef AUTOPART_PARTITIONER_INTERNAL_RANDOM_H_
#define AUTOPART_PARTITIONER_INTERNAL_RANDOM_H_

#include <cstdint>

namespace autopart::internal {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int Below(int limit) { return static_cast<int>(Next() % static_cast<uint64_t>(limit)); }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)

 private:
  uint64_t state_;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_RANDOM_H_
