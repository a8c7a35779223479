// Executor (all ranks of a plan in this process) and RankExecutor (one rank of a launched job).
#include "runtime/executor.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include "python/bindings/bindings.h"
#include "runtime/rank_executor.h"
#include "runtime/termination.h"

namespace autopart {
namespace {

using Tensors = std::vector<at::Tensor>;
using Objects = std::vector<std::vector<py::object>>;

std::vector<at::IValue> ToIValues(const Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

Objects ToObjects(const std::vector<std::vector<at::IValue>>& outputs) {
  Objects objects(outputs.size());
  for (size_t j = 0; j < outputs.size(); ++j) {
    for (const at::IValue& value : outputs[j]) objects[j].push_back(torch::jit::toPyObject(value));
  }
  return objects;
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

void BindExecutor(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<StepResult>(m, "StepResult")
      .def_readonly("loss", &StepResult::loss)
      .def_property_readonly("outputs", [](const StepResult& r) { return ToObjects(r.outputs); })
      .def_readonly("step_ms", &StepResult::step_ms)
      .def_readonly("peak_bytes", &StepResult::peak_bytes);

  py::class_<Executor>(m, "Executor")
      .def(py::init([](Plan plan, Model model, bool one_thread, double deadline_s, uint64_t seed,
                       bool check_finite) {
             ExecutorOptions options;
             options.mode =
                 one_thread ? ExecutorOptions::Mode::kOneThread : ExecutorOptions::Mode::kThreads;
             options.deadline = Milliseconds(deadline_s);
             options.seed = seed;
             options.check_finite = check_finite;
             return std::make_unique<Executor>(std::move(plan), std::move(model), options);
           }),
           py::arg("plan"), py::arg("model"), py::kw_only(), py::arg("one_thread"),
           py::arg("deadline_s"), py::arg("seed"), py::arg("check_finite"), Release())
      .def(
          "step", [](Executor& e, const Tensors& inputs) { return e.Step(ToIValues(inputs)); },
          py::arg("inputs"), Release())
      .def(
          "step_micro_batches",
          [](Executor& e, const std::vector<Tensors>& inputs) {
            std::vector<std::vector<at::IValue>> values;
            for (const Tensors& tensors : inputs) values.push_back(ToIValues(tensors));
            return e.StepMicroBatches(values);
          },
          py::arg("inputs"), Release())
      .def(
          "forward",
          [](Executor& e, const Tensors& inputs) { return e.Forward(ToIValues(inputs)); },
          py::arg("inputs"), Release())
      .def("parameters", &Executor::Parameters)
      .def("rank_parameters", &Executor::RankParameters, py::arg("rank"))
      .def("zero_grad", &Executor::ZeroGrad)
      .def_property("step_count", &Executor::step_count, &Executor::set_step_count);

  py::class_<RankStepOutput>(m, "RankStepOutput")
      .def_property_readonly("outputs",
                             [](const RankStepOutput& r) { return ToObjects(r.outputs); })
      .def_readonly("peak_bytes", &RankStepOutput::peak_bytes)
      .def_readonly("step_ms", &RankStepOutput::step_ms);

  py::class_<RankExecutor>(m, "RankExecutor")
      .def(py::init([](const OpGraph& graph, const Plan& plan, int rank,
                       std::map<std::string, at::Tensor> parameters, Communicator& communicator,
                       double deadline_s, uint64_t seed, bool check_finite) {
             RankExecutorOptions options;
             options.deadline = Milliseconds(deadline_s);
             options.seed = seed;
             options.check_finite = check_finite;
             return std::make_unique<RankExecutor>(graph, plan, rank, std::move(parameters),
                                                   communicator, options);
           }),
           py::arg("graph"), py::arg("plan"), py::arg("rank"), py::arg("parameters"),
           py::arg("communicator"), py::kw_only(), py::arg("deadline_s"), py::arg("seed"),
           py::arg("check_finite"), py::keep_alive<1, 6>(), Release())
      .def(
          "step",
          [](RankExecutor& e, uint64_t step, bool training, bool backward,
             const std::vector<Tensors>& inputs, std::vector<double> weights,
             const Communicator& ranks) {
            RankStepInput input;
            input.step = step;
            input.training = training;
            input.backward = backward;
            for (const Tensors& tensors : inputs) input.inputs.push_back(ToIValues(tensors));
            input.weights = std::move(weights);
            TerminationReport report([&] { return e.Describe() + "; " + ranks.DescribeFailure(); });
            return e.Step(input);
          },
          py::arg("step"), py::kw_only(), py::arg("training"), py::arg("backward"),
          py::arg("inputs"), py::arg("weights"), py::arg("communicator"), Release(),
          "communicator: the executor's, to say on SIGTERM why the job ends.")
      .def("describe", &RankExecutor::Describe);
}

}  // namespace autopart
