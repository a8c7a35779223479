#include "runtime/cli/progress.h"

#include <sstream>

#include <gtest/gtest.h>

namespace autopart {
namespace {

TEST(Progress, IsSilentBeforeItsTime) {
  std::ostringstream err;
  Progress progress(err, std::chrono::hours(1));
  progress.Say("splitting");
  EXPECT_EQ(err.str(), "");
}

TEST(Progress, SaysALineWithTheTimePassed) {
  std::ostringstream err;
  Progress progress(err, std::chrono::milliseconds(0));
  progress.Say("splitting");
  progress.Say("simulating");
  EXPECT_EQ(err.str(), "   0 s  splitting\n   0 s  simulating\n");
}

}  // namespace
}  // namespace autopart
