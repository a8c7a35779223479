#include "runtime/cli/launcher.h"

#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace autopart {

absl::StatusOr<std::optional<LaunchedRank>> FindLaunchedRank(
    const std::function<const char*(const char*)>& variable) {
  const char* const rank = variable("RANK");
  const char* const size = variable("WORLD_SIZE");
  if (rank == nullptr || size == nullptr) return std::optional<LaunchedRank>();
  LaunchedRank launched;
  if (!absl::SimpleAtoi(rank, &launched.rank) || !absl::SimpleAtoi(size, &launched.size) ||
      launched.rank < 0 || launched.rank >= launched.size) {
    return absl::InvalidArgumentError(absl::StrCat("the environment says RANK=", rank,
                                                   " and WORLD_SIZE=", size,
                                                   ": want 0 <= RANK < WORLD_SIZE"));
  }
  if (const char* here = variable("LOCAL_WORLD_SIZE");
      here != nullptr && std::string_view(here) != size) {
    return absl::UnimplementedError(
        absl::StrCat("autopart run takes ranks of one host, and only ", here, " of ", size,
                     " are on this one: autopart.smp trains over several hosts"));
  }
  launched.group = "autopart-run";
  for (const char* name :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (const char* value = variable(name); value != nullptr) {
      absl::StrAppend(&launched.group, "-", value);
    }
  }
  for (char& c : launched.group) {
    if (c == '/') c = '_';
  }
  return std::optional<LaunchedRank>(launched);
}

}  // namespace autopart
