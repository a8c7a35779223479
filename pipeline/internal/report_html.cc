// The report as one HTML file: no script, nothing from elsewhere. The page is report.html.in; this
// fills it in.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/renderers.h"
#include "pipeline/internal/report_facts.h"
#include "pipeline/internal/report_html_template.h"
#include "pipeline/internal/report_stage_rows.h"
#include "pipeline/internal/report_summary.h"
#include "pipeline/internal/report_svg.h"
#include "pipeline/internal/report_tracks.h"
#include "pipeline/simulate.h"

namespace autopart::internal {
namespace {

constexpr int kMostRanks = 16;
constexpr size_t kMostSpans = 240;  // of a rank; narrower ones could not be told apart
constexpr RowWidths kWidths = {12, 44, 64};

std::string Joined(const Fact& fact) { return absl::StrJoin(fact.pieces, fact.separator); }

std::string Cell(const std::string& text, const char* class_name = nullptr) {
  return class_name == nullptr
             ? absl::StrCat("<td>", EscapeHtml(text), "</td>")
             : absl::StrCat("<td class=\"", class_name, "\">", EscapeHtml(text), "</td>");
}

std::string Item(const std::string& text) {
  return absl::StrCat("<li>", EscapeHtml(text), "</li>\n");
}

std::string Section(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string out = absl::StrCat("<h2>", title, "</h2>\n<ul>\n");
  for (const std::string& item : items) out += Item(item);
  return absl::StrCat(out, "</ul>\n");
}

std::string Card(const std::string& number, const std::string& meaning) {
  return absl::StrCat("<div class=\"card\"><b>", EscapeHtml(number), "</b><span class=\"dim\">",
                      EscapeHtml(meaning), "</span></div>\n");
}

std::string Cards(const Plan& plan) {
  std::string out = Card(Ms(plan.predicted_step_ms), "a step, predicted");
  const Fact step = StepFact(plan);
  if (step.pieces.size() == 3) {
    out += Card(step.pieces[1], "throughput");
    const size_t blank = step.pieces[2].find(' ');
    out += Card(step.pieces[2].substr(0, blank), step.pieces[2].substr(blank + 1));
  }
  if (!plan.bound_kind.empty()) {
    const double gap = std::max(0.0, plan.predicted_step_ms - plan.bound_ms);
    out += Card(plan.bound_ms > 0 ? absl::StrCat("+", Percent(gap / plan.bound_ms)) : Ms(gap),
                absl::StrCat("above the bound, ", Ms(plan.bound_ms),
                             plan.optimal ? "; optimal for this cost model" : ""));
  }
  const PlanStage& fullest = plan.stages[FullestStage(plan)];
  return out + Card(BytesOf(fullest.peak_memory_bytes, StageCaps(plan)[fullest.index]),
                    absl::StrCat("memory of stage ", fullest.index, ", the fullest"));
}

std::string Facts(const Plan& plan, const ReportContext& context) {
  std::string out;
  const auto add = [&](const std::string& name, const std::string& text) {
    absl::StrAppend(&out, "<dt>", EscapeHtml(name), "</dt><dd>", EscapeHtml(text), "</dd>\n");
  };
  std::vector<Fact> facts = InputFacts(plan, context);
  facts[0].name = "model";
  for (const Fact& fact : facts) add(fact.name, Joined(fact));
  add("bound", BoundFactOf(plan).bound);
  if (!context.plan_path.empty()) add("saved", context.plan_path);
  return out;
}

std::string LegendItem(const std::string& colour, const std::string& name) {
  return absl::StrCat("<span style=\"--c:var(--", colour, ")\">", name, "</span>\n");
}

std::string TimelineLegend(const std::vector<RankTracks>& tracks) {
  std::set<SpanKind> kinds;
  for (const RankTracks& track : tracks) {
    for (const auto* spans : {&track.compute, &track.sends, &track.receives, &track.reductions}) {
      for (const Span& span : *spans) kinds.insert(span.kind);
    }
  }
  std::string out;
  for (const SpanKind kind : kinds) out += LegendItem(ColourOf(kind), NameOf(kind));
  return out + LegendItem("wait", "idle");
}

std::string MemoryLegend() {
  std::string out;
  for (const MemoryKind& kind : kMemoryKinds) {
    out += LegendItem(absl::StrCat("m-", kind.name), kind.name);
  }
  return out;
}

// The step, or as much of it as can be told apart.
double TimelineEnd(const std::vector<RankTracks>& tracks, double makespan_ms) {
  double until = makespan_ms;
  for (const RankTracks& track : tracks) {
    if (track.compute.size() > kMostSpans) {
      until = std::min(until, track.compute[kMostSpans].start_ms);
    }
  }
  return until;
}

std::string TimelineNote(const Plan& plan, const std::vector<int>& shown, double until_ms,
                         double makespan_ms) {
  std::string note =
      "A row a rank, numbers are micro-batches; beneath, what it sends, receives and reduces.";
  if (until_ms < makespan_ms) {
    absl::StrAppend(&note, " The first ", Ms(until_ms), " of ", Ms(makespan_ms), ".");
  }
  if (const std::string part = ShownNote(plan, shown); !part.empty()) {
    absl::StrAppend(&note, " ", part, ".");
  }
  if (until_ms < makespan_ms) note += " --format trace has the whole step.";
  return note;
}

struct PartColour {
  const char* part;
  const char* colour;
};
constexpr PartColour kPartColours[] = {{"compute", "forward"},
                                       {"bubble", "bubble"},
                                       {"imbalance", "imbalance"},
                                       {"exposed messages", "send"},
                                       {"exposed reduction", "reduce"},
                                       {"recompute", "again"},
                                       {"optimizer", "step"}};

const char* ColourOfPart(const std::string& part) {
  for (const PartColour& row : kPartColours) {
    if (part == row.part) return row.colour;
  }
  return "line";
}

std::string Split(const Plan& plan) {
  std::string out;
  for (const TimePart& part : StepParts(plan)) {
    const double share = plan.predicted_step_ms > 0 ? part.ms / plan.predicted_step_ms : 0;
    if (share <= 0) continue;
    absl::StrAppend(&out, "<i title=\"", part.name,
                    absl::StrFormat("\" style=\"width:%.2f%%;background:var(--", 100 * share),
                    ColourOfPart(part.name), ")\"></i>");
  }
  return out;
}

std::string Parts(const Plan& plan) {
  const std::vector<TimePart> parts = StepParts(plan);
  std::vector<double> values;
  for (const TimePart& part : parts) values.push_back(part.ms);
  const std::vector<std::string> texts =
      RoundedToAddUp(values, DecimalsFor(plan.predicted_step_ms));
  std::string out = "<tr><th class=\"l\">part</th><th>ms</th><th>share</th></tr>\n";
  double total = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    total += std::stod(texts[i]);
    const double share = plan.predicted_step_ms > 0 ? parts[i].ms / plan.predicted_step_ms : 0;
    absl::StrAppend(&out, "<tr style=\"--c:var(--", ColourOfPart(parts[i].name), ")\">",
                    Cell(parts[i].name, "l"), Cell(texts[i]), Cell(Percent(share)), "</tr>\n");
  }
  return absl::StrCat(out, "<tr class=\"total\" style=\"--c:transparent\">", Cell("step", "l"),
                      Cell(absl::StrFormat("%.*f", DecimalsFor(plan.predicted_step_ms), total)),
                      Cell("100 %"), "</tr>\n");
}

// What the stage's memory is of, as parts of what its device may use.
std::string MemoryBar(const MemoryByKind& memory, int64_t cap) {
  std::string out = "<span class=\"bar\">";
  for (const MemoryKind& kind : kMemoryKinds) {
    const int64_t bytes = memory.*kind.bytes;
    if (bytes <= 0 || cap <= 0) continue;
    absl::StrAppend(&out, "<i class=\"m-", kind.name, "\" title=\"", kind.name, " ",
                    HumanBytes(bytes),
                    absl::StrFormat("\" style=\"width:%.2f%%;background:var(--m-",
                                    100 * std::min(1.0, static_cast<double>(bytes) / cap)),
                    kind.name, ")\"></i>");
  }
  return absl::StrCat(out, "</span>");
}

std::string Stages(const Plan& plan) {
  const StageRows table = StageRowsOf(plan, kWidths);
  const std::vector<int64_t> caps = StageCaps(plan);
  std::string out = absl::StrCat(
      "<tr><th class=\"l\">stage</th><th class=\"l\">ranks</th><th class=\"l\">from … to</th>"
      "<th class=\"l\">memory ",
      table.memory_title, "</th><th>ops</th><th>", table.parameter_unit,
      "</th><th>fwd ms</th><th>bwd ms</th><th>send/mb</th><th>idle</th></tr>\n");
  const auto add = [&](const StageRow& row, const std::string& name, const char* class_name,
                       const std::string& bar) {
    absl::StrAppend(&out, "<tr", class_name, ">", Cell(name, "l"), Cell(row.ranks, "l"),
                    Cell(row.modules, "l"), "<td class=\"l\">", bar, EscapeHtml(row.memory),
                    "</td>");
    absl::StrAppend(&out, Cell(row.operators), Cell(row.parameters), Cell(row.forward),
                    Cell(row.backward), Cell(row.send), Cell(row.idle), "</tr>\n");
  };
  for (const StageRow& row : table.rows) {
    if (row.stage < 0) {
      add(row, "", "", "");
      continue;
    }
    add(row, absl::StrCat(row.stage), row.slowest ? " class=\"slowest\"" : "",
        MemoryBar(plan.stages[row.stage].memory, caps[row.stage]));
  }
  add(table.total, "total", " class=\"total\"", "");
  return out;
}

std::string StagesNote(const Plan& plan) {
  std::string note = plan.stages.size() > 1
                         ? "* the slowest stage. Times and send/mb are of one micro-batch."
                         : "Times are of one micro-batch.";
  if (const std::string copies = StageRowsOf(plan, kWidths).copies; !copies.empty()) {
    absl::StrAppend(&note, note.empty() ? "" : " ", "Copies: ", copies, ".");
  }
  return note.empty() ? "" : absl::StrCat("<p class=\"dim\">", EscapeHtml(note), "</p>\n");
}

std::string Memory(const Plan& plan, const Simulation& simulation,
                   const std::vector<RankTracks>& tracks, MemoryScale scale) {
  const std::vector<int64_t> caps = StageCaps(plan);
  std::string out;
  for (const RankTracks& track : tracks) {
    scale.cap_bytes = caps[track.stages[0]];
    absl::StrAppend(&out, "<figure>", MemorySvg(track, scale), "<figcaption>rank ", track.rank,
                    ", ", track.stages.size() == 1 ? "stage " : "stages ",
                    absl::StrJoin(track.stages, ", "), ": peak ",
                    BytesOf(simulation.ranks[track.rank].peak_bytes, scale.cap_bytes),
                    "</figcaption></figure>\n");
  }
  return out;
}

int64_t MostBytes(const Simulation& simulation, const std::vector<int>& shown) {
  int64_t most = 1;
  for (const int rank : shown) most = std::max(most, simulation.ranks[rank].peak_bytes);
  return most + most / 20;
}

std::string MemoryNote(const MemoryScale& scale) {
  return absl::StrCat("From 0 to ", HumanBytes(scale.most_bytes), " and over ", Ms(scale.until_ms),
                      ". The peak counts the scratch of single operators too; a dashed line is "
                      "what the device may use.");
}

std::vector<std::string> TryTexts(const Plan& plan) {
  std::vector<std::string> texts;
  for (const Fact& change : Tries(plan)) {
    texts.push_back(absl::StrCat(change.name, " ", Joined(change)));
  }
  return texts;
}

}  // namespace

