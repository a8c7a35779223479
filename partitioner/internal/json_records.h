// Reads large JSON files without a tree of them: an object with a few fields and some long arrays
// of records, each record streamed into a C++ struct as the parser comes by it.
//
//   JsonRecords records;
//   records.Each<CostNode>("nodes", {Required("name", &CostNode::name),
//                                    Optional("group", &CostNode::group)},
//                          [&](CostNode& node) { graph.nodes.push_back(std::move(node)); });
//   if (auto status = records.Read(text); !status.ok()) return status;    // not JSON
//   JsonFields head(records.head(), "");                                  // what is not a record
//   if (!records.status().ok()) return records.status();                  // nodes[3].group: ...
//
// A tree of a million nodes takes gigabytes, mostly for the names of fields. Unknown fields are
// skipped; of a field given twice the last counts. Types are read as JsonFields reads them.
#ifndef AUTOPART_PARTITIONER_INTERNAL_JSON_RECORDS_H_
#define AUTOPART_PARTITIONER_INTERNAL_JSON_RECORDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "partitioner/internal/json_fields.h"

namespace autopart::internal {

// Takes a scalar in its JSON spelling: for ids, which only have to be told apart.
struct JsonText {
  std::string* text;
};

using JsonTarget =
    std::variant<std::string*, JsonText, bool*, double*, int*, int64_t*, std::vector<int>*>;

// A field of a record and the member of R that takes it.
template <typename R>
struct JsonField {
  const char* name;
  bool is_required;
  std::function<JsonTarget(R&)> target;
};

template <typename R, typename T>
JsonField<R> Required(const char* name, T R::*member) {
  return {name, true, [member](R& record) -> JsonTarget { return &(record.*member); }};
}

// Keeps the struct's own default where it is missing.
template <typename R, typename T>
JsonField<R> Optional(const char* name, T R::*member) {
  return {name, false, [member](R& record) -> JsonTarget { return &(record.*member); }};
}

template <typename R>
JsonField<R> RequiredId(const char* name, std::string R::*member) {
  return {name, true, [member](R& record) -> JsonTarget { return JsonText{&(record.*member)}; }};
}

class JsonRecords {
 public:
  // Declares an array of records; `take` gets each as it ends, and may call Fail.
  template <typename R>
  void Each(const char* name, std::vector<JsonField<R>> fields, std::function<void(R&)> take) {
    arrays_.push_back(std::make_unique<ArrayOf<R>>(name, std::move(fields), std::move(take)));
  }

  // INVALID_ARGUMENT where the text is no JSON object. What is wrong with the records says
  // status().
  absl::Status Read(std::string_view text);

  // What stands at the top beside the arrays declared: scalars, and lists of scalars.
  const Json& head() const { return head_; }
  // Of the first bad record, or array.
  const absl::Status& status() const { return status_; }

  // For `take`: what is wrong with the record at hand.
  void Fail(std::string_view key, std::string_view what);

 private:
  friend class JsonRecordsSax;

  struct FieldName {
    std::string_view name;
    bool is_required;
  };

  class Array {
   public:
    Array(const char* name, std::vector<FieldName> fields)
        : name(name), fields(std::move(fields)) {}
    virtual ~Array() = default;
    virtual void Begin() = 0;  // a fresh record
    virtual JsonTarget Target(int field) = 0;
    virtual void Take() = 0;

    const std::string name;
    const std::vector<FieldName> fields;
    bool is_there = false;
  };

  template <typename R>
  class ArrayOf : public Array {
   public:
    ArrayOf(const char* name, std::vector<JsonField<R>> fields, std::function<void(R&)> take)
        : Array(name, Names(fields)), fields_(std::move(fields)), take_(std::move(take)) {}
    void Begin() override { record_ = R(); }
    JsonTarget Target(int field) override { return fields_[field].target(record_); }
    void Take() override { take_(record_); }

   private:
    static std::vector<FieldName> Names(const std::vector<JsonField<R>>& fields) {
      std::vector<FieldName> names;
      for (const JsonField<R>& field : fields) names.push_back({field.name, field.is_required});
      return names;
    }
    const std::vector<JsonField<R>> fields_;
    const std::function<void(R&)> take_;
    R record_;
  };

  std::vector<std::unique_ptr<Array>> arrays_;
  Json head_ = Json::object();
  absl::Status status_;
  // Where the parser is, for messages.
  const Array* array_ = nullptr;
  int64_t index_ = -1;
};

}  // namespace autopart::internal

#endif  // AUTOPART_PARTITIONER_INTERNAL_JSON_RECORDS_H_
