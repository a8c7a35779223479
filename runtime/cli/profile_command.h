// autopart profile: what each operator of a model costs.
#ifndef AUTOPART_RUNTIME_CLI_PROFILE_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_PROFILE_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

int ProfileCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PROFILE_COMMAND_H_
