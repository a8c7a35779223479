// What a reader of graphs has to bear: any bytes at all. Each function reads, and where the bytes
// are a graph after all, writes and reads it again, partitions it with little effort, and has the
// answer checked. Throws std::logic_error with the reason where something does not hold.
#ifndef AUTOPART_TESTS_PARTITIONER_FUZZ_READERS_H_
#define AUTOPART_TESTS_PARTITIONER_FUZZ_READERS_H_

#include <string>
#include <string_view>
#include <vector>

namespace autopart::testing {

// True: it was a graph.
bool FeedCostGraph(std::string_view text);
bool FeedDnnInstance(std::string_view text);
bool FeedPiperInstance(std::string_view text);

struct Reader {
  const char* name;
  bool (*feed)(std::string_view text);
  std::vector<std::string> (*samples)();  // good texts to begin with
  int num_mutations = 10'000;             // a test run's, some seconds
};

const std::vector<Reader>& Readers();

}  // namespace autopart::testing

#endif  // AUTOPART_TESTS_PARTITIONER_FUZZ_READERS_H_
