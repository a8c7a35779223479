// CostGraph (read only) and Plan.
#include <pybind11/operators.h>

#include "partitioner/cost_graph.h"
#include "pipeline/cluster.h"
#include "pipeline/cluster_file.h"
#include "pipeline/cost_anew.h"
#include "pipeline/plan.h"
#include "pipeline/planner.h"
#include "pipeline/report.h"
#include "python/bindings/bindings.h"

namespace autopart {
namespace {

std::string SearchName(const PlannerOptions& options) {
  return options.search == SearchSpace::kAll ? "all" : "executable";
}

void SetSearch(PlannerOptions& options, const std::string& name) {
  if (name != "executable" && name != "all") {
    throw std::invalid_argument("search is 'executable' or 'all', not '" + name + "'");
  }
  options.search = name == "all" ? SearchSpace::kAll : SearchSpace::kExecutable;
}

// PlannerOptions(stages=2, pins=[("head", 1)]): each keyword sets the field of its name.
PlannerOptions OptionsFrom(const py::kwargs& fields) {
  py::object made = py::cast(PlannerOptions());
  for (const auto& [name, value] : fields) {
    if (!py::hasattr(made, name)) {
      throw py::type_error("PlannerOptions has no " + py::cast<std::string>(name));
    }
    py::setattr(made, name, value);
  }
  return py::cast<PlannerOptions>(made);
}

}  // namespace

void BindPipeline(py::module_& m) {
  py::class_<CostNode>(m, "CostNode")
      .def_readonly("name", &CostNode::name)
      .def_readonly("module", &CostNode::module)
      .def_readonly("parameters", &CostNode::parameters)
      .def_readonly("group", &CostNode::group)
      .def_readonly("copyable", &CostNode::copyable);
  py::class_<CostValue>(m, "CostValue")
      .def_readonly("producer", &CostValue::producer)
      .def_readonly("consumers", &CostValue::consumers);
  py::class_<CostGraph>(m, "CostGraph")
      .def_property_readonly("nodes", [](const CostGraph& graph) { return graph.nodes; })
      .def_property_readonly("values", [](const CostGraph& graph) { return graph.values; })
      .def("to_json", [](const CostGraph& graph) { return ToJson(graph); })
      .def_static(
          "from_json",
          [](const std::string& text) { return ValueOrThrow(CostGraphFromJson(text)); },
          py::arg("text"));

  py::class_<PlanStage>(m, "PlanStage")
      .def_readonly("index", &PlanStage::index)
      .def_readonly("ranks", &PlanStage::ranks)
      .def_readonly("nodes", &PlanStage::nodes)
      .def_readonly("copied_nodes", &PlanStage::copied_nodes)
      .def_readonly("owned_parameters", &PlanStage::owned_parameters)
      .def_readonly("copied_parameters", &PlanStage::copied_parameters)
      .def_readonly("forward_ms", &PlanStage::forward_ms)
      .def_readonly("backward_ms", &PlanStage::backward_ms)
      .def_readonly("send_bytes", &PlanStage::send_bytes)
      .def_readonly("peak_memory_bytes", &PlanStage::peak_memory_bytes);

  py::class_<Plan>(m, "Plan")
      .def_static(
          "from_json", [](const std::string& text) { return ValueOrThrow(PlanFromJson(text)); },
          py::arg("text"))
      .def("to_json", [](const Plan& plan) { return ToJson(plan); })
      .def(
          "report",
          [](const Plan& plan, const std::string& format) {
            return ValueOrThrow(RenderPlan(plan, format, ReportContext()));
          },
          py::arg("format") = "text")
      .def(
          "validate",
          [](const Plan& plan, const CostGraph& graph) { ThrowIfError(Validate(plan, graph)); },
          py::arg("cost_graph"),
          "Raises ValueError saying what differs, if it is not this graph's.")
      .def(
          "cost_anew",
          [](const Plan& plan, const CostGraph& graph) {
            return ValueOrThrow(CostAnew(graph, plan));
          },
          py::arg("cost_graph"), "The same decisions, predicted by these costs.")
      .def_property_readonly("model_hash", [](const Plan& plan) { return plan.model.hash; })
      .def_property_readonly("num_devices", &Plan::num_devices)
      .def_readonly("schedule", &Plan::schedule)
      .def_readonly("micro_batches", &Plan::micro_batches)
      .def_readonly("predicted_step_ms", &Plan::predicted_step_ms)
      .def_readonly("bound_ms", &Plan::bound_ms)
      .def_readonly("stages", &Plan::stages)
      .def(py::self == py::self);

  m.def("report_formats", &ReportFormats);
  py::class_<Cluster>(m, "Cluster")
      .def_static(
          "uniform",
          [](const std::string& device, int num_devices) {
            return ValueOrThrow(UniformCluster(device, num_devices));
          },
          py::arg("device"), py::arg("num_devices"))
      .def_static(
          "from_yaml", [](const std::string& text) { return ValueOrThrow(ClusterFromYaml(text)); },
          py::arg("text"))
      .def_property_readonly("num_devices", &Cluster::num_devices);

  py::class_<PlannerOptions>(m, "PlannerOptions")
      .def(py::init(&OptionsFrom))
      .def_readwrite("stages", &PlannerOptions::stages)
      .def_readwrite("replicas", &PlannerOptions::replicas)
      .def_readwrite("micro_batches", &PlannerOptions::micro_batches)
      .def_readwrite("batch", &PlannerOptions::batch)
      .def_readwrite("schedule", &PlannerOptions::schedule)
      .def_readwrite("recompute", &PlannerOptions::recompute)
      .def_readwrite("shard_optimizer", &PlannerOptions::shard_optimizer)
      .def_readwrite("memory_bytes", &PlannerOptions::memory_bytes)
      .def_readwrite("dtype", &PlannerOptions::dtype)
      .def_readwrite("optimizer", &PlannerOptions::optimizer)
      .def_readwrite("training", &PlannerOptions::training)
      .def_readwrite("pinned_stage_of_node", &PlannerOptions::pinned_stage_of_node)
      .def_readwrite("pins", &PlannerOptions::pins)
      .def_readwrite("same_stage", &PlannerOptions::same_stage)
      .def_property("search", &SearchName, &SetSearch)
      .def_readwrite("iterations", &PlannerOptions::iterations)
      .def_readwrite("seed", &PlannerOptions::seed);

  m.def(
      "make_plan",
      [](const CostGraph& graph, const Cluster& cluster, const PlannerOptions& options,
         const std::string& model_name) {
        py::gil_scoped_release release;
        Plan plan = ValueOrThrow(MakePlan(graph, cluster, options));
        plan.model.name = model_name;
        return plan;
      },
      py::arg("cost_graph"), py::arg("cluster"), py::arg("options") = PlannerOptions(),
      py::arg("model_name") = "");
}

}  // namespace autopart
