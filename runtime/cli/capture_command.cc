#include "runtime/cli/capture_command.h"

#include "CLI/CLI.hpp"
#include "runtime/cli/python_program.h"

namespace autopart {

int CaptureCommand(const Args& args, Streams streams) {
  std::string script;
  std::string output = "model.graph.json";
  CLI::App app(
      "Example: autopart capture script.py:build_model -o model.graph.json\n\n"
      "Runs build_model() on the meta device, where tensors are shapes without memory, and writes\n"
      "the operators of the module that it returns. `autopart plan` and `autopart profile` read "
      "them.\n\n"
      "    def build_model():\n"
      "        return module, example_inputs           # one micro-batch; without a loss\n"
      "        return module, example_inputs, \"loss\"   # or loss, or loss and targets: as for\n"
      "                                                # autopart.save",
      "autopart capture");
  app.add_option("script", script, "SCRIPT.py:FUNCTION; build_model where no function is named")
      ->required();
  app.add_option("-o,--output", output, "where the graph is written (JSON)")->capture_default_str();
  if (const std::optional<int> status = ParseFlags(app, args, streams)) return *status;

  const std::optional<std::string> python = FindPython(PythonSearchOfThisProcess());
  if (!python) {
    streams.err << "autopart: capture runs your script in Python, and there is no python3 beside "
                   "this command nor in PATH\n";
    return kExitFailed;
  }
  return HandToPython(*python, "capture", {script, "-o", output}, streams);
}

}  // namespace autopart
