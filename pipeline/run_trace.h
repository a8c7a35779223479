// What a run did in its typical step, for a timeline viewer.
#ifndef AUTOPART_PIPELINE_RUN_TRACE_H_
#define AUTOPART_PIPELINE_RUN_TRACE_H_

#include <string>

#include "pipeline/run_record.h"

namespace autopart {

// Trace events of Chrome's format, which Perfetto opens: a process a rank, a span an action. Waits
// are the receives and WAITs themselves, as a rank does one thing after the other.
std::string RunTrace(const RunRecord& record);

}  // namespace autopart

#endif  // AUTOPART_PIPELINE_RUN_TRACE_H_
