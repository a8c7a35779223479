#include "runtime/cli/python_program.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <unistd.h>

#include "absl/strings/str_split.h"

namespace autopart {
namespace {

namespace fs = std::filesystem;

// Says what is missing instead of a traceback. The folder of the call is no place for modules: what
// the script imports is looked up beside the script.
constexpr char kStart[] = R"(import sys
sys.path[:] = [folder for folder in sys.path if folder]
from importlib.util import find_spec
missing = [name for name in ("torch", "autopart") if find_spec(name) is None]
if missing:
    sys.exit(f"autopart: {sys.executable} has no {' and no '.join(missing)}. Install them there "
             "(pip install torch; pip install --no-build-isolation . in the source tree), or run "
             "the autopart command of the environment that has them")
try:
    from autopart.__main__ import main
except ImportError as error:
    sys.exit(f"autopart: {sys.executable} cannot load its autopart: {error}. It was built against "
             "another torch: build it again with the one that is installed")
sys.exit(main(sys.argv[1:])))";

std::vector<fs::path> FoldersOf(const std::string& path) {
  const std::vector<std::string> folders = absl::StrSplit(path, ':', absl::SkipEmpty());
  return {folders.begin(), folders.end()};
}

std::optional<std::string> PythonIn(const fs::path& folder) {
  if (folder.empty()) return std::nullopt;
  const std::string python = (folder / "python3").string();
  if (access(python.c_str(), X_OK) != 0 || fs::is_directory(python)) return std::nullopt;
  return python;
}

// The folder of the command as it was called.
fs::path FolderOf(const PythonSearch& search) {
  const fs::path command(search.command);
  if (command.has_parent_path()) return command.parent_path();
  for (const fs::path& folder : FoldersOf(search.path)) {
    if (access((folder / command).c_str(), X_OK) == 0) return folder;
  }
  return {};
}

}  // namespace

PythonSearch PythonSearchOfThisProcess() {
  std::error_code error;
  const char* path = std::getenv("PATH");
  return {program_invocation_name, fs::read_symlink("/proc/self/exe", error),
          path == nullptr ? "" : path};
}

std::optional<std::string> FindPython(const PythonSearch& search) {
  for (const fs::path& folder : {FolderOf(search), search.executable.parent_path()}) {
    if (auto python = PythonIn(folder)) return python;
  }
  for (const fs::path& folder : FoldersOf(search.path)) {
    if (auto python = PythonIn(folder)) return python;
  }
  return std::nullopt;
}

int HandToPython(const std::string& python, const std::string& verb, const Args& args,
                 Streams streams) {
  std::vector<const char*> argv = {python.c_str(), "-c", kStart, verb.c_str()};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  argv.push_back(nullptr);
  streams.out.flush();
  streams.err.flush();
  execv(python.c_str(), const_cast<char**>(argv.data()));  // returns only where it failed

  streams.err << "autopart: cannot run " << python << ": " << std::strerror(errno) << "\n";
  return kExitFailed;
}

}  // namespace autopart