absl::StatusOr<std::string> RenderHtml(const Plan& plan, const ReportContext& context) {
  const absl::StatusOr<Simulation> simulation = SimulatePlan(plan);
  if (!simulation.ok()) return simulation.status();
  const double makespan_ms = std::max(simulation->makespan_ms, 1e-9);
  const std::vector<int> shown = ShownRanks(plan, kMostRanks);
  const std::vector<RankTracks> tracks = TracksOf(plan, *simulation, shown);
  const double until_ms = TimelineEnd(tracks, makespan_ms);
  const MemoryScale scale = {makespan_ms, MostBytes(*simulation, shown), 0};
  std::vector<std::string> why = CutTexts(plan);
  why.push_back(absl::StrCat("memory: ", MemoryText(plan)));
  std::string why_items;
  for (const std::string& line : why) why_items += Item(line);

  // One pass: what is put in is not searched for names again.
  return absl::StrReplaceAll(
      kReportHtml,
      {{"{{title}}", EscapeHtml(plan.model.name.empty() ? "plan" : plan.model.name)},
       {"{{plan}}", EscapeHtml(Joined(PlanFact(plan)))},
       {"{{cards}}", Cards(plan)},
       {"{{facts}}", Facts(plan, context)},
       {"{{timeline_note}}", EscapeHtml(TimelineNote(plan, shown, until_ms, makespan_ms))},
       {"{{timeline_legend}}", TimelineLegend(tracks)},
       {"{{timeline}}", TimelineSvg(tracks, until_ms)},
       {"{{split}}", Split(plan)},
       {"{{parts}}", Parts(plan)},
       {"{{memory_legend}}", MemoryLegend()},
       {"{{stages}}", Stages(plan)},
       {"{{stages_note}}", StagesNote(plan)},
       {"{{memory_note}}", EscapeHtml(MemoryNote(scale))},
       {"{{memory}}", Memory(plan, *simulation, tracks, scale)},
       {"{{why}}", why_items},
       {"{{not_chosen}}", Section("Not chosen", NotChosen(plan))},
       {"{{try}}", Section("Try", TryTexts(plan))},
       {"{{trust}}", EscapeHtml(TrustOf(plan))}});
}

}  // namespace autopart::internal
