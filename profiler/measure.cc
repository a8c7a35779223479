// Cost of measuring: about 15 runs of each distinct operator, at most kBudgetMs and one run more
// for each of the three figures.
#include "profiler/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <system_error>
#include <vector>

#include <ATen/Parallel.h>
#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/engine.h>
#include <torch/version.h>
#include <unistd.h>
#include <xxhash.h>

#include "profiler/allocation_observer.h"
#include "profiler/run_node.h"

namespace autopart {
namespace {

constexpr double kBudgetMs = 200;
constexpr int kFormat = 1;

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Median of up to `repeats` calls of `timed`, which returns its own time; the first call warms up
// and counts only where it uses up the budget.
double Median(int repeats, const std::function<double()>& timed) {
  double spent = timed();
  if (spent > kBudgetMs || repeats < 1) return spent;
  std::vector<double> times;
  spent = 0;
  while (static_cast<int>(times.size()) < repeats && spent <= kBudgetMs) {
    times.push_back(timed());
    spent += times.back();
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// One forward of an operator, ready for backward.
class Call {
 public:
  Call(const CompiledNode& compiled, const OperatorSignature& signature, int integer_fill)
      : compiled_(compiled), signature_(signature), integer_fill_(integer_fill) {
    MakeFreshOperands();
  }

  // Operators in place change their operands: each further run gets new ones.
  void Prepare() {
    const Effects& effects = signature_.node.effects;
    if (used_ && (effects.writes_input || effects.writes_buffer)) MakeFreshOperands();
    used_ = true;
  }

  double Forward() {
    Prepare();
    slots_.assign(signature_.num_values, {});
    for (size_t i = 0; i < operands_.size(); ++i) slots_[i] = operands_[i];
    const auto start = Clock::now();
    RunNode(compiled_, slots_, {});
    return MillisecondsSince(start);
  }

  // True where there is something to differentiate.
  bool PrepareBackward() {
    roots_.clear();
    gradients_.clear();
    for (int output : signature_.node.outputs) {
      if (output != kNoValue) AddRoots(slots_[output]);
    }
    return !roots_.empty();
  }

  double Backward(const torch::autograd::edge_list& edges) {
    const auto start = Clock::now();
    torch::autograd::Engine::get_default_engine().execute(roots_, gradients_, /*keep_graph=*/true,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/false, edges);
    return MillisecondsSince(start);
  }

  // Edges of operands that need a gradient; weights included or not.
  torch::autograd::edge_list Edges(bool inputs, bool weights) const {
    torch::autograd::edge_list edges;
    for (size_t i = 0; i < edges_.size(); ++i) {
      if (!edges_[i].is_valid()) continue;
      const bool weight = signature_.operands[i].role != OperandSpec::Role::kActivation;
      if (weight ? weights : inputs) edges.push_back(edges_[i]);
    }
    return edges;
  }

  void DropResults() { slots_.clear(); }

 private:
  void MakeFreshOperands() {
    operands_ = MakeOperands(signature_, c10::kCPU, integer_fill_);
    edges_.clear();
    for (const at::Tensor& operand : operands_) {
      edges_.push_back(operand.requires_grad() ? torch::autograd::impl::gradient_edge(operand)
                                               : torch::autograd::Edge());
    }
  }

  void AddRoots(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined() || !tensor.requires_grad()) return;
      roots_.push_back(torch::autograd::impl::gradient_edge(tensor));
      gradients_.push_back(at::ones_like(tensor.detach()));
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) AddRoots(item);
    } else if (value.isTuple()) {
      for (const c10::IValue& item : value.toTupleRef().elements()) AddRoots(item);
    }
  }

