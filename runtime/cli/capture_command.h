// `autopart capture`: a Python function that builds a model in, its operator graph out. The work is
// Python's (autopart.capture); this verb checks the flags and finds the interpreter.
#ifndef AUTOPART_RUNTIME_CLI_CAPTURE_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_CAPTURE_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

// Becomes the Python process where all is well; returns an exit status otherwise.
int CaptureCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_CAPTURE_COMMAND_H_
