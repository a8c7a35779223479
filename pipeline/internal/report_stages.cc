// The stage table of the text report.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "pipeline/internal/format.h"
#include "pipeline/internal/report_stage_rows.h"
#include "pipeline/internal/report_text.h"

namespace autopart::internal {
namespace {

std::string Bar(double share, int cells) {
  const int full = std::clamp<int>(std::lround(share * cells), 0, cells);
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "█" : "░";
  return bar;
}

std::string Line(const std::string& stage, const StageRow& row) {
  std::string line =
      absl::StrCat(Left(stage, 5), "  ", Left(row.ranks, 7), "  ", Left(row.modules, 21),
                   Right(row.operators, 7), Right(row.parameters, 9), Right(row.forward, 8),
                   Right(row.backward, 8));
  absl::StrAppend(&line, Right(row.send, 10), "  ", Left(row.memory, 14), Right(row.idle, 5));
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string StageTable(const Plan& plan) {
  StageRows table = StageRowsOf(plan, {});
  StageRow head;
  head.ranks = "ranks";
  head.modules = "from … to";
  head.operators = "ops";
  head.parameters = table.parameter_unit;
  head.forward = "fwd ms";
  head.backward = "bwd ms";
  head.send = "send/mb";
  head.memory = table.memory_title;
  head.idle = "idle";
  std::string out = Line("stage", head);
  for (StageRow& row : table.rows) {
    if (row.stage < 0) {
      out += Line("", row);
      continue;
    }
    row.memory = absl::StrCat(Bar(row.memory_share, 8), " ", row.memory);
    out += Line(absl::StrCat(" ", row.stage, row.slowest ? "*" : ""), row);
  }
  if (plan.stages.size() > 1) table.total.modules = "(* slowest)";
  out += Line("total", table.total);
  if (!table.copies.empty()) absl::StrAppend(&out, "and copies: ", table.copies, "\n");
  return out;
}

}  // namespace autopart::internal
