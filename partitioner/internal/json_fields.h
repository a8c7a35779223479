// Reads the fields of a JSON object, and says by path what is wrong with the first bad one.
//
//   JsonFields fields(json, "nodes[3]");
//   fields.Read("forward_ms", node.forward_ms);
//   fields.Read("group", node.group, kNoGroup);   // may be missing
//   if (!fields.status().ok()) return fields.status();
//
// After the first error the other reads do nothing.
#ifndef AUTOPART_PARTITIONER_INTERNAL_JSON_FIELDS_H_
#define AUTOPART_PARTITIONER_INTERNAL_JSON_FIELDS_H_

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace autopart::internal {

using Json = nlohmann::ordered_json;

// INVALID_ARGUMENT with the place of the mistake.
absl::StatusOr<Json> ParseJson(std::string_view text);

class JsonFields {
 public:
  // Borrows `object`, which has to outlive this.
  JsonFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) Fail("", "want an object");
  }

  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }

  template <typename T>
  void Read(const char* key, T& out) {
    if (const Json* json = Find(key)) Convert(*json, key, out);
  }

  template <typename T>
  void Read(const char* key, T& out, const T& otherwise) {
    if (!status_.ok()) return;
    if (!object_.contains(key)) {
      out = otherwise;
      return;
    }
    Read(key, out);
  }

  // The elements of an array of objects: Each("nodes", [&](JsonFields& node) {...}).
  template <typename F>
  void Each(const char* key, F&& read) {
    const Json* json = Find(key);
    if (json == nullptr) return;
    if (!json->is_array()) return Fail(key, "want an array");
    for (size_t i = 0; i < json->size() && status_.ok(); ++i) {
      JsonFields element((*json)[i], absl::StrCat(PathOf(key), "[", i, "]"));
      if (element.status_.ok()) read(element);
      status_ = element.status_;
    }
  }

  void Fail(std::string_view key, std::string_view what) {
    if (!status_.ok()) return;
    const std::string where = PathOf(key);
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where.empty() ? "JSON" : where, ": ", std::string(what)));
  }

 private:
  const Json* Find(const char* key) {
    if (!status_.ok()) return nullptr;
    const auto it = object_.find(key);
    if (it == object_.end()) {
      Fail(key, "missing");
      return nullptr;
    }
    return &*it;
  }

  std::string PathOf(std::string_view key) const {
    if (path_.empty() || key.empty()) return absl::StrCat(path_, std::string(key));
    return absl::StrCat(path_, ".", std::string(key));
  }

  void Convert(const Json& json, const std::string& key, std::string& out) {
    if (!json.is_string()) return Fail(key, "want a string");
    out = json.get<std::string>();
  }
  // Numbers stand for truth in some published graphs.
  void Convert(const Json& json, const std::string& key, bool& out) {
    if (json.is_boolean()) {
      out = json.get<bool>();
    } else if (json.is_number()) {
      out = json.get<double>() != 0;
    } else {
      Fail(key, "want true or false");
    }
  }
  void Convert(const Json& json, const std::string& key, double& out) {
    if (!json.is_number()) return Fail(key, "want a number");
    out = json.get<double>();
  }
  template <std::signed_integral T>
  void Convert(const Json& json, const std::string& key, T& out) {
    if (!json.is_number_integer()) return Fail(key, "want a whole number");
    const bool too_big = json.is_number_unsigned() &&
                         json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
    const int64_t value = too_big ? 0 : json.get<int64_t>();
    if (too_big || value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
      return Fail(key, "number too large");
    }
    out = static_cast<T>(value);
  }
  template <typename T>
  void Convert(const Json& json, const std::string& key, std::vector<T>& out) {
    if (!json.is_array()) return Fail(key, "want an array");
    out.clear();
    out.reserve(json.size());
    for (size_t i = 0; i < json.size() && status_.ok(); ++i) {
      Convert(json[i], absl::StrCat(key, "[", i, "]"), out.emplace_back());
    }
  }

  const Json& object_;
  std::string path_;
  absl::Status status_;
};

// The head of each of our files: "format" says what it is, "version" which fields it has.
// INVALID_ARGUMENT for another format; a file from a newer version says to update.
absl::Status CheckFormat(JsonFields& fields, std::string_view format, int version);

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_JSON_FIELDS_H_
