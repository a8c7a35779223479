#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "pipeline/report.h"
#include "tests/pipeline/many_plans.h"

namespace autopart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Html(const Plan& plan) { return *RenderPlan(plan, "html", {}); }

// What is wrong with the nesting of elements and the quotes of attributes; empty: nothing.
std::string Malformed(const std::string& html) {
  static const std::set<std::string> kVoid = {"meta", "br", "!DOCTYPE"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return absl::StrCat("no > after byte ", at);
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return absl::StrCat("< within ", tag);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return absl::StrCat("quotes: ", tag);
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) {
        return absl::StrCat("</", tag.substr(1), "> closes ",
                            open.empty() ? "nothing" : open.back());
      }
      open.pop_back();
    } else if (const std::string name = tag.substr(0, tag.find_first_of(" /"));
               tag.back() != '/' && !kVoid.count(name)) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : absl::StrCat("<", open.back(), "> is not closed");
}

TEST(HtmlReport, IsWellFormedAndWholeForEveryPlan) {
  for (const auto& [name, plan] : ManyPlans()) {
    const std::string html = Html(plan);
    EXPECT_EQ(Malformed(html), "") << name;
    EXPECT_THAT(html, Not(HasSubstr("{{"))) << name;
    EXPECT_THAT(html, Not(HasSubstr("\"nan"))) << name;
    EXPECT_THAT(html, Not(HasSubstr("\"inf"))) << name;
    EXPECT_LT(html.size(), 4 << 20) << name;
  }
}

TEST(HtmlReport, NeedsNothingFromElsewhere) {
  for (const auto& [name, plan] : ManyPlans()) {
    const std::string html = Html(plan);
    for (const char* word : {"http", "//", "<script", "src=", "url(", "@import", "<link", "href"}) {
      EXPECT_THAT(html, Not(HasSubstr(word))) << name;
    }
  }
}

TEST(HtmlReport, EscapesTheNamesOfModelAndModules) {
  Plan plan = SmallPlan();
  plan.model.name = "<script>alert(\"x\")</script>{{trust}}&'";
  plan.stages[0].first_module = "<b>";
  plan.stages[1].last_module = "\"quoted\" & more";
  const std::string html = Html(plan);
  EXPECT_EQ(Malformed(html), "");
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html,
              HasSubstr("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;{{trust}}&amp;&#39;"));
  EXPECT_THAT(html, Not(HasSubstr("<b> ")));
}

TEST(HtmlReport, DrawsEveryComputeActionOfASmallPlan) {
  const Plan plan = SmallPlan();
  const std::string html = Html(plan);
  const Schedule schedule = *BuildSchedule(plan);
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (action.kind > ActionKind::kBackwardWeight) continue;
      EXPECT_THAT(html, HasSubstr(absl::StrCat("<title>", ToString(action), " ")));
    }
  }
}

TEST(HtmlReport, SaysWhatItLeavesOut) {
  const std::vector<NamedPlan> plans = ManyPlans();
  EXPECT_THAT(Html(plans.back().plan), HasSubstr("of 120 ranks: the first replica of each stage"));
  PlannerOptions options;
  options.stages = 2;
  options.micro_batches = 500;
  const Plan longer = *MakePlan(SmallGraph(), *UniformCluster("h100", 2), options);
  EXPECT_THAT(Html(longer), HasSubstr("--format trace has the whole step"));
}

TEST(HtmlReport, HasPartsThatAddUpToTheStep) {
  for (const auto& [name, plan] : ManyPlans()) {
    const std::string html = Html(plan);
    const size_t begin = html.find("<table class=\"parts\">");
    const std::string table = html.substr(begin, html.find("</table>", begin) - begin);
    double sum = 0, total = 0;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n'))) {
      const size_t number = line.find("</td><td>");
      if (number == std::string::npos) continue;
      const double ms = std::stod(line.substr(number + 9));
      (line.find("class=\"total\"") != std::string::npos ? total : sum) += ms;
    }
    EXPECT_NEAR(sum, total, 1e-6 * (1 + total)) << name << table;
  }
}

}  // namespace
}  // namespace autopart
