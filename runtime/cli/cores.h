// Which core each rank of a run has for itself.
#ifndef AUTOPART_RUNTIME_CLI_CORES_H_
#define AUTOPART_RUNTIME_CLI_CORES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace autopart {

// The cores that this process may use, ascending.
std::vector<int> UsableCores();

// By rank of this host. "auto": one each where there are enough, else none; "none"; or a list, one
// for each rank: "0,1". Empty: ranks are not pinned. INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<std::vector<int>> ChooseCores(const std::string& wish, int num_ranks,
                                             const std::vector<int>& usable);

// From now on the calling thread runs on this core alone. False where the system refuses.
bool PinThisThread(int core);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_CORES_H_
