// The sets of nodes that the exact search has met, each once: bits in one array, found by an
// open-addressing hash. A set's hash is the exclusive or of its nodes' numbers (Zobrist 1970), so
// that growing a set by a node costs one operation; equality is decided by the bits.
#ifndef AUTOPART_PARTITIONER_INTERNAL_DOWNSET_TABLE_H_
#define AUTOPART_PARTITIONER_INTERNAL_DOWNSET_TABLE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace autopart::internal {

class DownsetTable {
 public:
  explicit DownsetTable(int num_words) : num_words_(num_words), slots_(1 << 12, kEmpty) {}

  int size() const { return static_cast<int>(hashes_.size()); }
  size_t bytes() const { return (bits_.size() + hashes_.size()) * 8 + slots_.size() * 4; }
  const uint64_t* bits(int id) const { return bits_.data() + static_cast<size_t>(id) * num_words_; }
  uint64_t hash(int id) const { return hashes_[id]; }

  // The set's number, and whether it is new. Numbers count up from 0.
  std::pair<int, bool> Insert(const uint64_t* bits, uint64_t hash) {
    if (2 * hashes_.size() >= slots_.size()) Grow();
    size_t slot = hash & (slots_.size() - 1);
    while (slots_[slot] != kEmpty) {
      const int id = slots_[slot];
      if (hashes_[id] == hash && std::equal(bits, bits + num_words_, this->bits(id))) {
        return {id, false};
      }
      slot = (slot + 1) & (slots_.size() - 1);
    }
    const int id = size();
    slots_[slot] = id;
    hashes_.push_back(hash);
    bits_.insert(bits_.end(), bits, bits + num_words_);
    return {id, true};
  }

 private:
  static constexpr int kEmpty = -1;

  void Grow() {
    slots_.assign(2 * slots_.size(), kEmpty);
    for (int id = 0; id < size(); ++id) {
      size_t slot = hashes_[id] & (slots_.size() - 1);
      while (slots_[slot] != kEmpty) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = id;
    }
  }

  const int num_words_;
  std::vector<int> slots_;  // a power of two of them
  std::vector<uint64_t> hashes_;
  std::vector<uint64_t> bits_;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_DOWNSET_TABLE_H_
