// autopart run: trains by a plan for some steps and records what happened.
#ifndef AUTOPART_RUNTIME_CLI_RUN_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_RUN_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

int RunCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_RUN_COMMAND_H_
