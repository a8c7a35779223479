// Every format of the report, byte for byte as in tests/data/report. After a change that is meant:
// `make goldens`, and look at what git says is different.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "partitioner/read_file.h"
#include "pipeline/report.h"
#include "pipeline/what_if.h"
#include "tests/pipeline/small_plan.h"

namespace autopart {
namespace {

const std::map<std::string, std::string> kFileOf = {
    {"text", "small.txt"},         {"json", "small.json"},   {"html", "small.html"},
    {"trace", "small.trace.json"}, {"mermaid", "small.mmd"}, {"dot", "small.dot"}};

TEST(GoldenReport, IsAsInItsFileInEveryFormat) {
  const Plan plan = SimulateAgain(SmallPlan(), {})->plan;
  for (const std::string& format : ReportFormats()) {
    ASSERT_TRUE(kFileOf.count(format)) << format << " has no golden file: give it one";
    const std::string path =
        absl::StrCat(AUTOPART_SOURCE_DIR, "/tests/data/report/", kFileOf.at(format));
    const std::string report = *RenderPlan(plan, format, {"plan.json", 0});
    if (std::getenv("AUTOPART_UPDATE_GOLDENS") != nullptr) {
      ASSERT_TRUE(WriteFile(path, report).ok());
    }
    const absl::StatusOr<std::string> golden = ReadFile(path);
    ASSERT_TRUE(golden.ok()) << golden.status();
    EXPECT_EQ(report, *golden) << path << " differs; `make goldens` takes the new one";
  }
}

TEST(GoldenReport, HasNoFileWithoutAFormat) {
  const std::filesystem::path folder =
      std::filesystem::path(AUTOPART_SOURCE_DIR) / "tests/data/report";
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, ReportFormats().size());
}

}  // namespace
}  // namespace autopart
