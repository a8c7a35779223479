// The Python interpreter that belongs to this command.
#ifndef AUTOPART_RUNTIME_CLI_PYTHON_PROGRAM_H_
#define AUTOPART_RUNTIME_CLI_PYTHON_PROGRAM_H_

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/cli/command.h"

namespace autopart {

// Where to look. `command`: as it was called ("autopart", ".venv/bin/autopart"); `executable`: the
// file that runs, which differs from it behind a link; `path`: folders with colons between them.
struct PythonSearch {
  std::string command;
  std::filesystem::path executable;
  std::string path;
};
PythonSearch PythonSearchOfThisProcess();

// python3 beside the command (the environment that it is installed in), else beside the executable,
// else the first of the path. Empty: none anywhere.
std::optional<std::string> FindPython(const PythonSearch& search);

// Replaces this process by `python -m autopart verb args`. Python says so, and ends with 1, where
// it has no torch or no autopart. Returns, with an exit status, only where Python cannot be run.
int HandToPython(const std::string& python, const std::string& verb, const Args& args,
                 Streams streams);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_CLI_PYTHON_PROGRAM_H_
