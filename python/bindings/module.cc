// The private extension module autopart._core. Import torch first: its types are used in
// signatures.
#include "python/bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "C++ half of autopart: import, cost, plan, execute.";
  m.attr("__version__") = AUTOPART_VERSION;
  autopart::BindProfiler(m);
  autopart::BindPipeline(m);
  autopart::BindCommunicator(m);
  autopart::BindExecutor(m);
}
