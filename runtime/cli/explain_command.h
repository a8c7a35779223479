// autopart explain: a saved plan, shown again.
#ifndef AUTOPART_RUNTIME_CLI_EXPLAIN_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_EXPLAIN_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

int ExplainCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_EXPLAIN_COMMAND_H_
