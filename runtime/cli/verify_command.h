// autopart verify: is this plan one for this model?
#ifndef AUTOPART_RUNTIME_CLI_VERIFY_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_VERIFY_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

int VerifyCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_VERIFY_COMMAND_H_
