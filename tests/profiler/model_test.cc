#include "profiler/model.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/torch_models.h"

namespace autopart {
namespace {

using ::autopart::testing::ModelPath;
using ::testing::HasSubstr;

TEST(InputSpec, ReadsWhatItWrites) {
  for (const char* text : {"int64[8,128]<50257", "float32[8,3,224,224]", "bool[4]", "float64[]",
                           "ids=int64[8,128]<50257", "16000", "0.5", "true"}) {
    const absl::StatusOr<InputSpec> spec = ParseInputSpec(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(ToString(*spec), text);
  }
  const InputSpec ids = *ParseInputSpec("int64[8,128]<50257");
  EXPECT_EQ(ids.dtype, at::kLong);
  EXPECT_EQ(ids.sizes, (std::vector<int64_t>{8, 128}));
  EXPECT_EQ(ids.bound, 50257);
}

TEST(InputSpec, SaysWhatIsWrong) {
  const struct {
    const char* text;
    const char* why;
  } kCases[] = {
      {"", "no sizes in brackets"},        {"int64", "no sizes in brackets"},
      {"int65[3]", "'int65' is no dtype"}, {"int64[3", "brackets do not match"},
      {"int64[3,a]", "'a' is no size"},    {"int64[-1]", "'-1' is no size"},
      {"int64[3]<0", "'<0' is no bound"},  {"float32[3]<5", "only integers have a bound"},
      {"int64[3]5", "'5' is no bound"},
  };
  for (const auto& c : kCases) {
    const absl::Status status = ParseInputSpec(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.why));
    EXPECT_THAT(std::string(status.message()), HasSubstr("for example int64[8,128]<50257"));
  }
}

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const auto path = std::filesystem::temp_directory_path() / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path.string();
}

std::string Message(const std::string& path, const std::vector<InputSpec>& inputs = {}) {
  const absl::StatusOr<Model> model = LoadModelFile(path, inputs);
  EXPECT_FALSE(model.ok());
  const std::string message(model.status().message());
  EXPECT_LT(message.size(), 700u) << message;
  return message;
}

TEST(ModelFile, RefusesWhatIsNoTorchScript) {
  EXPECT_THAT(Message("/nonexistent/model.pt"), HasSubstr("does not exist"));
  EXPECT_THAT(Message("/tmp"), HasSubstr("is a folder"));
  EXPECT_THAT(Message(WriteFile("autopart_text.pt", "not a model")),
              HasSubstr("is not a whole TorchScript file"));
  std::ifstream in(ModelPath("skip_mlp"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  EXPECT_THAT(Message(WriteFile("autopart_half.pt", bytes.substr(0, bytes.size() / 2))),
              HasSubstr("is not a whole TorchScript file"));
}

TEST(ModelFile, RefusesWrongInputs) {
  const auto spec = [](const char* text) { return *ParseInputSpec(text); };
  EXPECT_THAT(Message(ModelPath("skip_mlp"), {spec("float32[3,8]"), spec("float32[3,8]")}),
              HasSubstr("forward() takes 1 inputs (x), 2 are specified"));
  EXPECT_THAT(Message(ModelPath("tied_head"), {spec("int64[3,8]")}),
              HasSubstr("forward() takes 2 inputs"));
  EXPECT_THAT(Message(ModelPath("skip_mlp"), {spec("float32[3,9]")}),
              HasSubstr("aten::linear in module 'inp' refuses its operands (Float[3,9]"));
  EXPECT_THAT(Message(ModelPath("skip_mlp"), {spec("int64[3,8]")}),
              HasSubstr("aten::linear in module 'inp' refuses its operands (Long[3,8]"));
  EXPECT_THAT(Message(ModelPath("skip_mlp"), {spec("8")}), HasSubstr("input 'x' is a tensor"));
}

TEST(ModelFile, TakesOtherShapesThanTheStoredOnes) {
  const absl::StatusOr<Model> model =
      LoadModelFile(ModelPath("skip_mlp"), {*ParseInputSpec("float32[64,8]")});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto* out = std::get_if<ValueRef>(&model->graph.outputs[0].is);
  EXPECT_EQ(model->graph.values[out->value].tensor->Sizes(), (std::vector<int64_t>{64, 4}));
}

}  // namespace
}  // namespace autopart
