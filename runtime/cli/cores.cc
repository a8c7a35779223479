#include "runtime/cli/cores.h"

#include <algorithm>

#include <pthread.h>
#include <sched.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace autopart {

std::vector<int> UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

absl::StatusOr<std::vector<int>> ChooseCores(const std::string& wish, int num_ranks,
                                             const std::vector<int>& usable) {
  if (wish == "none") return std::vector<int>();
  if (wish == "auto") {
    if (static_cast<int>(usable.size()) < num_ranks) return std::vector<int>();
    return std::vector<int>(usable.begin(), usable.begin() + num_ranks);
  }
  std::vector<int> cores;
  for (const auto& word : absl::StrSplit(wish, ',')) {
    int core = 0;
    if (!absl::SimpleAtoi(word, &core)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--cores takes auto, none, or one core for each rank, for example 0,1, not '", wish,
          "'"));
    }
    if (std::find(usable.begin(), usable.end(), core) == usable.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--cores: this process may not use core ",
                                                     core, ", only ", absl::StrJoin(usable, ",")));
    }
    cores.push_back(core);
  }
  if (static_cast<int>(cores.size()) != num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cores names ", cores.size(), " cores for ", num_ranks, " ranks"));
  }
  return cores;
}

bool PinThisThread(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

}  // namespace autopart
