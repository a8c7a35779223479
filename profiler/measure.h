// Time and scratch memory of one operator on this CPU, measured, and a cache of such measurements.
//
// Forward runs as in training, recording what backward needs. Gradient of the inputs: a backward
// pass that asks for the gradients of the operands that are no parameters. Gradient of the weights:
// a pass that asks for all gradients, less the former (one kernel often gives both, so passes for
// each alone would count what they share twice). Medians; one thread.
#ifndef AUTOPART_PROFILER_MEASURE_H_
#define AUTOPART_PROFILER_MEASURE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "profiler/estimate.h"
#include "profiler/signature.h"

namespace autopart {

struct Measurement {
  OperatorTimes times;
  int64_t forward_temporary_bytes = 0;   // scratch beside operands, results and what is kept
  int64_t backward_temporary_bytes = 0;  // scratch beside the gradients
};

// Runs the operator up to `repeats` times each way, fewer where one run takes long.
// INTERNAL, naming the operator, where it does not run on CPU tensors of its shapes.
absl::StatusOr<Measurement> MeasureOperator(const OperatorSignature& signature, int repeats);

// One intra-op thread while it lives.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

// Measurements on disk, by signature text: one JSON file for each torch version and CPU model.
// A file that is missing, unreadable or broken is an empty cache; it is written anew.
class MeasurementCache {
 public:
  // Under $XDG_CACHE_HOME/autopart, else $HOME/.cache/autopart; in memory only without either.
  static MeasurementCache Open();
  static MeasurementCache OpenFile(const std::string& path);

  std::optional<Measurement> Find(const std::string& signature) const;
  void Add(const std::string& signature, const Measurement& measurement);
  // Merges with what other processes wrote meanwhile; replaces the file by rename.
  absl::Status Save();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::map<std::string, Measurement> measurements_;
  bool changed_ = false;
};

}  // namespace autopart

#endif  // AUTOPART_PROFILER_MEASURE_H_
