// Communicators. Buffers are dense CPU tensors, moved as bytes.
#include "runtime/communicator.h"

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "python/bindings/bindings.h"
#include "runtime/termination.h"
#include "runtime/transports/c10d.h"
#include "runtime/transports/in_process.h"
#include "runtime/transports/shared_memory.h"

namespace autopart {
namespace {

Bytes BytesOf(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous())
    throw std::invalid_argument("communicators move dense CPU tensors");
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

Clock::time_point In(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// While a wait between two steps lasts, a SIGTERM says so and why, as during a step.
TerminationReport ReportWait(const Communicator& c, std::string what) {
  return TerminationReport([&c, what = std::move(what)] {
    return "rank " + std::to_string(c.rank()) + " waits, " + what +
           ", between the actions of steps; " + c.DescribeFailure();
  });
}

}  // namespace

void BindCommunicator(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<Communicator>(m, "Communicator")
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("transport",
                             [](const Communicator& c) { return std::string(c.transport()); })
      .def(
          "send",
          [](Communicator& c, const std::vector<int>& peers, const at::Tensor& data, double s) {
            const TerminationReport report = ReportWait(c, "sending");
            std::vector<std::unique_ptr<Operation>> sends;
            for (int peer : peers) sends.push_back(c.StartSend(peer, {BytesOf(data)}));
            for (auto& send : sends) send->Wait(In(s));
          },
          py::arg("peers"), py::arg("data"), py::arg("deadline_s"), Release())
      .def(
          "receive",
          [](Communicator& c, int peer, const at::Tensor& data, double s) {
            const TerminationReport report =
                ReportWait(c, "receiving from rank " + std::to_string(peer));
            c.StartReceive(peer, {BytesOf(data)})->Wait(In(s));
          },
          py::arg("peer"), py::arg("data"), py::arg("deadline_s"), Release())
      .def(
          "broadcast",
          [](Communicator& c, const std::vector<int>& group, int root, const at::Tensor& data,
             double s) {
            const TerminationReport report =
                ReportWait(c, "sharing data of rank " + std::to_string(root));
            c.Broadcast(group, root, BytesOf(data), In(s));
          },
          py::arg("group"), py::arg("root"), py::arg("data"), py::arg("deadline_s"), Release())
      .def(
          "all_gather",
          [](Communicator& c, const std::vector<int>& group, const at::Tensor& mine,
             const at::Tensor& all, double s) {
            const TerminationReport report = ReportWait(c, "gathering data of all ranks");
            c.AllGather(group, BytesOf(mine), BytesOf(all), In(s));
          },
          py::arg("group"), py::arg("mine"), py::arg("all"), py::arg("deadline_s"), Release())
      .def(
          "barrier",
          [](Communicator& c, const std::vector<int>& group, double s) {
            const TerminationReport report = ReportWait(c, "at a barrier");
            c.Barrier(group, In(s));
          },
          py::arg("group"), py::arg("deadline_s"), Release())
      .def(
          "abort",
          [](Communicator& c, const std::string& what) {
            c.Abort({c.rank(), what});
          },
          py::arg("what"), Release())
      .def_property_readonly("aborted", [](const Communicator& c) -> std::optional<std::string> {
        const std::optional<AbortRecord> record = c.aborted();
        if (!record) return std::nullopt;
        return record->what;
      });

  m.def(
      "single_rank_communicator", [] { return std::move(MakeInProcessGroup(1)[0]); },
      "For a job of one process.");
  m.def(
      "join_shared_memory",
      [](const std::string& name, int rank, int size, double join_deadline_s) {
        SharedMemoryOptions options;
        options.join_deadline =
            std::chrono::milliseconds(static_cast<int64_t>(join_deadline_s * 1000));
        return JoinSharedMemoryGroup(name, rank, size, options);
      },
      py::arg("name"), py::arg("rank"), py::arg("size"), py::arg("join_deadline_s"), Release());
  m.def(
      "c10d_communicator",
      [](c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
         const std::string& name) {
        C10dOptions options;
        options.name = name;
        return MakeC10dCommunicator(std::move(backend), std::move(store), options);
      },
      py::arg("backend"), py::arg("store"), py::arg("name"), Release());
}

}  // namespace autopart
