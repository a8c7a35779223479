// The flags of `autopart capture`, and which Python it runs. What that does is tested in
// tests/python/test_capture_command.py.
#include "runtime/cli/capture_command.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cli/python_program.h"

namespace autopart {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Optional;

struct Result {
  int status = 0;
  std::string out, err;
};

Result Capture(const Args& args) {
  std::ostringstream out, err;
  Result result;
  result.status = CaptureCommand(args, {out, err});
  result.out = out.str();
  result.err = err.str();
  return result;
}

// A folder with empty programs of these names.
std::string FolderWith(const std::string& name, const std::vector<std::string>& programs) {
  const fs::path folder = ::testing::TempDir() + "/autopart_capture_command_test/" + name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const std::string& program : programs) {
    std::ofstream(folder / program).put('\n');
    fs::permissions(folder / program, fs::perms::owner_all);
  }
  return folder.string();
}

TEST(CaptureCommand, HelpShowsAnExampleAndWhatTheFunctionReturns) {
  const Result result = Capture({"--help"});
  EXPECT_EQ(result.status, kExitGood);
  EXPECT_THAT(result.out, HasSubstr("autopart capture script.py:build_model -o model.graph.json"));
  EXPECT_THAT(result.out, HasSubstr("return module, example_inputs"));
}

TEST(CaptureCommand, AScriptIsRequired) { EXPECT_EQ(Capture({}).status, kExitUsage); }

TEST(CaptureCommand, AnUnknownFlagIsRefusedWithTheNearest) {
  const Result result = Capture({"train.py", "--ouput", "m.json"});
  EXPECT_EQ(result.status, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("did you mean --output?"));
}

TEST(FindPython, ThePythonBesideTheCommandComesFirst) {
  const std::string environment = FolderWith("environment", {"autopart", "python3"});
  const std::string build = FolderWith("build", {"autopart", "python3"});
  const std::string other = FolderWith("other", {"python3"});
  EXPECT_THAT(FindPython({environment + "/autopart", build + "/autopart", other}),
              Optional(environment + "/python3"));
}

TEST(FindPython, ACommandWithoutFolderIsLookedUpInThePath) {
  const std::string environment = FolderWith("environment", {"autopart", "python3"});
  const std::string other = FolderWith("other", {"python3"});
  EXPECT_THAT(FindPython({"autopart", "/nowhere/autopart", other + ":" + environment}),
              Optional(environment + "/python3"));
}

TEST(FindPython, ThePythonBesideTheExecutableComesNext) {
  const std::string links = FolderWith("links", {"autopart"});
  const std::string build = FolderWith("build", {"autopart", "python3"});
  EXPECT_THAT(FindPython({links + "/autopart", build + "/autopart", ""}),
              Optional(build + "/python3"));
}

TEST(FindPython, ThePathIsTheLastResort) {
  const std::string build = FolderWith("build", {"autopart"});
  const std::string other = FolderWith("other", {"python3"});
  EXPECT_THAT(FindPython({build + "/autopart", build + "/autopart", build + ":" + other}),
              Optional(other + "/python3"));
}

TEST(FindPython, WhatCannotBeRunIsNoPython) {
  const std::string folder = FolderWith("file", {"python3"});
  fs::permissions(folder + "/python3", fs::perms::owner_read);
  const std::string nested = FolderWith("nested", {});
  fs::create_directory(nested + "/python3");

  EXPECT_EQ(FindPython({"autopart", "/nowhere/autopart", folder + ":" + nested}), std::nullopt);
}

}  // namespace
}  // namespace autopart
