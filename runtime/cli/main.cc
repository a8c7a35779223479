// The autopart command: a table of verbs.
#include <iostream>

#include "runtime/cli/capture_command.h"
#include "runtime/cli/command.h"
#include "runtime/cli/diff_command.h"
#include "runtime/cli/explain_command.h"
#include "runtime/cli/partition_command.h"
#include "runtime/cli/plan_command.h"
#include "runtime/cli/simulate_command.h"

namespace {

constexpr autopart::Verb kVerbs[] = {
    {"capture", "a Python function that builds a model in, its graph out",
     autopart::CaptureCommand},
    {"plan", "a model in, a plan for N devices out", autopart::PlanCommand},
    {"explain", "a saved plan, shown again in any format", autopart::ExplainCommand},
    {"simulate", "a saved plan, simulated again or with a change", autopart::SimulateCommand},
    {"diff", "what changed from one saved plan to another", autopart::DiffCommand},
    {"verify", "is this plan one for this model?", nullptr},
    {"run", "trains by a plan and records times and memory", nullptr},
    {"profile", "what each operator of a model costs", nullptr},
    {"partition", "a graph of costs in, pipeline stages out", autopart::PartitionCommand},
};

}  // namespace

int main(int argc, char** argv) {
  return autopart::RunVerbs(kVerbs, autopart::Args(argv + 1, argv + argc), {std::cout, std::cerr});
}
