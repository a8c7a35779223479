// The drawings of the HTML report. Colours are classes of its style sheet (report.html.in).
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_SVG_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_SVG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/internal/report_tracks.h"
#include "pipeline/plan.h"

namespace autopart::internal {

std::string EscapeHtml(std::string_view text);

struct MemoryKind {
  const char* name;
  int64_t MemoryByKind::*bytes;
};
// In the order in which they are stacked.
inline constexpr MemoryKind kMemoryKinds[] = {{"weights", &MemoryByKind::weights},
                                              {"optimizer", &MemoryByKind::optimizer},
                                              {"gradients", &MemoryByKind::gradients},
                                              {"activations", &MemoryByKind::activations},
                                              {"buffers", &MemoryByKind::buffers}};

// Colour of a span: --forward and .k-forward.
const char* ColourOf(SpanKind kind);

// A row a rank: what it computes, and under it messages and reductions, up to until_ms.
std::string TimelineSvg(const std::vector<RankTracks>& tracks, double until_ms);

struct MemoryScale {
  double until_ms = 0;
  int64_t most_bytes = 0;  // at the top
  int64_t cap_bytes = 0;   // a dashed line, where it is in sight
};
std::string MemorySvg(const RankTracks& track, const MemoryScale& scale);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_SVG_H_
