// The private extension module autopart._core. Import torch first: its types are used in
// signatures.
#include "python/bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "C++ half of autopart: import, cost, plan, execute.";
  autopart::BindProfiler(m);
  autopart::BindPipeline(m);
  autopart::BindCommunicator(m);
  autopart::BindExecutor(m);
}
