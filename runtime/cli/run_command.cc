// Ranks are threads of this process, or, under a launcher, processes that come together over shared
// memory. What a rank does is the same in both (runtime/rank_run.h).
#include "runtime/cli/run_command.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "partitioner/byte_size.h"
#include "partitioner/read_file.h"
#include "pipeline/accuracy.h"
#include "pipeline/plan.h"
#include "pipeline/run_record.h"
#include "pipeline/run_trace.h"
#include "profiler/batches.h"
#include "runtime/cli/cores.h"
#include "runtime/cli/interrupt.h"
#include "runtime/cli/launcher.h"
#include "runtime/cli/model_input.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/saved_plan.h"
#include "runtime/rank_run.h"
#include "runtime/transports/in_process.h"
#include "runtime/transports/shared_memory.h"

namespace autopart {
namespace {

struct RunFlags {
  std::string plan_path;
  ModelFlags model;
  std::string data, output, trace, cores = "auto";
  double deadline_s = 300;
  RankRunOptions rank;
};

// Everything that the ranks of this process share.
struct Job {
  Plan plan;
  Model model;
  Batches batches;
  std::vector<int> cores;  // by rank; empty: not pinned
};

absl::StatusOr<Job> Prepare(const RunFlags& flags) {
  absl::StatusOr<Plan> plan = ReadPlan(flags.plan_path);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<Model> model = ReadModel(flags.model);
  if (!model.ok()) return model.status();
  if (absl::Status status = CheckRuns(*plan, model->graph); !status.ok()) {
    return In(flags.plan_path, status);
  }
  absl::StatusOr<std::vector<int>> cores =
      ChooseCores(flags.cores, plan->num_devices(), UsableCores());
  if (!cores.ok()) return cores.status();
  Job job{*std::move(plan), *std::move(model), {}, *std::move(cores)};
  try {
    job.batches = flags.data.empty()
                      ? RandomBatches(job.model.graph, job.plan.micro_batches, flags.rank.seed)
                      : LoadBatches(flags.data, job.model.graph, job.plan.micro_batches);
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return job;
}

// On the calling thread.
std::optional<RunRecord> RunHere(const Job& job, Communicator& communicator,
                                 const RankRunOptions& options) {
  const int rank = communicator.rank();
  const bool pinned = !job.cores.empty() && PinThisThread(job.cores[rank]);
  std::optional<RunRecord> record =
      RunSteps(job.model, job.plan, job.batches, communicator, options);
  if (record.has_value()) record->pinned = pinned;
  return record;
}

RunRecord RunThreads(const Job& job, RankRunOptions options, std::function<void(int)> after_step) {
  const int num_ranks = job.plan.num_devices();
  options.memory = std::make_shared<RankMemoryObserver>(num_ranks);
  std::vector<RankRunOptions> each(num_ranks, options);
  each[0].after_step = std::move(after_step);
  const auto communicators = MakeInProcessGroup(num_ranks);
  std::vector<std::exception_ptr> errors(num_ranks);
  std::optional<RunRecord> record;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < num_ranks; ++r) {
      threads.emplace_back([&, r] {
        try {
          std::optional<RunRecord> own = RunHere(job, *communicators[r], each[r]);
          if (r == 0) record = std::move(own);
        } catch (...) {
          errors[r] = std::current_exception();
        }
      });
    }
  }
  // The first cause; the other ranks only say that they were stopped by it.
  if (const std::optional<AbortRecord> first = communicators[0]->aborted();
      first.has_value() && first->rank >= 0 && errors[first->rank] != nullptr) {
    std::rethrow_exception(errors[first->rank]);
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  return *std::move(record);
}

std::optional<RunRecord> RunLaunched(const Job& job, const LaunchedRank& launched,
                                     RankRunOptions options, std::function<void(int)> after_step) {
  options.memory = std::make_shared<RankMemoryObserver>(launched.size);
  if (launched.rank == 0) options.after_step = std::move(after_step);
  SharedMemoryOptions group;
  group.join_deadline = options.deadline;
  const auto communicator =
      JoinSharedMemoryGroup(launched.group, launched.rank, launched.size, group);
  return RunHere(job, *communicator, options);
}

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

void PrintText(const RunRecord& record, std::ostream& out) {
  out << absl::StrFormat("%d steps on %d ranks (%s%s): step p10 %.3f ms, median %.3f ms",
                         record.step_s.size(), record.ranks.size(), record.transport,
                         record.pinned ? ", a core each" : "", 1e3 * record.StepQuantile(0.1),
                         1e3 * record.StepQuantile(0.5));
  out << "\n";
  if (!record.losses.empty()) {
    out << absl::StrFormat("loss %.6g first, %.6g last\n", record.losses.front(),
                           record.losses.back());
  }
  for (const RunRank& rank : record.ranks) {
    out << absl::StrFormat(
        "rank %d: at most %s of tensors at once (%s before the first step); "
        "process %s resident\n",
        rank.rank, FormatByteSize(rank.peak_bytes), FormatByteSize(rank.held_bytes),
        FormatByteSize(rank.resident_bytes));
  }
}

absl::Status RunAndTell(const RunFlags& flags, Streams streams) {
  const Interrupt
      interrupt;  // first: threads that torch makes meanwhile have the signal blocked too
  const absl::StatusOr<std::optional<LaunchedRank>> launched =
      FindLaunchedRank([](const char* name) { return std::getenv(name); });
  if (!launched.ok()) return launched.status();
  absl::StatusOr<Job> job = Prepare(flags);
  if (!job.ok()) return job.status();
  if (launched->has_value() && (*launched)->size != job->plan.num_devices()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.plan_path, " is for ", job->plan.num_devices(),
                     " ranks, and the launcher started ", (*launched)->size));
  }
  Progress progress(streams.err);
  RankRunOptions options = flags.rank;
  options.stop = interrupt.token();
  const auto after_step = [&](int step) {
    progress.Say(absl::StrCat("step ", step, " of ", options.steps));
  };
  std::optional<RunRecord> record;
  try {
    record = launched->has_value() ? RunLaunched(*job, **launched, options, after_step)
                                   : RunThreads(*job, options, after_step);
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
  if (!record.has_value()) return absl::OkStatus();  // rank 0 tells
  record->autopart_version = AUTOPART_VERSION;
  record->processor = ProcessorName();
  if (interrupt.came()) {
    streams.err << "interrupted: " << record->step_s.size() << " steps were run\n";
  }
  PrintText(*record, streams.out);
  if (const absl::StatusOr<Accuracy> accuracy = CompareRun(job->plan, *record); accuracy.ok()) {
    streams.out << "\n" << AccuracyText(*accuracy);
  }
  const auto save = [&](const std::string& path, const std::string& content) {
    if (path.empty()) return absl::OkStatus();
    if (absl::Status status = WriteFile(path, content); !status.ok()) return status;
    streams.out << "saved " << path << "\n";
    return absl::OkStatus();
  };
  if (absl::Status status = save(flags.output, ToJson(*record)); !status.ok()) return status;
  return save(flags.trace, RunTrace(*record));
}

}  // namespace

