// Writes and reads JSON by one list of fields, so that a field cannot be saved and not loaded:
//
//   template <typename V, typename T>
//   void VisitLink(V& v, T& link) {
//     v.Field("latency_ms", link.latency_ms);
//   }
#ifndef AUTOPART_PIPELINE_INTERNAL_JSON_VISIT_H_
#define AUTOPART_PIPELINE_INTERNAL_JSON_VISIT_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace autopart::internal {

using Json = nlohmann::ordered_json;

class JsonWriter {
 public:
  explicit JsonWriter(Json& json) : json_(json) {}

  template <typename T>
  void Field(const char* key, const T& value) {
    json_[key] = value;
  }
  template <typename T, typename F>
  void Object(const char* key, const T& object, F visit) {
    Json child = Json::object();
    JsonWriter writer(child);
    visit(writer, object);
    json_[key] = std::move(child);
  }
  template <typename T, typename F>
  void List(const char* key, const std::vector<T>& list, F visit) {
    Json children = Json::array();
    for (const T& item : list) {
      Json child = Json::object();
      JsonWriter writer(child);
      visit(writer, item);
      children.push_back(std::move(child));
    }
    json_[key] = std::move(children);
  }

 private:
  Json& json_;
};

// Keeps the first error; after it, fields keep their defaults.
class JsonReader {
 public:
  // `what` the text is, for messages: "plan". The status is OK or the first error.
  JsonReader(const Json& json, std::string what, std::string path, absl::Status& status)
      : json_(json), what_(std::move(what)), path_(std::move(path)), status_(status) {}

  template <typename T>
  void Field(const char* key, T& value) {
    if (const Json* field = Find(key)) Read(*field, path_ + key, value);
  }
  template <typename T, typename F>
  void Object(const char* key, T& object, F visit) {
    const Json* field = Find(key);
    if (field == nullptr) return;
    if (!field->is_object()) return Wrong(path_ + key, *field, "an object");
    JsonReader reader(*field, what_, absl::StrCat(path_, key, "."), status_);
    visit(reader, object);
  }
  template <typename T, typename F>
  void List(const char* key, std::vector<T>& list, F visit) {
    const Json* field = Find(key);
    if (field == nullptr) return;
    if (!field->is_array()) return Wrong(path_ + key, *field, "a list");
    for (size_t i = 0; i < field->size(); ++i) {
      const std::string item_path = absl::StrCat(path_, key, "[", i, "]");
      if (!(*field)[i].is_object()) return Wrong(item_path, (*field)[i], "an object");
      JsonReader reader((*field)[i], what_, item_path + ".", status_);
      visit(reader, list.emplace_back());
    }
  }

 private:
  const Json* Find(const char* key) {
    const auto it = json_.find(key);
    if (it != json_.end()) return &*it;
    Fail(absl::StrCat(path_, key, " is missing"));
    return nullptr;
  }

  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(what_, ": ", what));
  }
  void Wrong(const std::string& path, const Json& found, std::string_view expected) {
    std::string text = found.dump();
    if (text.size() > 40) text = text.substr(0, 37) + "...";
    Fail(absl::StrCat(path, " should be ", std::string(expected), ", not ", text));
  }

  template <typename T>
  void Read(const Json& json, const std::string& path, T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return Wrong(path, json, "a text");
      value = json.get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return Wrong(path, json, "true or false");
      value = json.get<bool>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!json.is_number() || json.get<double>() < 0) {
        return Wrong(path, json, "a number of at least 0");
      }
      value = json.get<double>();
    } else if constexpr (std::is_integral_v<T>) {
      // Nothing in our files counts below 0. An unsigned JSON number is one that has no sign.
      if (!json.is_number_unsigned() ||
          json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<T>::max())) {
        return Wrong(path, json, "a whole number of at least 0");
      }
      value = json.get<T>();
    } else {
      if (!json.is_array()) return Wrong(path, json, "a list");
      for (size_t i = 0; i < json.size(); ++i) {
        Read(json[i], absl::StrCat(path, "[", i, "]"), value.emplace_back());
      }
    }
  }

  const Json& json_;
  const std::string what_, path_;
  absl::Status& status_;
};

// Objects one field a line; lists of numbers on one line, as they are long and many.
std::string Layout(const Json& json);

}  // namespace autopart::internal

#endif  // AUTOPART_PIPELINE_INTERNAL_JSON_VISIT_H_
