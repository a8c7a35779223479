#include "runtime/reducer.h"

#include <algorithm>
#include <set>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace autopart {
namespace {

// A gradient as a flat run of bytes: in place where its memory is dense.
struct Flat {
  explicit Flat(at::Tensor& gradient)
      : gradient_(gradient),
        tensor_(gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous()) {}
  ~Flat() {
    if (!tensor_.is_same(gradient_)) gradient_ = tensor_;
  }
  Bytes bytes() { return {static_cast<std::byte*>(tensor_.mutable_data_ptr()), tensor_.nbytes()}; }

 private:
  at::Tensor& gradient_;
  at::Tensor tensor_;
};

Accumulate AddAs(at::ScalarType dtype) {
  return [dtype](Bytes sum, ConstBytes other) {
    c10::AutoGradMode no_grad(false);
    const auto options = at::TensorOptions().dtype(dtype);
    const int64_t count = static_cast<int64_t>(sum.size() / c10::elementSize(dtype));
    at::Tensor to = at::from_blob(sum.data(), {count}, options);
    to.add_(at::from_blob(const_cast<std::byte*>(other.data()), {count}, options));
  };
}

}  // namespace

std::vector<ReduceGroup> FindReduceGroups(const OpGraph& graph, const Plan& plan) {
  std::vector<std::set<int>> holders(graph.parameters.size());
  for (const PlanStage& stage : plan.stages) {
    for (const auto& held : {stage.owned_parameters, stage.copied_parameters}) {
      for (const int p : held) holders[p].insert(stage.ranks.begin(), stage.ranks.end());
    }
  }
  std::map<std::vector<int>, std::vector<int>> by_ranks;
  for (int p = 0; p < static_cast<int>(holders.size()); ++p) {
    const Parameter& parameter = graph.parameters[p];
    if (holders[p].size() < 2 || !parameter.trains || parameter.is_buffer) continue;
    by_ranks[{holders[p].begin(), holders[p].end()}].push_back(p);
  }
  std::vector<ReduceGroup> groups;
  for (auto& [ranks, parameters] : by_ranks) groups.push_back({ranks, std::move(parameters)});
  return groups;
}

void ReduceGradients(const ReduceGroup& group, std::span<const at::Tensor> parameters,
                     Communicator& communicator, Clock::time_point deadline) {
  c10::AutoGradMode no_grad(false);
  const size_t count = parameters.size();
  std::vector<std::byte> mine(count), all(count * group.ranks.size());
  for (size_t i = 0; i < count; ++i) {
    mine[i] = static_cast<std::byte>(parameters[i].grad().defined());
  }
  communicator.AllGather(group.ranks, mine, all, deadline);
  for (size_t i = 0; i < count; ++i) {
    bool present = false;
    for (size_t r = 0; r < group.ranks.size(); ++r) {
      present = present || all[r * count + i] != std::byte{0};
    }
    if (!present) continue;
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameters[i]);
    Flat flat(gradient);
    communicator.AllReduce(group.ranks, flat.bytes(), gradient.element_size(),
                           AddAs(gradient.scalar_type()), deadline);
  }
}

void ReduceGradientsOnOneThread(std::span<const std::vector<at::Tensor>> parameters) {
  c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < parameters[0].size(); ++i) {
    const bool present = std::any_of(parameters.begin(), parameters.end(),
                                     [&](const auto& rank) { return rank[i].grad().defined(); });
    if (!present) continue;
    at::Tensor sum;
    for (const auto& rank : parameters) {
      const at::Tensor& gradient = rank[i].grad();
      if (!sum.defined()) {
        sum = gradient.defined() ? gradient.clone() : at::zeros_like(rank[i]);
      } else if (gradient.defined()) {
        sum.add_(gradient);
      } else {
        sum.add_(at::zeros_like(sum));  // -0 + 0 is 0, as on the wire
      }
    }
    for (const auto& rank : parameters) rank[i].mutable_grad() = sum.clone();
  }
}

}  // namespace autopart