int RunCommand(const Args& args, Streams streams) {
  RunFlags flags;
  CLI::App app(
      "Example: autopart run plan.json model.pt --steps 20 -o run.json\n\n"
      "Trains by a plan, a rank a thread (under torchrun: a rank a process), and records times "
      "and\n"
      "memory. Ctrl-C ends after the step and keeps what was recorded.",
      "autopart run");
  app.add_option("plan", flags.plan_path, "plan, as autopart plan writes it")->required();
  DeclareModel(app, flags.model);
  app.add_option("--steps", flags.rank.steps, "counted steps")
      ->check(CLI::Range(1, 1000000000))
      ->capture_default_str();
  app.add_option("--warm-up", flags.rank.warm_up_steps, "steps before those, not counted")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("--data", flags.data,
                 "file of torch.save([input, ...]), the inputs of the model in order with the "
                 "samples of all steps. Default: random numbers by the input specification, the "
                 "same in every step");
  app.add_option("-o,--output", flags.output, "write the record here (JSON, docs/run-schema.md)");
  app.add_option("--trace", flags.trace,
                 "write what each rank did in the typical step here (trace events, for Perfetto)");
  app.add_option("--deadline", flags.deadline_s, "seconds that a rank waits for another")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--check-finite", flags.rank.check_finite,
               "fail on a loss or gradient that is not finite");
  app.add_option("--learning-rate", flags.rank.learning_rate, "of the plan's optimizer")
      ->capture_default_str();
  app.add_option("--seed", flags.rank.seed, "of random data and of dropout");
  app.add_option("--cores", flags.cores,
                 "the core of each rank: auto (one each, where there are enough), none, or a list, "
                 "for example 0,1")
      ->capture_default_str();
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;
  constexpr double kLongest_s = 1e9;
  flags.rank.deadline = std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(1e3 * std::min(flags.deadline_s, kLongest_s))));
  const absl::Status status = RunAndTell(flags, streams);
  return status.ok() ? kExitGood : Fail(status, streams);
}

}  // namespace autopart
