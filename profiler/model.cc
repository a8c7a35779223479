// A model file: TorchScript archive, with what autopart.save knows of its inputs beside it.
#include "profiler/model.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <unordered_map>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "profiler/import_torchscript.h"
#include "profiler/internal/dtypes.h"

namespace autopart {
namespace {

using Json = nlohmann::json;

constexpr char kExtraFile[] = "autopart.json";

absl::Status BadSpec(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("input specification '", std::string(text), "': ", std::string(why),
                   "; write dtype[sizes]<bound, for example int64[8,128]<50257"));
}

std::optional<at::IValue> ParseScalar(std::string_view text) {
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  const absl::string_view view(text.data(), text.size());
  if (int64_t number; absl::SimpleAtoi(view, &number)) return number;
  if (double number; absl::SimpleAtod(view, &number)) return number;
  return std::nullopt;
}

InputSpec InputFromJson(const Json& json) {
  InputSpec spec;
  spec.name = json.value("name", "");
  if (json.contains("value")) {
    const Json& value = json.at("value");
    if (value.is_boolean()) {
      spec.scalar = value.get<bool>();
    } else if (value.is_number_integer()) {
      spec.scalar = value.get<int64_t>();
    } else {
      spec.scalar = value.get<double>();
    }
    return spec;
  }
  const std::string dtype = json.at("dtype").get<std::string>();
  const auto parsed = internal::ParseDtype(dtype);
  if (!parsed) throw std::invalid_argument(absl::StrCat("unknown dtype '", dtype, "'"));
  spec.dtype = *parsed;
  spec.sizes = json.at("shape").get<std::vector<int64_t>>();
  if (json.contains("bound") && !json.at("bound").is_null()) {
    spec.bound = json.at("bound").get<int64_t>();
  }
  spec.batch_axis = json.value("batch_axis", 0);
  return spec;
}

absl::StatusOr<ImportOptions> OptionsFromJson(const std::string& text, const std::string& path) {
  ImportOptions options;
  if (text.empty()) return options;
  try {
    const Json json = Json::parse(text);
    const int version = json.at("version").get<int>();
    if (version > 1) {
      return absl::InvalidArgumentError(absl::StrCat(path, " was saved by a newer autopart (",
                                                     kExtraFile, " version ", version,
                                                     ", this one reads 1)"));
    }
    for (const Json& input : json.at("inputs")) options.inputs.push_back(InputFromJson(input));
    if (json.contains("loss") && !json.at("loss").is_null()) {
      options.loss_output = json.at("loss").get<int>();
    }
    options.loss_is_sum = json.value("loss_is_sum", false);
    if (json.contains("training")) options.training = json.at("training").get<bool>();
    options.strip_prefix = json.value("strip_prefix", "");
    options.constants = json.value("constants", std::vector<std::string>());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(kExtraFile, " in ", path, " is damaged: ", error.what()));
  }
  return options;
}

}  // namespace

absl::StatusOr<InputSpec> ParseInputSpec(std::string_view text) {
  InputSpec spec;
  std::string_view rest = text;
  if (const size_t equals = rest.find('='); equals != std::string_view::npos) {
    spec.name = std::string(rest.substr(0, equals));
    rest.remove_prefix(equals + 1);
  }
  const size_t open = rest.find('[');
  const size_t close = rest.find(']');
  if (open == std::string_view::npos && close == std::string_view::npos) {
    spec.scalar = ParseScalar(rest);
    if (!spec.scalar) return BadSpec(text, "no sizes in brackets");
    return spec;
  }
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) {
    return BadSpec(text, "the brackets do not match");
  }
  const auto dtype = internal::ParseDtype(rest.substr(0, open));
  if (!dtype) {
    return BadSpec(text, absl::StrCat("'", std::string(rest.substr(0, open)), "' is no dtype (",
                                      internal::DtypeNames(), ")"));
  }
  spec.dtype = *dtype;
  const std::string sizes(rest.substr(open + 1, close - open - 1));
  if (!absl::StripAsciiWhitespace(sizes).empty()) {
    for (const absl::string_view part : absl::StrSplit(sizes, absl::ByAnyChar(",x"))) {
      int64_t size = 0;
      if (!absl::SimpleAtoi(part, &size) || size < 0) {
        return BadSpec(text, absl::StrCat("'", part, "' is no size"));
      }
      spec.sizes.push_back(size);
    }
  }
  const std::string_view tail = rest.substr(close + 1);
  if (!tail.empty()) {
    int64_t bound = 0;
    if (tail[0] != '<' ||
        !absl::SimpleAtoi(absl::string_view(tail.data() + 1, tail.size() - 1), &bound) ||
        bound <= 0) {
      return BadSpec(text, absl::StrCat("'", std::string(tail), "' is no bound"));
    }
    if (!c10::isIntegralType(spec.dtype, /*includeBool=*/false)) {
      return BadSpec(text, "only integers have a bound");
    }
    spec.bound = bound;
  }
  return spec;
}

