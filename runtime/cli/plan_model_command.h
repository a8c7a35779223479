// autopart plan, for model files: the half that needs torch.
#ifndef AUTOPART_RUNTIME_CLI_PLAN_MODEL_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_PLAN_MODEL_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

int PlanModelCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PLAN_MODEL_COMMAND_H_
