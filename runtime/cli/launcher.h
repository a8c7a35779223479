// What a launcher (torchrun, or anything that sets the same variables) says of this process.
#ifndef AUTOPART_RUNTIME_CLI_LAUNCHER_H_
#define AUTOPART_RUNTIME_CLI_LAUNCHER_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace autopart {

struct LaunchedRank {
  int rank = 0, size = 1;
  std::string group;  // a name that the ranks of this job, on this host, share with nobody else
};

// `variable` gives an environment variable, null without it (std::getenv). No value: not launched,
// RANK and WORLD_SIZE are not set. INVALID_ARGUMENT: they are no numbers or do not fit each other.
// UNIMPLEMENTED: the ranks are on several hosts.
absl::StatusOr<std::optional<LaunchedRank>> FindLaunchedRank(
    const std::function<const char*(const char*)>& variable);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_LAUNCHER_H_
