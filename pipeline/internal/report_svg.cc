#include "pipeline/internal/report_svg.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "pipeline/internal/format.h"

namespace autopart::internal {
namespace {

// Of the timeline.
constexpr double kWidth = 1160, kLeft = 62, kRight = 12, kTop = 24;
constexpr double kCompute = 18, kLane = 4, kRowGap = 7;
// Of a rank's memory.
constexpr double kMemoryWidth = 340, kMemoryHeight = 84;
constexpr int kMemoryColumns = 170;

std::string Number(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

// 1, 2 or 5 times a power of ten, so that there are at most ten ticks.
double TickOf(double total) {
  const double least = total / 10;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string Title(const Span& span) {
  std::string text = absl::StrCat(span.name, " ", NameOf(span.kind), ": ", Ms(span.start_ms),
                                  " to ", Ms(span.end_ms));
  if (span.bytes > 0) absl::StrAppend(&text, ", ", HumanBytes(span.bytes));
  return absl::StrCat("<title>", EscapeHtml(text), "</title>");
}

class Timeline {
 public:
  Timeline(const std::vector<RankTracks>& tracks, double until_ms)
      : tracks_(tracks), until_ms_(until_ms), scale_((kWidth - kLeft - kRight) / until_ms) {
    for (const RankTracks& track : tracks) {
      sends_ |= !track.sends.empty();
      receives_ |= !track.receives.empty();
      reduces_ |= !track.reductions.empty();
    }
    row_height_ = kCompute + kLane * (sends_ + receives_ + reduces_) + kRowGap;
    height_ = kTop + row_height_ * tracks.size();
  }

  std::string Draw() {
    out_ = absl::StrCat("<svg class=\"timeline\" viewBox=\"0 0 ", Number(kWidth), " ",
                        Number(height_), "\" role=\"img\" aria-label=\"timeline\">\n");
    Axis();
    for (size_t i = 0; i < tracks_.size(); ++i) Row(tracks_[i], kTop + i * row_height_);
    return absl::StrCat(out_, "</svg>\n");
  }

 private:
  double X(double ms) const { return kLeft + ms * scale_; }

  void Axis() {
    const double tick = TickOf(until_ms_);
    for (int i = 0; i * tick <= until_ms_ * (1 + 1e-9); ++i) {
      const std::string x = Number(X(i * tick));
      absl::StrAppend(&out_, "<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"16\" y2=\"",
                      Number(height_), "\"/><text class=\"m\" x=\"", x, "\" y=\"12\">",
                      HumanNumber(i * tick), i == 0 ? " ms" : "", "</text>\n");
    }
  }

  void Rect(const Span& span, double y, double height) {
    if (span.start_ms >= until_ms_) return;
    const double x = X(span.start_ms);
    const double width = X(std::min(until_ms_, span.end_ms)) - x;
    absl::StrAppend(&out_, "<rect class=\"k-", ColourOf(span.kind), "\" x=\"", Number(x), "\" y=\"",
                    Number(y), "\" width=\"", Number(std::max(width, 0.3)), "\" height=\"",
                    Number(height), "\">", Title(span), "</rect>");
    const std::string label = span.micro_batch >= 0 ? absl::StrCat(span.micro_batch) : "";
    if (height == kCompute - 1 && width > 4 + 6.5 * label.size()) {
      absl::StrAppend(&out_, "<text class=\"n\" x=\"", Number(x + width / 2), "\" y=\"",
                      Number(y + 12.5), "\">", label, "</text>");
    }
    out_ += "\n";
  }

  void Lane(const std::vector<Span>& spans, bool exists, double& y) {
    if (!exists) return;
    for (const Span& span : spans) Rect(span, y, kLane - 1);
    y += kLane;
  }

  void Row(const RankTracks& track, double y) {
    absl::StrAppend(&out_, "<text class=\"e\" x=\"", Number(kLeft - 6), "\" y=\"", Number(y + 13),
                    "\">rank ", track.rank, "<title>",
                    track.stages.size() == 1 ? "stage " : "stages ",
                    absl::StrJoin(track.stages, ", "), "</title></text>\n");
    absl::StrAppend(&out_, "<rect class=\"k-idle\" x=\"", Number(kLeft), "\" y=\"", Number(y),
                    "\" width=\"", Number(kWidth - kLeft - kRight), "\" height=\"",
                    Number(kCompute - 1), "\"/>\n");
    for (const Span& span : track.compute) Rect(span, y, kCompute - 1);
    y += kCompute;
    Lane(track.sends, sends_, y);
    Lane(track.receives, receives_, y);
    Lane(track.reductions, reduces_, y);
  }

  const std::vector<RankTracks>& tracks_;
  const double until_ms_;
  const double scale_;
  bool sends_ = false, receives_ = false, reduces_ = false;
  double row_height_ = 0, height_ = 0;
  std::string out_;
};

// The fullest moment of each column that has one.
std::vector<MemoryPoint> Thinned(const std::vector<MemoryPoint>& points, double until_ms) {
  std::vector<MemoryPoint> thin;
  int last = -1;
  for (const MemoryPoint& point : points) {
    const int column = static_cast<int>(point.ms / until_ms * kMemoryColumns);
    if (column != last) {
      thin.push_back(point);
    } else if (point.live.total() >= thin.back().live.total()) {
      thin.back() = point;
    }
    last = column;
  }
  return thin;
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      absl::string_view(text.data(), text.size()),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

const char* ColourOf(SpanKind kind) {
  switch (kind) {
    case SpanKind::kForward:
      return "forward";
    case SpanKind::kRecompute:
      return "again";
    case SpanKind::kBackward:
      return "backward";
    case SpanKind::kBackwardWeight:
      return "weight";
    case SpanKind::kOptimizer:
      return "step";
    case SpanKind::kSend:
      return "send";
    case SpanKind::kReceive:
      return "receive";
    case SpanKind::kReduce:
      return "reduce";
    case SpanKind::kWait:
      return "idle";
  }
  return "";
}

std::string TimelineSvg(const std::vector<RankTracks>& tracks, double until_ms) {
  return Timeline(tracks, until_ms).Draw();
}

std::string MemorySvg(const RankTracks& track, const MemoryScale& scale) {
  const auto x = [&](double ms) { return Number(ms / scale.until_ms * kMemoryWidth); };
  const auto y = [&](int64_t bytes) {
    return Number(kMemoryHeight * (1 - static_cast<double>(bytes) / scale.most_bytes));
  };
  std::string out = absl::StrCat("<svg class=\"memory\" viewBox=\"0 0 ", Number(kMemoryWidth), " ",
                                 Number(kMemoryHeight), "\" role=\"img\" aria-label=\"memory\">\n");
  const std::vector<MemoryPoint> points = Thinned(track.memory, scale.until_ms);
  std::vector<int64_t> below(points.size(), 0);
  for (const MemoryKind& kind : kMemoryKinds) {
    std::vector<int64_t> above = below;
    for (size_t i = 0; i < points.size(); ++i) above[i] += points[i].live.*kind.bytes;
    if (above != below) {
      // Along the upper border in steps, and back along the lower.
      std::string path = absl::StrCat("M0 ", y(above[0]));
      for (size_t i = 1; i < points.size(); ++i) {
        absl::StrAppend(&path, "H", x(points[i].ms), "V", y(above[i]));
      }
      absl::StrAppend(&path, "H", Number(kMemoryWidth), "V", y(below.back()));
      for (size_t i = points.size() - 1; i > 0; --i) {
        absl::StrAppend(&path, "H", x(points[i].ms), "V", y(below[i - 1]));
      }
      absl::StrAppend(&out, "<path class=\"m-", kind.name, "\" d=\"", path, "H0Z\"><title>",
                      kind.name, "</title></path>\n");
    }
    below = above;
  }
  if (scale.cap_bytes > 0 && scale.cap_bytes < scale.most_bytes) {
    absl::StrAppend(&out, "<line class=\"cap\" x1=\"0\" x2=\"", Number(kMemoryWidth), "\" y1=\"",
                    y(scale.cap_bytes), "\" y2=\"", y(scale.cap_bytes), "\"/>\n");
  }
  return absl::StrCat(out, "</svg>");
}

}  // namespace autopart::internal
