// autopart diff: two saved plans, what changed between them.
#ifndef AUTOPART_RUNTIME_CLI_DIFF_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_DIFF_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

// The status is kExitFailed where the step got slower than --fail-above allows.
int DiffCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_DIFF_COMMAND_H_
