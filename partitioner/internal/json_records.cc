#include "partitioner/internal/json_records.h"

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"

namespace autopart::internal {
namespace {

// A scalar of the file, as the parser hands it over.
using Scalar = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string*>;

template <typename T>
constexpr bool kIsNumber =
    std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t> || std::is_same_v<T, double>;

Json ToJson(const Scalar& scalar) {
  return std::visit(
      [](const auto& x) -> Json {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return nullptr;
        else if constexpr (std::is_same_v<T, std::string*>)
          return *x;
        else
          return x;
      },
      scalar);
}

// Writes a scalar to its target; each returns what is wrong with it, or null.
const char* Store(const Scalar& scalar, std::string& out) {
  const auto* text = std::get_if<std::string*>(&scalar);
  if (text == nullptr) return "want a string";
  out = std::move(**text);
  return nullptr;
}
const char* Store(const Scalar& scalar, const JsonText& out) {
  if (const auto* whole = std::get_if<uint64_t>(&scalar)) {
    *out.text = absl::StrCat(*whole);
  } else {
    *out.text = ToJson(scalar).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return nullptr;
}
const char* Store(const Scalar& scalar, bool& out) {
  return std::visit(
      [&](const auto& x) -> const char* {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, bool>)
          out = x;
        else if constexpr (kIsNumber<T>)
          out = x != 0;  // some published graphs write 0 and 1
        else
          return "want true or false";
        return nullptr;
      },
      scalar);
}
const char* Store(const Scalar& scalar, double& out) {
  return std::visit(
      [&](const auto& x) -> const char* {
        if constexpr (kIsNumber<std::decay_t<decltype(x)>>) {
          out = static_cast<double>(x);
          return nullptr;
        }
        return "want a number";
      },
      scalar);
}
template <std::signed_integral T>
const char* Store(const Scalar& scalar, T& out) {
  int64_t value = 0;
  if (const auto* whole = std::get_if<uint64_t>(&scalar)) {
    if (*whole > uint64_t{std::numeric_limits<int64_t>::max()}) return "number too large";
    value = static_cast<int64_t>(*whole);
  } else if (const auto* negative = std::get_if<int64_t>(&scalar)) {
    value = *negative;
  } else {
    return "want a whole number";
  }
  if (value < std::numeric_limits<T>::min() || value > std::numeric_limits<T>::max()) {
    return "number too large";
  }
  out = static_cast<T>(value);
  return nullptr;
}
const char* Store(const Scalar&, std::vector<int>&) { return "want an array"; }

const char* WantOf(const JsonTarget& target) {
  if (std::holds_alternative<JsonText>(target)) return "want a number or a string";
  if (std::holds_alternative<std::string*>(target)) return "want a string";
  if (std::holds_alternative<bool*>(target)) return "want true or false";
  if (std::holds_alternative<double*>(target)) return "want a number";
  if (std::holds_alternative<std::vector<int>*>(target)) return "want an array";
  return "want a whole number";
}

const char* StoreAt(const Scalar& scalar, const JsonTarget& target) {
  return std::visit(
      [&](const auto& to) -> const char* {
        if constexpr (std::is_same_v<std::decay_t<decltype(to)>, JsonText>) {
          return Store(scalar, to);
        } else {
          return Store(scalar, *to);
        }
      },
      target);
}

}  // namespace

// The parser's events. Where it is, as containers open and close:
//   { top { records [ record { field: scalar or list [..] } .. ] } head list [..] }
class JsonRecordsSax : public Json::json_sax_t {
 public:
  explicit JsonRecordsSax(JsonRecords& records) : records_(records) {}

  std::string error;
  bool is_object = false;

