// What a choice of recompute for each stage gains over the best uniform one.
//
//   recompute_choice                       the table below; ends with 1 if a row is under 1.10
//   recompute_choice --write ROW FILE      the row's cost graph, for `autopart partition`
//
// A row is a transformer on a 1F1B pipeline whose devices have 1.25 times the least memory that
// any choice at all fits into. "none", "cheap" and "all" are partitions for that choice on every
// stage, each with the cut that is best for it; "auto" chooses cut and recompute together. Times
// are of a step (StepMs in metrics.h), memory is the referee's count.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "partitioner/metrics.h"
#include "partitioner/partitioner.h"
#include "partitioner/read_file.h"
#include "tests/benchmarks/transformer_graph.h"

namespace autopart {
namespace {

using ::autopart::testing::TransformerGraph;
using ::autopart::testing::TransformerOptions;

struct Row {
  const char* name;
  TransformerOptions model;
  int stages, micro_batches;
};

const Row kRows[] = {
    {"1.3B, 8 stages", {.layers = 24, .hidden = 2048, .heads = 16}, 8, 32},
    {"1.3B fused, 8 stages",
     {.layers = 24, .hidden = 2048, .heads = 16, .fused_attention = true},
     8,
     32},
    {"1.5B, 6 stages", {.layers = 48, .hidden = 1600, .heads = 25, .batch = 2}, 6, 48},
    {"6.7B, 16 stages",
     {.layers = 32, .hidden = 4096, .heads = 32, .sequence = 2048, .batch = 1},
     16,
     64},
    {"6.7B fused, 8 stages",
     {.layers = 32,
      .hidden = 4096,
      .heads = 32,
      .sequence = 2048,
      .batch = 2,
      .fused_attention = true},
     8,
     64},
    {"13B fused, 16 stages",
     {.layers = 40,
      .hidden = 5120,
      .heads = 40,
      .sequence = 2048,
      .batch = 1,
      .fused_attention = true},
     16,
     64},
};

PartitionOptions OptionsOf(const Row& row, Recompute recompute) {
  PartitionOptions options;
  options.num_stages = row.stages;
  options.bytes_per_ms = 25e6;
  options.state_factor = 8;
  options.in_flight.resize(row.stages);
  std::iota(options.in_flight.begin(), options.in_flight.end(), 1);
  options.micro_batches = row.micro_batches;
  options.recompute = recompute;
  return options;
}

struct Answer {
  bool fits = false;
  double step_ms = std::numeric_limits<double>::infinity();
  int64_t most_bytes = 0;
};

Answer Plan(const Row& row, const CostGraph& graph, Recompute recompute, int64_t memory_bytes) {
  PartitionOptions options = OptionsOf(row, recompute);
  options.memory_bytes = memory_bytes;
  const absl::StatusOr<Partition> partition = PartitionGraph(graph, options);
  if (!partition.ok()) return {};
  const PartitionMetrics metrics = ComputeMetrics(graph, *partition, options);
  Answer answer = {true, StepMs(metrics, row.micro_batches)};
  for (const StageMetrics& stage : metrics.stages) {
    answer.most_bytes = std::max(answer.most_bytes, stage.memory_bytes);
  }
  return answer;
}

int64_t LeastMemory(const Row& row, const CostGraph& graph) {
  PartitionOptions options = OptionsOf(row, Recompute::kAuto);
  options.effort.prove = false;
  options.effort.iterations = 4;
  int64_t low = 0, high = int64_t{1} << 42;
  while (high - low > high / 500) {
    options.memory_bytes = low + (high - low) / 2;
    (PartitionGraph(graph, options).ok() ? high : low) = options.memory_bytes;
  }
  return high;
}

int Run() {
  bool good = true;
  std::printf("%-22s %10s %10s %10s %10s %10s %7s\n", "step time, ms", "GiB", "none", "cheap",
              "all", "auto", "gain");
  for (const Row& row : kRows) {
    const CostGraph graph = TransformerGraph(row.model);
    const int64_t memory = LeastMemory(row, graph) / 4 * 5;
    double best = std::numeric_limits<double>::infinity();
    std::printf("%-22s %10.2f", row.name, static_cast<double>(memory) / (1 << 30));
    for (const Recompute uniform : {Recompute::kNone, Recompute::kCheap, Recompute::kAll}) {
      const Answer answer = Plan(row, graph, uniform, memory);
      best = std::min(best, answer.step_ms);
      if (answer.fits) {
        std::printf(" %10.1f", answer.step_ms);
      } else {
        std::printf(" %10s", "-");
      }
    }
    const Answer chosen = Plan(row, graph, Recompute::kAuto, memory);
    const Answer ceiling = Plan(row, graph, Recompute::kNone, int64_t{1} << 60);
    std::printf(" %10.1f %7.3f %10.1f\n", chosen.step_ms, best / chosen.step_ms, ceiling.step_ms);
    if (!chosen.fits || chosen.most_bytes > memory) {
      std::printf("  does not fit: %lld bytes of %lld\n", static_cast<long long>(chosen.most_bytes),
                  static_cast<long long>(memory));
      good = false;
    }
    good = good && best / chosen.step_ms >= 1.10;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace autopart

int main(int argc, char** argv) {
  using namespace autopart;
  if (argc == 1) return Run();
  const int row = argc == 4 && std::string_view(argv[1]) == "--write" ? std::atoi(argv[2]) : -1;
  if (row < 0 || row >= static_cast<int>(std::size(kRows))) {
    std::fprintf(stderr, "usage: recompute_choice [--write ROW FILE], ROW from 0 to %d\n",
                 static_cast<int>(std::size(kRows)) - 1);
    return 2;
  }
  const absl::Status status = WriteFile(argv[3], ToJson(TransformerGraph(kRows[row].model)));
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
