// autopart simulate: a saved plan, simulated again, as it is or with something changed.
#ifndef AUTOPART_RUNTIME_CLI_SIMULATE_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_SIMULATE_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

// Shows the simulated plan, and how it differs from the saved one: on stdout in text, else on
// stderr. The status is kExitNothingFits where it has too little memory.
int SimulateCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_SIMULATE_COMMAND_H_
