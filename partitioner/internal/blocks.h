// An order of a problem's nodes as a row of blocks, with all that a walk over the row needs in flat
// arrays. A block is one node, or a stretch of the order that is not cut.
#ifndef AUTOPART_PARTITIONER_INTERNAL_BLOCKS_H_
#define AUTOPART_PARTITIONER_INTERNAL_BLOCKS_H_

#include <limits>
#include <span>
#include <vector>

#include "partitioner/internal/order.h"
#include "partitioner/internal/problem.h"

namespace autopart::internal {

// Lists of ids, one list for each block, in one array.
template <typename T>
class Lists {
 public:
  struct Entry {
    int block;
    T item;
  };
  Lists() = default;
  Lists(const std::vector<Entry>& entries, int num_blocks)
      : begin_(num_blocks + 1), items_(entries.size()) {
    for (const Entry& entry : entries) ++begin_[entry.block + 1];
    for (int b = 0; b < num_blocks; ++b) begin_[b + 1] += begin_[b];
    std::vector<int> next(begin_.begin(), begin_.end() - 1);
    for (const Entry& entry : entries) items_[next[entry.block]++] = entry.item;
  }
  std::span<const T> operator[](int block) const {
    return {items_.data() + begin_[block], items_.data() + begin_[block + 1]};
  }

 private:
  std::vector<int> begin_;
  std::vector<T> items_;
};

// One block of those that touch a tensor. What a stage [start, end) that begins with this block
// pays for the tensor follows from where the others stand, without a memory of the walk so far.
struct Touch {
  int next;      // the next block that touches it; kNever for the last
  int last;      // the last one, if this is the first; else kNever
  int producer;  // the block that makes it
  double forward_ms, backward_ms;
};

inline constexpr int kNever = std::numeric_limits<int>::max();

struct Blocks {
  Blocks(const Problem& problem, const Order& order, int max_blocks, bool with_memory);

  int count = 0;
  std::vector<int> of_node;

  std::vector<double> work_ms, cpu_ms;  // of each block
  std::vector<bool> needs_cpu;          // holds a node that no accelerator runs
  Lists<Touch> touches;                 // of tensors that touch several blocks

  // Only with memory.
  std::vector<double> resident_bytes, gradient_bytes, flight_bytes, temporary_bytes;
  std::vector<SharedBytes> shared_items;  // parameters that several blocks use; without `nodes`
  Lists<int> shared;
  std::vector<SavedValue> saved_values;  // the producer is a block
  Lists<int> saves, produces;            // saved values that a block keeps, that it makes
  // With recompute levels; by block, then by level.
  std::vector<double> again_ms, again_flight_bytes;
  Lists<ReadAgain> reads;

 private:
  void Cut(const Problem& problem, const Order& order, int max_blocks);
  void FillTensors(const Problem& problem);
  void FillMemory(const Problem& problem);
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_BLOCKS_H_