  const CompiledNode& compiled_;
  const OperatorSignature& signature_;
  const int integer_fill_;
  bool used_ = false;  // the operands have been through a forward
  std::vector<at::Tensor> operands_;
  torch::autograd::edge_list edges_;
  std::vector<c10::IValue> slots_;
  torch::autograd::edge_list roots_;
  torch::autograd::variable_list gradients_;
};

Measurement Measure(const CompiledNode& compiled, const OperatorSignature& signature, int repeats,
                    int integer_fill) {
  at::AutoGradMode grad_mode(signature.grad);
  Call call(compiled, signature, integer_fill);
  Measurement result;
  {
    // Nothing from before may be freed while it listens: torch warns of that.
    AllocationObserver observer;
    call.Forward();
    result.forward_temporary_bytes = observer.peak_bytes() - observer.live_bytes();
  }
  result.times.forward_ms = Median(repeats, [&] {
    call.DropResults();
    return call.Forward();
  });
  if (!call.PrepareBackward()) return result;

  const torch::autograd::edge_list inputs = call.Edges(true, false);
  const torch::autograd::edge_list weights = call.Edges(false, true);
  const torch::autograd::edge_list all = call.Edges(true, true);
  if (all.empty()) return result;
  {
    AllocationObserver observer;
    call.Backward(all);
    int64_t gradients = 0;
    for (const OperandSpec& operand : signature.operands) {
      if (operand.requires_grad) gradients += operand.Bytes();
    }
    result.backward_temporary_bytes = std::max<int64_t>(0, observer.peak_bytes() - gradients);
  }
  const double total = Median(repeats, [&] { return call.Backward(all); });
  if (weights.empty()) {
    result.times.backward_input_ms = total;
  } else if (inputs.empty()) {
    result.times.backward_weight_ms = total;
  } else {
    result.times.backward_input_ms =
        std::min(total, Median(repeats, [&] { return call.Backward(inputs); }));
    result.times.backward_weight_ms = total - result.times.backward_input_ms;
  }
  return result;
}

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string CacheDirectory() {
  if (const char* base = std::getenv("XDG_CACHE_HOME"); base != nullptr && *base != '\0') {
    return absl::StrCat(base, "/autopart");
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return absl::StrCat(home, "/.cache/autopart");
  }
  return "";
}

bool IsSane(const Measurement& m) {
  for (double ms : {m.times.forward_ms, m.times.backward_input_ms, m.times.backward_weight_ms}) {
    if (!(ms >= 0) || ms > 1e12) return false;
  }
  return m.forward_temporary_bytes >= 0 && m.backward_temporary_bytes >= 0;
}

std::map<std::string, Measurement> ReadCache(const std::string& path) {
  std::map<std::string, Measurement> measurements;
  std::ifstream file(path);
  if (!file) return measurements;
  try {
    const nlohmann::json json = nlohmann::json::parse(file);
    if (json.at("format").get<int>() != kFormat) return {};
    for (const auto& [text, entry] : json.at("operators").items()) {
      Measurement m;
      m.times.forward_ms = entry.at("forward_ms").get<double>();
      m.times.backward_input_ms = entry.at("backward_input_ms").get<double>();
      m.times.backward_weight_ms = entry.at("backward_weight_ms").get<double>();
      m.forward_temporary_bytes = entry.at("forward_temporary_bytes").get<int64_t>();
      m.backward_temporary_bytes = entry.at("backward_temporary_bytes").get<int64_t>();
      if (IsSane(m)) measurements[text] = m;
    }
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return measurements;
}

}  // namespace

absl::StatusOr<Measurement> MeasureOperator(const OperatorSignature& signature, int repeats) {
  absl::StatusOr<CompiledNode> compiled = CompileNode(signature.node);
  if (!compiled.ok()) return compiled.status();
  std::string error;
  for (int integer_fill : {0, 1}) {
    try {
      return Measure(*compiled, signature, repeats, integer_fill);
    } catch (const c10::Error& failure) {
      error = failure.what_without_backtrace();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  return absl::InternalError(absl::StrCat("cannot measure ", signature.node.op, " in module '",
                                          signature.node.module_path, "': ", error, "\n  ",
                                          signature.text));
}

OneThread::OneThread() : threads_(at::get_num_threads()) {
  if (threads_ != 1) at::set_num_threads(1);
}

OneThread::~OneThread() {
  if (threads_ != 1) at::set_num_threads(threads_);
}

MeasurementCache MeasurementCache::Open() {
  const std::string directory = CacheDirectory();
  if (directory.empty()) return OpenFile("");
  const std::string machine = absl::StrCat(TORCH_VERSION, "\n", CpuModel());
  std::ostringstream name;
  name << directory << "/operators-" << std::hex << XXH3_64bits(machine.data(), machine.size())
       << ".json";
  return OpenFile(name.str());
}

MeasurementCache MeasurementCache::OpenFile(const std::string& path) {
  MeasurementCache cache;
  cache.path_ = path;
  if (!path.empty()) cache.measurements_ = ReadCache(path);
  return cache;
}

std::optional<Measurement> MeasurementCache::Find(const std::string& signature) const {
  const auto found = measurements_.find(signature);
  if (found == measurements_.end()) return std::nullopt;
  return found->second;
}

void MeasurementCache::Add(const std::string& signature, const Measurement& measurement) {
  measurements_[signature] = measurement;
  changed_ = true;
}

absl::Status MeasurementCache::Save() {
  if (!changed_ || path_.empty()) return absl::OkStatus();
  measurements_.merge(ReadCache(path_));
  nlohmann::json json;
  json["format"] = kFormat;
  json["torch"] = TORCH_VERSION;
  json["cpu"] = CpuModel();
  nlohmann::json& operators = json["operators"] = nlohmann::json::object();
  for (const auto& [text, m] : measurements_) {
    operators[text] = {{"forward_ms", m.times.forward_ms},
                       {"backward_input_ms", m.times.backward_input_ms},
                       {"backward_weight_ms", m.times.backward_weight_ms},
                       {"forward_temporary_bytes", m.forward_temporary_bytes},
                       {"backward_temporary_bytes", m.backward_temporary_bytes}};
  }
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), failed);
  const std::string temporary = absl::StrCat(path_, ".", getpid());
  std::ofstream file(temporary);
  file << json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) {
    std::filesystem::remove(temporary, failed);
    return absl::UnavailableError(absl::StrCat("cannot write the measurement cache ", path_));
  }
  std::filesystem::rename(temporary, path_, failed);
  if (failed) {
    std::filesystem::remove(temporary, failed);
    return absl::UnavailableError(absl::StrCat("cannot write the measurement cache ", path_));
  }
  changed_ = false;
  return absl::OkStatus();
}

}  // namespace autopart
