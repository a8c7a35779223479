// OpGraph, Model, import and cost.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/module_python.h>

#include "pipeline/cluster.h"
#include "profiler/cost.h"
#include "profiler/graph_file.h"
#include "profiler/import_torchscript.h"
#include "profiler/model.h"
#include "profiler/op_graph.h"
#include "python/bindings/bindings.h"

namespace autopart {
namespace {

CostOptions MakeCostOptions(const std::string& device, bool training) {
  CostOptions options;
  options.training = training;
  if (!device.empty()) options.estimate_for = ValueOrThrow(FindDevice(device));
  return options;
}

}  // namespace

void BindProfiler(py::module_& m) {
  py::class_<InputSpec>(m, "InputSpec")
      .def(py::init([](std::string name, at::ScalarType dtype, std::vector<int64_t> sizes,
                       std::optional<int64_t> bound, int batch_axis) {
             return InputSpec{std::move(name), dtype, std::move(sizes), bound, batch_axis};
           }),
           py::arg("name"), py::arg("dtype"), py::arg("sizes"), py::arg("bound") = std::nullopt,
           py::arg("batch_axis") = 0)
      .def_readonly("name", &InputSpec::name)
      .def_readonly("batch_axis", &InputSpec::batch_axis)
      .def("__repr__", [](const InputSpec& spec) { return ToString(spec); });

  py::class_<Parameter>(m, "GraphParameter")
      .def_readonly("name", &Parameter::name)
      .def_readonly("aliases", &Parameter::aliases)
      .def_readonly("is_buffer", &Parameter::is_buffer)
      .def_readonly("trains", &Parameter::trains)
      .def_property_readonly("used", [](const Parameter& p) { return p.value != kNoValue; })
      .def_property_readonly("dtype", [](const Parameter& p) { return p.meta.dtype; })
      .def_property_readonly("sizes", [](const Parameter& p) { return p.meta.Sizes(); });

  py::class_<OpGraph>(m, "OpGraph")
      .def_static(
          "from_json",
          [](const std::string& text) {
            py::gil_scoped_release release;
            return ValueOrThrow(OpGraphFromJson(text));
          },
          py::arg("text"))
      .def("to_json",
           [](const OpGraph& graph) {
             std::string text;
             {
               py::gil_scoped_release release;
               text = ToJson(graph);
             }
             return text;
           })
      .def_property_readonly("hash", [](const OpGraph& graph) { return ModelHash(graph); })
      .def_property_readonly("parameters", [](const OpGraph& graph) { return graph.parameters; })
      .def_property_readonly("num_nodes", [](const OpGraph& graph) { return graph.nodes.size(); })
      .def_property_readonly("num_inputs", [](const OpGraph& graph) { return graph.inputs.size(); })
      .def_property_readonly("num_outputs",
                             [](const OpGraph& graph) { return graph.outputs.size(); })
      .def_property_readonly("loss_output", [](const OpGraph& graph) { return graph.loss_output; })
      .def("__repr__", [](const OpGraph& graph) { return ToString(graph); });

  py::class_<Model>(m, "Model")
      .def(py::init([](OpGraph graph, std::map<std::string, at::Tensor> tensors) {
             return Model{std::move(graph), std::move(tensors)};
           }),
           py::arg("graph"), py::arg("tensors"))
      .def_property_readonly("graph", [](const Model& model) { return model.graph; })
      .def_property_readonly("tensors", [](const Model& model) { return model.tensors; });

  m.def(
      "import_torchscript",
      [](py::object script, std::vector<InputSpec> inputs, std::optional<int> loss_output,
         bool loss_is_sum, const std::string& strip_prefix, bool training,
         std::vector<std::string> constants) {
        auto module = torch::jit::as_module(script);
        if (!module) throw std::invalid_argument("import_torchscript takes a ScriptModule");
        ImportOptions options;
        options.inputs = std::move(inputs);
        options.loss_output = loss_output;
        options.loss_is_sum = loss_is_sum;
        options.strip_prefix = strip_prefix;
        options.training = training;
        options.constants = std::move(constants);
        py::gil_scoped_release release;
        return ValueOrThrow(ImportTorchScript(*module, options));
      },
      py::arg("script"), py::arg("inputs"), py::arg("loss_output"), py::arg("loss_is_sum"),
      py::arg("strip_prefix"), py::arg("training"), py::arg("constants"),
      "Turns a traced or scripted module into a graph with shapes. Parameters may be on meta.");

  m.def(
      "load_model",
      [](const std::string& path) {
        py::gil_scoped_release release;
        return ValueOrThrow(LoadModelFile(path));
      },
      py::arg("path"));

  m.def(
      "load_graph",
      [](const std::string& path) {
        py::gil_scoped_release release;
        return ValueOrThrow(LoadGraphFile(path));
      },
      py::arg("path"), "The graph of a model file, or of one that CapturedModel.save wrote.");

  m.def(
      "build_cost_graph",
      [](const OpGraph& graph, const std::string& device, bool training,
         std::optional<Cluster> cluster) {
        py::gil_scoped_release release;
        CostOptions options = MakeCostOptions(device, training);
        if (cluster) options.estimate_for = cluster->hosts.at(0).devices.at(0).device;
        return ValueOrThrow(BuildCostGraph(graph, options));
      },
      py::arg("graph"), py::arg("device") = "", py::arg("training") = true,
      py::arg("cluster") = std::nullopt,
      "Costs of every operator: measured on this CPU, or estimated for a named device, or for the "
      "first of a cluster.");
}

}  // namespace autopart
