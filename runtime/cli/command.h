// What the verbs of the command line share. A verb is one file with one function
//
//   int PartitionCommand(const Args& args, Streams streams);
//
// that is tested without a process: results go to streams.out, everything else to streams.err, and
// what it returns is the exit status. main.cc is a table of them.
#ifndef AUTOPART_RUNTIME_CLI_COMMAND_H_
#define AUTOPART_RUNTIME_CLI_COMMAND_H_

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace autopart {

using Args = std::vector<std::string>;  // those after the verb

struct Streams {
  std::ostream& out;
  std::ostream& err;
};

inline constexpr int kExitGood = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;        // wrong usage or bad input
inline constexpr int kExitNothingFits = 3;  // RESOURCE_EXHAUSTED

struct Verb {
  const char* name;
  const char* summary;
  // Null: needs torch, done by the program autopart-model beside this one.
  int (*run)(const Args& args, Streams streams);
};

// The whole program: args[0] is the verb. Handles --help, --version, no and unknown verbs.
int RunVerbs(std::span<const Verb> verbs, const Args& args, Streams streams);

// Parses a verb's flags. A value is the exit status to end with at once (after --help, or a
// mistake, which has been told with the nearest flag); empty: go on.
std::optional<int> ParseFlags(CLI::App& app, const Args& args, Streams streams);

// Tells the error and returns the exit status for it.
int Fail(const absl::Status& status, Streams streams);

// The one of `names` with the fewest edits from `word`; empty if all are too far to be meant.
std::string Nearest(std::string_view word, const std::vector<std::string>& names);

// Replaces this process by autopart-model with the same arguments. Returns, with an exit status and
// a message that says what to build, only where there is none.
int HandToModelProgram(const std::string& verb, const Args& args, Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_COMMAND_H_
