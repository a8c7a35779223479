// The stage graph as Mermaid and as Graphviz: a node a stage, an arrow an edge, a dashed line
// between stages that share parameters.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/renderers.h"
#include "pipeline/internal/report_facts.h"

namespace autopart::internal {
namespace {

constexpr int kMaxStages = 64;
constexpr int kMaxModule = 60;

// Mermaid's own entities, and none of the characters that end a label or begin Markdown.
std::string EscapeMermaid(const std::string& text) {
  return absl::StrReplaceAll(text, {{"#", "#35;"},
                                    {"&", "#amp;"},
                                    {"<", "#lt;"},
                                    {">", "#gt;"},
                                    {"\"", "#quot;"},
                                    {"`", "#96;"},
                                    {"\\", "#92;"},
                                    {"\n", " "},
                                    {"\r", " "}});
}

std::string EscapeDot(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", " "}, {"\r", " "}});
}

std::vector<std::string> StageLines(const Plan& plan, const PlanStage& stage) {
  std::string ranks = stage.ranks.size() == 1 ? "rank " : "ranks ";
  if (stage.ranks.size() <= 8) {
    absl::StrAppend(&ranks, absl::StrJoin(stage.ranks, ", "));
  } else {
    absl::StrAppend(&ranks, stage.ranks.front(), " … ", stage.ranks.back(), " (",
                    stage.ranks.size(), ")");
  }
  std::string times = absl::StrCat("forward ", Ms(stage.forward_ms));
  if (Trains(plan)) absl::StrAppend(&times, ", backward ", Ms(stage.backward_ms));
  return {absl::StrCat("stage ", stage.index, " · ", ranks),
          FromTo(stage, CommonPrefix(plan), kMaxModule),
          absl::StrCat(Count(stage.operators, "operator"), " · ", times),
          absl::StrCat("peak memory ", HumanBytes(stage.peak_memory_bytes))};
}

// What is drawn: the first stages and what is between them.
int ShownStages(const Plan& plan) { return std::min<int>(plan.stages.size(), kMaxStages); }

std::string LeftOut(const Plan& plan) {
  const int rest = plan.stages.size() - ShownStages(plan);
  return rest > 0 ? absl::StrCat(Count(rest, "other stage")) : "";
}

std::string EdgeLabel(const StageEdge& edge) {
  std::string label = HumanBytes(edge.bytes);
  if (edge.has_gradient) absl::StrAppend(&label, ", ", HumanBytes(edge.gradient_bytes), " back");
  return label;
}

// Pairs of neighbours in a reduction that several stages take part in.
struct Shared {
  int a = 0, b = 0;
  int64_t bytes = 0;
};

std::vector<Shared> SharedParameters(const Plan& plan) {
  std::vector<Shared> shared;
  for (const Reduction& reduction : plan.reductions) {
    for (size_t i = 0; i + 1 < reduction.stages.size(); ++i) {
      shared.push_back({reduction.stages[i], reduction.stages[i + 1], reduction.bytes});
    }
  }
  return shared;
}

}  // namespace

absl::StatusOr<std::string> RenderMermaid(const Plan& plan, const ReportContext&) {
  std::string out = "flowchart LR\n";
  const int shown = ShownStages(plan);
  for (int s = 0; s < shown; ++s) {
    std::vector<std::string> lines = StageLines(plan, plan.stages[s]);
    for (std::string& line : lines) line = EscapeMermaid(line);
    absl::StrAppend(&out, "  s", s, "[\"", absl::StrJoin(lines, "<br/>"), "\"]\n");
  }
  if (shown < static_cast<int>(plan.stages.size())) {
    absl::StrAppend(&out, "  others[\"", LeftOut(plan), "\"]\n");
  }
  for (const StageEdge& edge : plan.edges) {
    if (edge.to >= shown) continue;
    absl::StrAppend(&out, "  s", edge.from, " -->|\"", EscapeMermaid(EdgeLabel(edge)), "\"| s",
                    edge.to, "\n");
  }
  for (const Shared& s : SharedParameters(plan)) {
    if (s.b >= shown) continue;
    absl::StrAppend(&out, "  s", s.a, " -.-|\"shared parameters, ", HumanBytes(s.bytes), "\"| s",
                    s.b, "\n");
  }
  return out;
}

absl::StatusOr<std::string> RenderDot(const Plan& plan, const ReportContext&) {
  std::string out =
      "digraph plan {\n"
      "  rankdir=LR;\n"
      "  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n"
      "  edge [fontname=\"sans-serif\"];\n";
  const int shown = ShownStages(plan);
  for (int s = 0; s < shown; ++s) {
    std::vector<std::string> lines = StageLines(plan, plan.stages[s]);
    for (std::string& line : lines) line = EscapeDot(line);
    absl::StrAppend(&out, "  s", s, " [label=\"", absl::StrJoin(lines, "\\n"), "\"];\n");
  }
  if (shown < static_cast<int>(plan.stages.size())) {
    absl::StrAppend(&out, "  others [label=\"", LeftOut(plan), "\"];\n");
  }
  for (const StageEdge& edge : plan.edges) {
    if (edge.to >= shown) continue;
    absl::StrAppend(&out, "  s", edge.from, " -> s", edge.to, " [label=\"",
                    EscapeDot(EdgeLabel(edge)), "\"];\n");
  }
  for (const Shared& s : SharedParameters(plan)) {
    if (s.b >= shown) continue;
    absl::StrAppend(&out, "  s", s.a, " -> s", s.b,
                    " [dir=none, style=dashed, constraint=false, label=\"shared parameters, ",
                    HumanBytes(s.bytes), "\"];\n");
  }
  return out + "}\n";
}

}  // namespace autopart::internal
