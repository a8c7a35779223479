// autopart partition: a graph of costs in, pipeline stages out.
#ifndef AUTOPART_RUNTIME_CLI_PARTITION_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_PARTITION_COMMAND_H_

#include "runtime/cli/command.h"

namespace autopart {

int PartitionCommand(const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PARTITION_COMMAND_H_