  bool null() override { return OnScalar(std::monostate()); }
  bool boolean(bool x) override { return OnScalar(x); }
  bool number_integer(number_integer_t x) override { return OnScalar(int64_t{x}); }
  bool number_unsigned(number_unsigned_t x) override { return OnScalar(uint64_t{x}); }
  bool number_float(number_float_t x, const string_t&) override { return OnScalar(double{x}); }
  bool string(string_t& x) override { return OnScalar(&x); }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(/*is_array=*/false); }
  bool start_array(size_t) override { return Open(/*is_array=*/true); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& x) override {
    if (skipped_ > 0) return true;
    if (place_ == kTop) {
      key_ = std::move(x);
    } else {
      FindField(x);
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the tag.
    error = e.what();
    if (const size_t tag = error.find("] "); tag != std::string::npos) error.erase(0, tag + 2);
    return false;
  }

 private:
  enum Place { kOutside, kTop, kHeadList, kRecords, kRecord, kList };

  JsonRecords::Array* Declared() const {
    for (const auto& array : records_.arrays_) {
      if (array->name == key_) return array.get();
    }
    return nullptr;
  }

  bool OnScalar(const Scalar& scalar) {
    if (skipped_ > 0) return true;
    switch (place_) {
      case kOutside:
        break;
      case kTop:
        if (JsonRecords::Array* array = Declared()) {
          array->is_there = true;
          records_.Fail(key_, "want an array");
        } else {
          records_.head_[key_] = ToJson(scalar);
        }
        break;
      case kHeadList:
        records_.head_[key_].push_back(ToJson(scalar));
        break;
      case kRecords:
        ++records_.index_;
        records_.Fail("", "want an object");
        break;
      case kRecord:
        if (target_) {
          const char* wrong = StoreAt(scalar, *target_);
          if (wrong != nullptr) records_.Fail(FieldName(), wrong);
        }
        break;
      case kList: {
        const char* wrong = Store(scalar, list_->emplace_back());
        if (wrong != nullptr) FailInList(wrong);
        break;
      }
    }
    return true;
  }

  bool Open(bool is_array) {
    if (skipped_ > 0) return Skip();
    switch (place_) {
      case kOutside:
        if (is_array) return Skip();
        is_object = true;
        place_ = kTop;
        break;
      case kTop:
        return OpenAtTop(is_array);
      case kHeadList:
        records_.head_[key_].push_back(Json::object());  // whatever it holds, it is no scalar
        return Skip();
      case kRecords:
        ++records_.index_;
        if (is_array) {
          records_.Fail("", "want an object");
          return Skip();
        }
        place_ = kRecord;
        seen_ = 0;
        next_field_ = 0;
        target_.reset();
        array_->Begin();
        break;
      case kRecord:
        if (!target_) return Skip();
        if (auto* list = std::get_if<std::vector<int>*>(&*target_); is_array && list != nullptr) {
          list_ = *list;
          list_->clear();
          place_ = kList;
          break;
        }
        records_.Fail(FieldName(), WantOf(*target_));
        return Skip();
      case kList:
        list_->emplace_back();
        FailInList("want a whole number");
        return Skip();
    }
    return true;
  }

  bool OpenAtTop(bool is_array) {
    JsonRecords::Array* array = Declared();
    if (array == nullptr) {
      records_.head_[key_] = is_array ? Json::array() : Json::object();
      if (!is_array) return Skip();
      place_ = kHeadList;
      return true;
    }
    const bool again = array->is_there;
    array->is_there = true;
    if (!is_array || again) {
      records_.Fail(key_, again ? "is there twice" : "want an array");
      return Skip();
    }
    place_ = kRecords;
    records_.array_ = array_ = array;
    records_.index_ = -1;
    return true;
  }

  bool Skip() {
    ++skipped_;
    return true;
  }

  bool Close() {
    if (skipped_ > 0) {
      --skipped_;
      return true;
    }
    switch (place_) {
      case kOutside:
        break;
      case kTop:
        place_ = kOutside;
        break;
      case kHeadList:
        place_ = kTop;
        break;
      case kRecords:
        records_.array_ = array_ = nullptr;
        place_ = kTop;
        break;
      case kRecord:
        EndRecord();
        place_ = kRecords;
        break;
      case kList:
        place_ = kRecord;
        break;
    }
    return true;
  }

  // Fields mostly come in the order in which they are declared: look from the last one on.
  void FindField(std::string_view name) {
    const std::vector<JsonRecords::FieldName>& fields = array_->fields;
    for (size_t tried = 0; tried < fields.size(); ++tried) {
      const size_t field = next_field_;
      next_field_ = next_field_ + 1 < fields.size() ? next_field_ + 1 : 0;
      if (fields[field].name == name) {
        field_ = field;
        target_ = array_->Target(static_cast<int>(field));
        seen_ |= uint64_t{1} << field;
        return;
      }
    }
    target_.reset();
  }

  std::string_view FieldName() const { return array_->fields[field_].name; }

  void FailInList(const char* wrong) {
    records_.Fail(absl::StrCat(std::string(FieldName()), "[", list_->size() - 1, "]"), wrong);
  }

  void EndRecord() {
    const std::vector<JsonRecords::FieldName>& fields = array_->fields;
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].is_required && (seen_ >> f & 1) == 0) records_.Fail(fields[f].name, "missing");
    }
    if (records_.status_.ok()) array_->Take();
  }

  JsonRecords& records_;
  Place place_ = kOutside;
  int64_t skipped_ = 0;  // open containers that nobody asked for
  std::string key_;      // at the top
  JsonRecords::Array* array_ = nullptr;
  uint64_t seen_ = 0;  // fields of the record, by bit
  size_t next_field_ = 0, field_ = 0;
  std::optional<JsonTarget> target_;  // empty for a field that nobody asked for
  std::vector<int>* list_ = nullptr;
};

absl::Status JsonRecords::Read(std::string_view text) {
  JsonRecordsSax sax(*this);
  if (!Json::sax_parse(text.begin(), text.end(), &sax)) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", sax.error));
  }
  if (!sax.is_object) return absl::InvalidArgumentError("JSON: want an object");
  for (const auto& array : arrays_) {
    if (!array->is_there) Fail(array->name, "missing");
  }
  return absl::OkStatus();
}

void JsonRecords::Fail(std::string_view key, std::string_view what) {
  if (!status_.ok()) return;
  std::string where = array_ != nullptr ? absl::StrCat(array_->name, "[", index_, "]") : "";
  absl::StrAppend(&where, where.empty() || key.empty() ? "" : ".", std::string(key));
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where.empty() ? "JSON" : where, ": ", std::string(what)));
}

}  // namespace autopart::internal
