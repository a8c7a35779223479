// Verbs that need torch live in a program of their own: loading LibTorch takes a second, which the
// others do not pay.
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "runtime/cli/command.h"

namespace autopart {

int HandToModelProgram(const std::string& verb, const Args& args, Streams streams) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "autopart-model").string();

  std::vector<char*> argv = {const_cast<char*>(program.c_str()), const_cast<char*>(verb.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  streams.out.flush();
  streams.err.flush();
  execv(program.c_str(), argv.data());  // returns only where it failed

  streams.err
      << "autopart: `" << verb << "` of a model needs " << program << " (" << std::strerror(errno)
      << "). This is a build without torch: configure with -DAUTOPART_WITH_TORCH=ON, or run "
         "`make build`.\n";
  return kExitFailed;
}

}  // namespace autopart
