// autopart plan: a model or a cost graph in, a plan for N devices out.
#ifndef AUTOPART_RUNTIME_CLI_PLAN_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_PLAN_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

// Plans cost graphs here; models are handed to autopart-model.
int PlanCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PLAN_COMMAND_H_