std::string ToString(const InputSpec& spec) {
  std::string out = spec.name.empty() ? "" : absl::StrCat(spec.name, "=");
  if (spec.scalar) {
    if (spec.scalar->isBool()) return absl::StrCat(out, spec.scalar->toBool() ? "true" : "false");
    if (spec.scalar->isInt()) return absl::StrCat(out, spec.scalar->toInt());
    return absl::StrCat(out, spec.scalar->toDouble());
  }
  absl::StrAppend(&out, internal::DtypeName(spec.dtype), "[", absl::StrJoin(spec.sizes, ","), "]");
  if (spec.bound) absl::StrAppend(&out, "<", *spec.bound);
  return out;
}

absl::StatusOr<Model> LoadModelFile(const std::string& path, const std::vector<InputSpec>& inputs) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) {
    return absl::InvalidArgumentError(absl::StrCat("model file ", path, " does not exist"));
  }
  if (std::filesystem::is_directory(path, ec)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder, not a model file"));
  }
  if (std::ifstream(path).get() == '{') {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        " is JSON: a captured graph has no weights, and can be planned and profiled only; to "
        "run the model, load it from a file of autopart.save"));
  }
  std::unordered_map<std::string, std::string> extra = {{kExtraFile, ""}};
  std::optional<torch::jit::Module> module;
  try {
    module = torch::jit::load(path, std::nullopt, extra);
  } catch (const std::exception& error) {
    std::string why = error.what();
    if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
      why = torch_error->what_without_backtrace();
    }
    why = why.substr(0, why.find_first_of(".\n"));  // what follows blames a library of torch's
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is not a whole TorchScript file (", why,
        "): write it with autopart.save or torch.jit.save; a state_dict or a pickled module is "
        "none"));
  }
  absl::StatusOr<ImportOptions> options = OptionsFromJson(extra[kExtraFile], path);
  if (!options.ok()) return options.status();
  if (!inputs.empty()) {
    // Names and batch axes that the file knows stay where only shapes are given.
    for (size_t i = 0; i < inputs.size() && i < options->inputs.size(); ++i) {
      if (!inputs[i].name.empty()) options->inputs[i].name = inputs[i].name;
    }
    std::vector<InputSpec> merged = inputs;
    for (size_t i = 0; i < merged.size() && i < options->inputs.size(); ++i) {
      merged[i].name = options->inputs[i].name;
      merged[i].batch_axis = options->inputs[i].batch_axis;
      if (!merged[i].bound && merged[i].dtype == options->inputs[i].dtype) {
        merged[i].bound = options->inputs[i].bound;
      }
    }
    options->inputs = std::move(merged);
  }
  if (options->inputs.empty()) {
    const auto forward = module->find_method("forward");
    const int count = forward ? static_cast<int>(forward->num_inputs()) - 1 : 0;
    if (count > 0) {
      std::vector<std::string> names;
      const auto& arguments = forward->function().getSchema().arguments();
      for (size_t i = 1; i < arguments.size(); ++i) names.push_back(arguments[i].name());
      return absl::InvalidArgumentError(absl::StrCat(
          path, " does not say what its inputs look like: give --input for ",
          absl::StrJoin(names, ", then "),
          ", for example --input 'int64[8,128]<50257' or --input 'float32[8,3,224,224]' (dtype, "
          "shape, bound of integers), or save it with autopart.save"));
    }
  }
  absl::StatusOr<Model> model = ImportTorchScript(*module, *options);
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat(path, ": ", model.status().message()));
  }
  return model;
}

}  // namespace autopart
