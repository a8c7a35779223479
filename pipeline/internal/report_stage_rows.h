// The stage table of the text and HTML reports, as texts. Rows are rounded so that they add up to
// the totals shown.
#ifndef AUTOPART_PIPELINE_INTERNAL_REPORT_STAGE_ROWS_H_
#define AUTOPART_PIPELINE_INTERNAL_REPORT_STAGE_ROWS_H_

#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace autopart::internal {

struct StageRow {
  int stage = -1;  // -1: of other stages together
  bool slowest = false;
  std::string ranks, modules, operators, parameters, forward, backward, send, idle;
  std::string memory;       // in the unit of what the device has
  double memory_share = 0;  // of what its smallest device may use
};

struct StageRows {
  std::string parameter_unit;  // "M params"
  std::string memory_title;    // "of 80.0 GiB"
  std::vector<StageRow> rows;  // one may stand for those in the middle: "[16 others]"
  StageRow total;
  std::string copies;  // "1 operator, 10 parameters shared by stages"; empty: none
};

struct RowWidths {
  int ranks = 7;
  int modules = 21;
  int most_rows = 32;
};

StageRows StageRowsOf(const Plan& plan, const RowWidths& widths);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_REPORT_STAGE_ROWS_H_
