// The verbs that need torch: `autopart` hands them to this program.
#include <iostream>

#include "runtime/cli/command.h"
#include "runtime/cli/plan_model_command.h"
#include "runtime/cli/profile_command.h"
#include "runtime/cli/run_command.h"
#include "runtime/cli/verify_command.h"

namespace {

constexpr autopart::Verb kVerbs[] = {
    {"plan", "a model in, a plan for N devices out", autopart::PlanModelCommand},
    {"verify", "is this plan one for this model?", autopart::VerifyCommand},
    {"profile", "what each operator of a model costs", autopart::ProfileCommand},
    {"run", "trains by a plan and records times and memory", autopart::RunCommand},
};

}  // namespace

int main(int argc, char** argv) {
  return autopart::RunVerbs(kVerbs, autopart::Args(argv + 1, argv + argc), {std::cout, std::cerr});
}
