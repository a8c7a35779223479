// plan.json (docs/plan-schema.md). Each struct lists its fields once, in Visit.
#include "absl/strings/str_cat.h"
#include "pipeline/internal/json_visit.h"
#include "pipeline/plan.h"

namespace autopart {
namespace {

using internal::Json;

template <typename V, typename T>
void VisitModel(V& v, T& model) {
  v.Field("name", model.name);
  v.Field("hash", model.hash);
  v.Field("parameters", model.parameters);
  v.Field("operators", model.operators);
  v.Field("parameter_bytes", model.parameter_bytes);
  v.Field("has_loss", model.has_loss);
}

template <typename V, typename T>
void VisitDevice(V& v, T& device) {
  v.Field("name", device.name);
  v.Field("memory_bytes", device.memory_bytes);
  v.Field("fp32_flops_per_ms", device.fp32_flops_per_ms);
  v.Field("half_flops_per_ms", device.half_flops_per_ms);
  v.Field("memory_bytes_per_ms", device.memory_bytes_per_ms);
  v.Field("matrix_efficiency", device.matrix_efficiency);
  v.Field("memory_efficiency", device.memory_efficiency);
  v.Field("launch_ms", device.launch_ms);
  v.Field("link_bytes_per_ms", device.link_bytes_per_ms);
  v.Field("link_latency_ms", device.link_latency_ms);
}

template <typename V, typename T>
void VisitLink(V& v, T& link) {
  v.Field("bytes_per_ms", link.bytes_per_ms);
  v.Field("latency_ms", link.latency_ms);
  v.Field("shared", link.shared);
}

template <typename V, typename T>
void VisitDevices(V& v, T& devices) {
  v.Field("count", devices.count);
  v.Object("device", devices.device, [](auto& w, auto& x) { VisitDevice(w, x); });
}

template <typename V, typename T>
void VisitHosts(V& v, T& hosts) {
  v.Field("name", hosts.name);
  v.Field("count", hosts.count);
  v.List("devices", hosts.devices, [](auto& w, auto& x) { VisitDevices(w, x); });
  v.Object("link", hosts.link, [](auto& w, auto& x) { VisitLink(w, x); });
  v.Object("network", hosts.network, [](auto& w, auto& x) { VisitLink(w, x); });
}

template <typename V, typename T>
void VisitCluster(V& v, T& cluster) {
  v.Field("name", cluster.name);
  v.List("hosts", cluster.hosts, [](auto& w, auto& x) { VisitHosts(w, x); });
}

template <typename V, typename T>
void VisitMemory(V& v, T& memory) {
  v.Field("weights", memory.weights);
  v.Field("gradients", memory.gradients);
  v.Field("optimizer", memory.optimizer);
  v.Field("activations", memory.activations);
  v.Field("buffers", memory.buffers);
}

template <typename V, typename T>
void VisitBreakdown(V& v, T& breakdown) {
  v.Field("compute_ms", breakdown.compute_ms);
  v.Field("recompute_ms", breakdown.recompute_ms);
  v.Field("bubble_ms", breakdown.bubble_ms);
  v.Field("imbalance_ms", breakdown.imbalance_ms);
  v.Field("messages_ms", breakdown.messages_ms);
  v.Field("reduce_ms", breakdown.reduce_ms);
  v.Field("optimizer_ms", breakdown.optimizer_ms);
}

template <typename V, typename T>
void VisitStorage(V& v, T& storage) {
  v.Field("bytes", storage.bytes);
  v.Field("saved", storage.saved);
  v.Field("result", storage.result);
  v.Field("sent_to", storage.sent_to);
  v.Field("received_from", storage.received_from);
}

template <typename V, typename T>
void VisitHeld(V& v, T& held) {
  v.Field("weight_bytes", held.weight_bytes);
  v.Field("gradient_bytes", held.gradient_bytes);
  v.Field("optimizer_bytes", held.optimizer_bytes);
  v.Field("temporary_bytes", held.temporary_bytes);
  v.List("storages", held.storages, [](auto& w, auto& x) { VisitStorage(w, x); });
}

template <typename V, typename T>
void VisitReduction(V& v, T& reduction) {
  v.Field("stages", reduction.stages);
  v.Field("bytes", reduction.bytes);
}

template <typename V, typename T>
void VisitStage(V& v, T& stage) {
  v.Field("index", stage.index);
  v.Field("ranks", stage.ranks);
  v.Field("first_module", stage.first_module);
  v.Field("last_module", stage.last_module);
  v.Field("operators", stage.operators);
  v.Field("parameters", stage.parameters);
  v.Field("copied_operators", stage.copied_operators);
  v.Field("copied_parameters", stage.copied_parameters_count);
  v.Field("forward_ms", stage.forward_ms);
  v.Field("backward_ms", stage.backward_ms);
  v.Field("backward_weight_ms", stage.backward_weight_ms);
  v.Field("recompute_ms", stage.recompute_ms);
  v.Field("optimizer_ms", stage.optimizer_ms);
  v.Field("send_bytes", stage.send_bytes);
  v.Field("peak_memory_bytes", stage.peak_memory_bytes);
  v.Object("memory", stage.memory, [](auto& w, auto& x) { VisitMemory(w, x); });
  v.Field("idle_fraction", stage.idle_fraction);
  v.Object("held", stage.held, [](auto& w, auto& x) { VisitHeld(w, x); });
  v.Field("nodes", stage.nodes);
  v.Field("copied_nodes", stage.copied_nodes);
  v.Field("recomputed_nodes", stage.recomputed_nodes);
  v.Field("owned_parameter_ids", stage.owned_parameters);
  v.Field("copied_parameter_ids", stage.copied_parameters);
}

template <typename V, typename T>
void VisitEdge(V& v, T& edge) {
  v.Field("from", edge.from);
  v.Field("to", edge.to);
  v.Field("values", edge.values);
  v.Field("has_gradient", edge.has_gradient);
  v.Field("bytes", edge.bytes);
  v.Field("gradient_bytes", edge.gradient_bytes);
}

template <typename V, typename T>
void VisitAlternative(V& v, T& alternative) {
  v.Field("stages", alternative.stages);
  v.Field("micro_batches", alternative.micro_batches);
  v.Field("replicas", alternative.replicas);
  v.Field("micro_batch_samples", alternative.micro_batch_samples);
  v.Field("schedule", alternative.schedule);
  v.Field("recompute", alternative.recompute);
  v.Field("shard_optimizer", alternative.shard_optimizer);
  v.Field("step_ms", alternative.step_ms);
  v.Field("reason", alternative.reason);
}

template <typename V, typename T>
void VisitPlan(V& v, T& plan) {
  v.Field("version", plan.version);
  v.Object("model", plan.model, [](auto& w, auto& x) { VisitModel(w, x); });
  v.Object("cluster", plan.cluster, [](auto& w, auto& x) { VisitCluster(w, x); });
  v.Field("memory_bytes", plan.memory_bytes);
  v.Field("dtype", plan.dtype);
  v.Field("optimizer", plan.optimizer);
  v.Field("shard_optimizer", plan.shard_optimizer);
  v.Field("schedule", plan.schedule);
  v.Field("micro_batches", plan.micro_batches);
  v.Field("micro_batch_samples", plan.micro_batch_samples);
  v.Field("predicted_step_ms", plan.predicted_step_ms);
  v.Object("breakdown", plan.breakdown, [](auto& w, auto& x) { VisitBreakdown(w, x); });
  v.Field("bound_ms", plan.bound_ms);
  v.Field("bound_kind", plan.bound_kind);
  v.Field("optimal", plan.optimal);
  v.Field("costs_device", plan.costs_device);
  v.Field("costs_scale", plan.costs_scale);
  v.Field("measured_fraction", plan.measured_fraction);
  v.Field("seed", plan.seed);
  v.List("stages", plan.stages, [](auto& w, auto& x) { VisitStage(w, x); });
  v.List("edges", plan.edges, [](auto& w, auto& x) { VisitEdge(w, x); });
  v.List("reductions", plan.reductions, [](auto& w, auto& x) { VisitReduction(w, x); });
  v.Field("reduce_bucket_bytes", plan.reduce_bucket_bytes);
  v.List("alternatives", plan.alternatives, [](auto& w, auto& x) { VisitAlternative(w, x); });
}

}  // namespace

std::string ToJson(const Plan& plan) {
  Json json = Json::object();
  internal::JsonWriter writer(json);
  VisitPlan(writer, plan);
  return internal::Layout(json);
}

absl::StatusOr<Plan> PlanFromJson(std::string_view text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError("plan: the text is not JSON (cut off, or another file?)");
  }
  if (!json.is_object()) return absl::InvalidArgumentError("plan: the text is no JSON object");
  const auto version = json.find("version");
  if (version != json.end() && version->is_number_integer() &&
      version->get<int64_t>() > kPlanVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: it has version ", version->get<int64_t>(),
                     ", newer than this autopart, which reads version ", kPlanVersion,
                     ": update autopart, or plan again with this one"));
  }
  if (version != json.end() && version->is_number_integer() &&
      version->get<int64_t>() < kPlanVersion) {
    return absl::InvalidArgumentError(absl::StrCat("plan: it has version ", version->get<int64_t>(),
                                                   ", and this autopart reads ", "version ",
                                                   kPlanVersion, ": plan the model again"));
  }
  Plan plan;
  absl::Status status;
  internal::JsonReader reader(json, "plan", "", status);
  VisitPlan(reader, plan);
  if (!status.ok()) return status;
  if (status = Validate(plan); !status.ok()) return status;
  return plan;
}

}  // namespace autopart
