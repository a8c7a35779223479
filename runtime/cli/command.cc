#include "runtime/cli/command.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace autopart {
namespace {

void PrintHelp(std::span<const Verb> verbs, std::ostream& out) {
  out << "Example: autopart plan model.pt --gpus 8 --device h100\n\n"
         "Splits a model over devices by itself and trains it there.\n\n"
         "Usage: autopart VERB [INPUT] [FLAGS]\n\n";
  for (const Verb& verb : verbs) {
    out << "  " << verb.name << std::string(12 - std::min<size_t>(11, strlen(verb.name)), ' ')
        << verb.summary << "\n";
  }
  out << "\n  autopart VERB --help   the flags of a verb\n"
         "  autopart --version\n\n"
         "Exit status: 0 good, 1 failed, 2 wrong usage or bad input, 3 nothing fits.\n";
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

std::string Nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string nearest;
  size_t least = word.size() / 3 + 2;
  for (const std::string& name : names) {
    const size_t distance = EditDistance(word, name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

int RunVerbs(std::span<const Verb> verbs, const Args& args, Streams streams) {
  if (args.empty()) {
    PrintHelp(verbs, streams.err);
    return kExitUsage;
  }
  const std::string& name = args[0];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(verbs, streams.out);
    return kExitGood;
  }
  if (name == "--version") {
    streams.out << "autopart " << AUTOPART_VERSION << "\n";
    return kExitGood;
  }
  const Args rest(args.begin() + 1, args.end());
  std::vector<std::string> names;
  for (const Verb& verb : verbs) {
    if (name == verb.name) {
      return verb.run != nullptr ? verb.run(rest, streams)
                                 : HandToModelProgram(name, rest, streams);
    }
    names.push_back(verb.name);
  }
  const std::string nearest = Nearest(name, names);
  streams.err << "autopart: there is no '" << name << "'"
              << (nearest.empty() ? "." : ": did you mean '" + nearest + "'?")
              << " `autopart --help` lists the verbs.\n";
  return kExitUsage;
}

std::optional<int> ParseFlags(CLI::App& app, const Args& args, Streams streams) {
  app.allow_extras();
  try {
    app.parse(Args(args.rbegin(), args.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp&) {
    streams.out << app.help();
    return kExitGood;
  } catch (const CLI::Error& error) {
    streams.err << app.get_name() << ": " << error.what() << "\n";
    return kExitUsage;
  }
  if (const std::vector<std::string> unknown = app.remaining(); !unknown.empty()) {
    const std::string word = unknown[0].substr(0, unknown[0].find('='));
    const std::string nearest = Nearest(word, FlagNames(app));
    streams.err << app.get_name() << ": unknown argument '" << unknown[0] << "'"
                << (nearest.empty() ? "." : ": did you mean " + nearest + "?") << " `"
                << app.get_name() << " --help` lists the flags.\n";
    return kExitUsage;
  }
  return std::nullopt;
}

int Fail(const absl::Status& status, Streams streams) {
  streams.err << "autopart: " << status.message() << "\n";
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitGood;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kExitUsage;
    case absl::StatusCode::kResourceExhausted:
      return kExitNothingFits;
    default:
      return kExitFailed;
  }
}

}  // namespace autopart
