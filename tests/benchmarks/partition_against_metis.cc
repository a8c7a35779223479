// Heaviest stage of METIS alone against ours, on the same graphs, at the same number of stages.
//
//   partition_against_metis [INSTANCE.json[.gz] ..]
//
// METIS parts are ranked by mean topological position, which is the kindest order of stages for
// them. Their quotient is cyclic on most graphs, so that they are no pipeline; push repair makes
// one: every node moves to the last stage among its predecessors and itself (forward) or to the
// first among its successors and itself (backward), whichever is better. No CPUs and no memory
// limit on either side. Without arguments: the graphs in tests/data. Expected: all of ours acyclic,
// and a geometric mean of METIS over ours of at least 1.24; ends with 1 otherwise.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "partitioner/dnn_instance.h"
#include "partitioner/internal/metis.h"
#include "partitioner/internal/problem.h"
#include "partitioner/internal/reduce.h"
#include "partitioner/read_file.h"

namespace autopart {
namespace {

// Nodes that stay together, with what may not go back: the forward arcs between them, and those of
// classes with backward nodes only turned round. METIS sees each tensor as edges from its producer.
internal::Problem MakeProblem(const DnnInstance& instance) {
  internal::Problem problem;
  problem.num_elements = static_cast<int>(instance.nodes.size());
  problem.num_stages = instance.max_accelerators;
  problem.nodes.resize(instance.nodes.size());
  std::vector<int> label;
  std::vector<internal::Tensor> tensors(instance.nodes.size());
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    problem.nodes[n].elements = {static_cast<int>(n)};
    problem.nodes[n].work_ms = instance.nodes[n].accelerator_ms;
    tensors[n] = {static_cast<int>(n), {static_cast<int>(n)}, instance.nodes[n].output_ms, 0};
    const int color = instance.nodes[n].color;
    label.push_back(color >= 0 ? color : -1 - static_cast<int>(n));
  }
  const int num_labels = internal::MakeDense(label);
  std::vector<bool> has_forward(num_labels);
  for (size_t n = 0; n < instance.nodes.size(); ++n) {
    if (!instance.nodes[n].backward) has_forward[label[n]] = true;
  }
  for (const DnnEdge& edge : instance.edges) {
    tensors[edge.from].nodes.push_back(edge.to);
    const bool backward = instance.nodes[edge.from].backward;
    if (backward != instance.nodes[edge.to].backward) continue;
    if (backward && has_forward[label[edge.from]] && has_forward[label[edge.to]]) continue;
    const auto [before, after] =
        backward ? std::pair(edge.to, edge.from) : std::pair(edge.from, edge.to);
    problem.nodes[before].successors.push_back(after);
    problem.nodes[after].predecessors.push_back(before);
  }
  for (internal::Tensor& tensor : tensors) {
    std::sort(tensor.nodes.begin(), tensor.nodes.end());
    tensor.nodes.erase(std::unique(tensor.nodes.begin(), tensor.nodes.end()), tensor.nodes.end());
    if (tensor.nodes.size() > 1) problem.tensors.push_back(std::move(tensor));
  }
  return internal::GlueCycles(internal::Contract(problem, label, num_labels));
}

bool IsAcyclic(const internal::Problem& problem, const std::vector<int>& part, int num_parts) {
  std::vector<std::set<int>> quotient(num_parts);
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    for (const int to : problem.nodes[n].successors) {
      if (part[n] != part[to]) quotient[part[n]].insert(part[to]);
    }
  }
  std::vector<int> waiting(num_parts), ready;
  for (const std::set<int>& targets : quotient) {
    for (const int to : targets) ++waiting[to];
  }
  for (int p = 0; p < num_parts; ++p) {
    if (waiting[p] == 0) ready.push_back(p);
  }
  for (size_t done = 0; done < ready.size(); ++done) {
    for (const int to : quotient[ready[done]]) {
      if (--waiting[to] == 0) ready.push_back(to);
    }
  }
  return static_cast<int>(ready.size()) == num_parts;
}

// The problem's nodes are in a topological order.
std::vector<int> RankByPosition(const std::vector<int>& part, int num_parts) {
  std::vector<double> sum(num_parts), count(num_parts);
  for (size_t n = 0; n < part.size(); ++n) {
    sum[part[n]] += static_cast<double>(n);
    count[part[n]] += 1;
  }
  std::vector<int> parts(num_parts), rank(num_parts), ranked;
  std::iota(parts.begin(), parts.end(), 0);
  std::stable_sort(parts.begin(), parts.end(), [&](int a, int b) {
    return sum[a] / std::max(count[a], 1.0) < sum[b] / std::max(count[b], 1.0);
  });
  for (int r = 0; r < num_parts; ++r) rank[parts[r]] = r;
  for (const int p : part) ranked.push_back(rank[p]);
  return ranked;
}

