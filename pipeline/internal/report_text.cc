// The text report: does it fit, how fast, how far from the best, why, can it be trusted.
//
// One function a section, in reading order. At most 100 columns.
#include "pipeline/internal/report_text.h"

#include "absl/strings/str_cat.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/renderers.h"
#include "pipeline/internal/report_facts.h"
#include "pipeline/internal/report_summary.h"

namespace autopart::internal {
namespace {

constexpr int kNameWidth = 14;
constexpr int kMostNameWidth = 40;

std::string FactLine(const Fact& fact) {
  const std::string name = Left(Shorten(fact.name, kMostNameWidth), kNameWidth - 1);
  return Wrap(name + " ", fact.pieces, fact.separator, kNameWidth);
}

std::string Inputs(const Plan& plan, const ReportContext& context) {
  std::string out;
  for (const Fact& fact : InputFacts(plan, context)) out += FactLine(fact);
  return out;
}

std::string Verdict(const Plan& plan) {
  const BoundFact bound = BoundFactOf(plan);
  std::string out =
      absl::StrCat(FactLine(PlanFact(plan)), FactLine(StepFact(plan)), Left("BOUND", kNameWidth),
                   bound.bound, "\n", std::string(kNameWidth, ' '), bound.gap);
  if (bound.parts.empty()) return absl::StrCat(out, "\n");
  const std::string indent(kNameWidth + 2, ' ');
  return absl::StrCat(out, ":\n",
                      Wrap(indent, PartTexts(bound.parts, bound.parts_ms), " · ", indent.size()));
}

std::string Why(const Plan& plan) {
  std::string out;
  for (const std::string& cut : CutTexts(plan)) absl::StrAppend(&out, "      ", cut, "\n");
  absl::StrAppend(&out, "      memory: ", MemoryText(plan), "\n");
  if (const std::vector<std::string> lost = NotChosen(plan); !lost.empty()) {
    absl::StrAppend(&out, Wrap("      not chosen: ", lost, " · ", 8));
  }
  out.replace(0, 3, "WHY");
  for (const Fact& change : Tries(plan)) {
    absl::StrAppend(&out, Wrap(absl::StrCat("TRY   ", change.name, " "), change.pieces, ", ", 8));
  }
  return out;
}

}  // namespace

std::string Wrap(const std::string& first, const std::vector<std::string>& pieces,
                 const std::string& separator, int indent) {
  std::string out;
  std::string line = first;
  bool fresh = true;
  const std::string kept = separator == " · " ? "" : separator.substr(0, separator.size() - 1);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int room = i + 1 < pieces.size() ? Columns(kept) : 0;
    const std::string item = absl::StrCat(fresh ? "" : separator, pieces[i]);
    if (!fresh && Columns(line) + Columns(item) + room > kTextWidth) {
      absl::StrAppend(&out, line, kept, "\n");
      line = absl::StrCat(std::string(indent, ' '), pieces[i]);
    } else {
      line += item;
    }
    fresh = false;
  }
  return absl::StrCat(out, line, "\n");
}

absl::StatusOr<std::string> RenderText(const Plan& plan, const ReportContext& context) {
  std::string out =
      absl::StrCat(Inputs(plan, context), "\n", Verdict(plan), "\n", StageTable(plan), "\n",
                   Timeline(plan), "\n", Why(plan), "TRUST ", TrustOf(plan), "\n");
  if (!context.plan_path.empty()) absl::StrAppend(&out, "\nsaved ", context.plan_path, "\n");
  return out;
}

absl::StatusOr<std::string> RenderJson(const Plan& plan, const ReportContext&) {
  return ToJson(plan);
}

}  // namespace autopart::internal