double MaxLoad(const DnnInstance& instance, const internal::Problem& problem,
               const std::vector<int>& stage) {
  DnnPartition partition;
  partition.partition.num_stages = instance.max_accelerators;
  partition.is_cpu.assign(instance.max_accelerators, false);
  partition.partition.stage_of_node = internal::StageOfElement(problem, stage);
  double most = 0;
  for (const DnnLoad& load : DnnLoads(instance, partition, Objective::kSum)) {
    most = std::max(most, load.load_ms);
  }
  return most;
}

double PushRepaired(const DnnInstance& instance, const internal::Problem& problem,
                    const std::vector<int>& stage) {
  std::vector<int> forward(stage), backward(stage);
  for (size_t n = 0; n < stage.size(); ++n) {
    for (const int to : problem.nodes[n].successors) {
      forward[to] = std::max(forward[to], forward[n]);
    }
  }
  for (size_t n = stage.size(); n-- > 0;) {
    for (const int to : problem.nodes[n].successors) {
      backward[n] = std::min(backward[n], backward[to]);
    }
  }
  return std::min(MaxLoad(instance, problem, forward), MaxLoad(instance, problem, backward));
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

int Run(const std::vector<std::string>& paths) {
  std::printf("%-34s %8s %4s %8s %13s %13s %13s %7s %7s %8s\n", "graph", "nodes", "k", "cyclic",
              "METIS as is", "repaired", "ours", "ratio", "METIS s", "ours s");
  double log_sum = 0, log_sum_as_is = 0;
  int rows = 0, cyclic = 0, bad = 0;
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> text = ReadFile(path);
    absl::StatusOr<DnnInstance> instance =
        text.ok() ? DnnInstanceFromJson(*text) : absl::StatusOr<DnnInstance>(text.status());
    if (!instance.ok()) {
      std::printf("%s: %s\n", path.c_str(), std::string(instance.status().message()).c_str());
      return 1;
    }
    instance->max_cpus = 0;
    instance->accelerator_bytes = std::numeric_limits<double>::infinity();
    const internal::Problem problem = MakeProblem(*instance);
    const int num_stages = instance->max_accelerators;

    auto start = std::chrono::steady_clock::now();
    const std::vector<int> part = internal::MetisParts(problem, num_stages);
    const std::vector<int> stage = RankByPosition(part, num_stages);
    const bool is_cyclic = !IsAcyclic(problem, part, num_stages);
    const double as_is = MaxLoad(*instance, problem, stage);
    const double repaired = PushRepaired(*instance, problem, stage);
    const double metis_seconds = Seconds(start);

    start = std::chrono::steady_clock::now();
    DnnOptions options;
    options.effort.prove = false;  // the search alone
    const absl::StatusOr<DnnPartition> ours = PartitionDnnInstance(*instance, options);
    const double our_seconds = Seconds(start);
    if (!ours.ok()) {
      std::printf("%s: %s\n", path.c_str(), std::string(ours.status().message()).c_str());
      return 1;
    }
    std::vector<int> our_stage;
    for (const internal::Node& node : problem.nodes) {
      our_stage.push_back(ours->partition.stage_of_node[node.elements[0]]);
    }
    const bool we_are_acyclic = IsAcyclic(problem, our_stage, num_stages);
    const double value = ours->partition.value;
    bad += !we_are_acyclic;
    cyclic += is_cyclic;
    log_sum += std::log(repaired / value);
    log_sum_as_is += std::log(as_is / value);
    ++rows;
    const size_t slash = path.rfind('/', path.rfind('/') - 1);
    std::printf("%-34.34s %8zu %4d %8s %13.6g %13.6g %13.6g %7.3f %7.3f %8.3f%s\n",
                path.c_str() + (slash == std::string::npos ? 0 : slash + 1), instance->nodes.size(),
                num_stages, is_cyclic ? "yes" : "no", as_is, repaired, value, repaired / value,
                metis_seconds, our_seconds, we_are_acyclic ? "" : "  OURS IS CYCLIC");
    std::fflush(stdout);
  }
  const double ratio = std::exp(log_sum / rows);
  std::printf("%d graphs: METIS alone cyclic on %d, ours on %d\n", rows, cyclic, bad);
  std::printf("heaviest stage over ours, geometric mean: METIS repaired %.3f, as it is %.3f\n",
              ratio, std::exp(log_sum_as_is / rows));
  return bad > 0 || ratio < 1.24 ? 1 : 0;
}

}  // namespace
}  // namespace autopart

int main(int argc, char** argv) {
  std::vector<std::string> paths(argv + 1, argv + argc);
  if (paths.empty()) {
    for (const char* name : {"bert24_inference.json", "bert24_training.json.gz",
                             "gnmt_inference.json.gz", "resnet50_inference.json.gz"}) {
      paths.push_back(absl::StrCat(AUTOPART_SOURCE_DIR, "/tests/data/dnn-partitioning/", name));
    }
  }
  return autopart::Run(paths);
}
