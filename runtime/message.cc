// Layout: the first 8 bytes of the header are the length of the description; the description
// follows in the header as far as it fits, else all of it is the overflow piece. It begins with the
// number of values; each value is a tag (one 64-bit word) and its fields (64-bit words, strings
// padded). Words keep the code short; a description of one tensor of 4 dimensions is 80 bytes.
#include "runtime/message.h"

#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

namespace autopart {
namespace {

enum class Tag : int64_t {
  kNone,
  kInt,
  kFloat,
  kBool,
  kString,
  kDevice,
  kComplex,
  kTensor,
  kUndefinedTensor,
  kTuple,
  kDict,
  kList,  // of anything
  kIntList,
  kFloatList,
  kBoolList,
  kStringList,
  kTensorList,
  kOptionalTensorList,
};

constexpr int64_t kRequiresGrad = 1, kWrappedNumber = 2;

class Writer {
 public:
  // memory: what is sent for each tensor in turn.
  Writer(std::vector<std::byte>& out, std::vector<at::Tensor>& tensors,
         std::span<const at::Tensor> memory)
      : out_(out), tensors_(tensors), memory_(memory) {}

  void Word(int64_t word) {
    const size_t at = out_.size();
    out_.resize(at + sizeof(word));
    std::memcpy(out_.data() + at, &word, sizeof(word));
  }

  void Write(const at::IValue& value) {
    if (value.isTensor()) {
      WriteTensor(value.toTensor());
    } else if (value.isNone()) {
      Word(Tag::kNone);
    } else if (value.isInt()) {
      Word(Tag::kInt);
      Word(value.toInt());
    } else if (value.isDouble()) {
      Word(Tag::kFloat);
      Word(std::bit_cast<int64_t>(value.toDouble()));
    } else if (value.isBool()) {
      Word(Tag::kBool);
      Word(value.toBool());
    } else if (value.isString()) {
      Word(Tag::kString);
      String(value.toStringRef());
    } else if (value.isDevice()) {
      Word(Tag::kDevice);
      String(value.toDevice().str());
    } else if (value.isComplexDouble()) {
      Word(Tag::kComplex);
      Word(std::bit_cast<int64_t>(value.toComplexDouble().real()));
      Word(std::bit_cast<int64_t>(value.toComplexDouble().imag()));
    } else if (value.isTuple()) {
      const auto& elements = value.toTupleRef().elements();
      Word(Tag::kTuple);
      Word(static_cast<int64_t>(elements.size()));
      for (const at::IValue& element : elements) Write(element);
    } else if (value.isList()) {
      WriteList(value);
    } else if (value.isGenericDict()) {
      const auto dict = value.toGenericDict();
      Word(Tag::kDict);
      Word(static_cast<int64_t>(dict.size()));
      for (const auto& entry : dict) {
        Write(entry.key());
        Write(entry.value());
      }
    } else {
      throw std::runtime_error("a value of type " + value.type()->repr_str() +
                               " cannot be sent to another stage: put its producer and its readers "
                               "on one stage");
    }
  }

 private:
  void Word(Tag tag) { Word(static_cast<int64_t>(tag)); }

  void String(const std::string& text) {
    Word(static_cast<int64_t>(text.size()));
    const size_t at = out_.size();
    out_.resize(at + (text.size() + 7) / 8 * 8);
    std::memcpy(out_.data() + at, text.data(), text.size());
  }

  void WriteTensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return Word(Tag::kUndefinedTensor);
    Word(Tag::kTensor);
    Word((static_cast<int64_t>(tensor.scalar_type()) << 32) | (tensor.dim() << 8) |
         (tensor.requires_grad() ? kRequiresGrad : 0) |
         (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? kWrappedNumber : 0));
    const at::Tensor& memory = memory_[next_++];
    for (const int64_t size : memory.sizes()) Word(size);
    for (const int64_t stride : memory.strides()) Word(stride);
    tensors_.push_back(memory);
  }

  void WriteList(const at::IValue& value) {
    const auto list = value.toListRef();
    const c10::TypePtr element = value.type()->expectRef<c10::ListType>().getElementType();
    Word(ListTag(*element));
    Word(static_cast<int64_t>(list.size()));
    for (const at::IValue& item : list) Write(item);
  }

  static Tag ListTag(const c10::Type& element) {
    switch (element.kind()) {
      case c10::TypeKind::IntType:
        return Tag::kIntList;
      case c10::TypeKind::FloatType:
        return Tag::kFloatList;
      case c10::TypeKind::BoolType:
        return Tag::kBoolList;
      case c10::TypeKind::StringType:
        return Tag::kStringList;
      case c10::TypeKind::TensorType:
        return Tag::kTensorList;
      case c10::TypeKind::OptionalType:
        if (element.containedType(0)->kind() == c10::TypeKind::TensorType) {
          return Tag::kOptionalTensorList;
        }
        return Tag::kList;
      default:
        return Tag::kList;
    }
  }

  std::vector<std::byte>& out_;
  std::vector<at::Tensor>& tensors_;
  std::span<const at::Tensor> memory_;
  size_t next_ = 0;
};

class Reader {
 public:
  Reader(ConstBytes in, std::vector<at::Tensor>& tensors, std::vector<bool>& requires_grad)
      : in_(in), tensors_(tensors), requires_grad_(requires_grad) {}

  int64_t Word() {
    int64_t word = 0;
    Need(sizeof(word));
    std::memcpy(&word, in_.data() + at_, sizeof(word));
    at_ += sizeof(word);
    return word;
  }

  at::IValue Read() {
    const Tag tag = static_cast<Tag>(Word());
    switch (tag) {
      case Tag::kNone:
        return {};
      case Tag::kInt:
        return Word();
      case Tag::kFloat:
        return std::bit_cast<double>(Word());
      case Tag::kBool:
        return Word() != 0;
      case Tag::kString:
        return String();
      case Tag::kDevice:
        return c10::Device(String());
      case Tag::kComplex: {
        const double real = std::bit_cast<double>(Word());
        return c10::complex<double>(real, std::bit_cast<double>(Word()));
      }
      case Tag::kTensor:
        return ReadTensor();
      case Tag::kUndefinedTensor:
        return at::Tensor();
      case Tag::kTuple: {
        std::vector<at::IValue> elements(Word());
        for (at::IValue& element : elements) element = Read();
        return c10::ivalue::Tuple::create(std::move(elements));
      }
      case Tag::kDict:
        return ReadDict();
      case Tag::kIntList:
        return ReadList(c10::IntType::get());
      case Tag::kFloatList:
        return ReadList(c10::FloatType::get());
      case Tag::kBoolList:
        return ReadList(c10::BoolType::get());
      case Tag::kStringList:
        return ReadList(c10::StringType::get());
      case Tag::kTensorList:
        return ReadList(c10::TensorType::get());
      case Tag::kOptionalTensorList:
        return ReadList(c10::OptionalType::create(c10::TensorType::get()));
      case Tag::kList:
        return ReadList(nullptr);
    }
    throw std::runtime_error("broken message: unknown tag " +
                             std::to_string(static_cast<int64_t>(tag)));
  }

 private:
  void Need(size_t bytes) const {
    if (in_.size() - at_ < bytes) throw std::runtime_error("broken message: it ends too early");
  }

  std::string String() {
    const size_t size = static_cast<size_t>(Word());
    Need((size + 7) / 8 * 8);
    std::string text(reinterpret_cast<const char*>(in_.data() + at_), size);
    at_ += (size + 7) / 8 * 8;
    return text;
  }

  at::IValue ReadTensor() {
    const int64_t word = Word();
    const int64_t dim = (word >> 8) & 0xffffff;
    c10::SmallVector<int64_t, 8> sizes(dim), strides(dim);
    for (int64_t& size : sizes) size = Word();
    for (int64_t& stride : strides) stride = Word();
    at::Tensor tensor = at::empty_strided(
        sizes, strides, at::TensorOptions().dtype(static_cast<at::ScalarType>(word >> 32)));
    if (word & kWrappedNumber) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    tensors_.push_back(tensor);
    requires_grad_.push_back((word & kRequiresGrad) != 0);
    return tensor;
  }

  at::IValue ReadList(c10::TypePtr element) {
    std::vector<at::IValue> items(Word());
    for (at::IValue& item : items) item = Read();
    if (element == nullptr) {
      element = items.empty() ? c10::TypePtr(c10::AnyType::get()) : items.front().type();
    }
    c10::impl::GenericList list(element);
    list.reserve(items.size());
    for (at::IValue& item : items) list.push_back(std::move(item));
    return list;
  }

  at::IValue ReadDict() {
    const int64_t size = Word();
    std::vector<std::pair<at::IValue, at::IValue>> entries;
    for (int64_t i = 0; i < size; ++i) {
      at::IValue key = Read();
      entries.emplace_back(std::move(key), Read());
    }
    const bool empty = entries.empty();
    c10::impl::GenericDict dict(
        empty ? c10::TypePtr(c10::StringType::get()) : entries[0].first.type(),
        empty ? c10::TypePtr(c10::AnyType::get()) : entries[0].second.type());
    for (auto& [key, value] : entries) dict.insert(std::move(key), std::move(value));
    return dict;
  }

  ConstBytes in_;
  size_t at_ = 0;
  std::vector<at::Tensor>& tensors_;
  std::vector<bool>& requires_grad_;
};

constexpr size_t kInlineBytes = kMessageHeaderBytes - sizeof(int64_t);

}  // namespace

bool IsSendable(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense() &&
         !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor MakeDense(const at::Tensor& tensor) {
  at::Tensor detached = tensor.detach();
  if (IsSendable(detached)) return detached;
  if (detached.layout() != at::kStrided) {
    throw std::runtime_error("a tensor of layout " + c10::str(detached.layout()) +
                             " cannot be sent to another stage: put its producer and its readers "
                             "on one stage");
  }
  detached = detached.resolve_conj().resolve_neg();
  return IsSendable(detached) ? detached : detached.clone(at::MemoryFormat::Contiguous);
}

void ForEachTensor(const at::IValue& value, c10::function_ref<void(const at::Tensor&)> visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTuple()) {
    for (const at::IValue& element : value.toTupleRef().elements()) ForEachTensor(element, visit);
  } else if (value.isList()) {
    for (const at::IValue& item : value.toListRef()) ForEachTensor(item, visit);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      ForEachTensor(entry.key(), visit);
      ForEachTensor(entry.value(), visit);
    }
  }
}

at::IValue MapTensors(const at::IValue& value,
                      c10::function_ref<at::Tensor(const at::Tensor&)> map) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? at::IValue(map(value.toTensor())) : value;
  }
  if (value.isTuple()) {
    std::vector<at::IValue> elements;
    for (const at::IValue& element : value.toTupleRef().elements()) {
      elements.push_back(MapTensors(element, map));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    const auto list = value.toListRef();
    c10::impl::GenericList mapped(value.type()->expectRef<c10::ListType>().getElementType());
    mapped.reserve(list.size());
    for (const at::IValue& item : list) mapped.push_back(MapTensors(item, map));
    return mapped;
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    c10::impl::GenericDict mapped(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) {
      at::IValue key = MapTensors(entry.key(), map);
      mapped.insert(std::move(key), MapTensors(entry.value(), map));
    }
    return mapped;
  }
  return value;
}

void OutgoingMessage::Begin(size_t num_values) {
  description_.clear();
  tensors_.clear();
  Writer(description_, tensors_, {}).Word(static_cast<int64_t>(num_values));
}

void OutgoingMessage::Add(const at::IValue& value, std::span<const at::Tensor> memory) {
  Writer(description_, tensors_, memory).Write(value);
}

void OutgoingMessage::Add(const at::IValue& value) {
  std::vector<at::Tensor> memory;
  ForEachTensor(value, [&](const at::Tensor& tensor) { memory.push_back(MakeDense(tensor)); });
  Add(value, memory);
}

void OutgoingMessage::End() {
  const int64_t size = static_cast<int64_t>(description_.size());
  std::memcpy(header_.data(), &size, sizeof(size));
  overflows_ = description_.size() > kInlineBytes;
  if (!overflows_) {
    std::memcpy(header_.data() + sizeof(size), description_.data(), description_.size());
    // The rest of the header travels too: no uninitialised bytes on a wire.
    std::memset(header_.data() + sizeof(size) + description_.size(), 0,
                kInlineBytes - description_.size());
  } else {
    std::memset(header_.data() + sizeof(size), 0, kInlineBytes);
  }
}

std::vector<ConstBytes> OutgoingMessage::Pieces() const {
  std::vector<ConstBytes> pieces;
  pieces.reserve(2 + tensors_.size());
  pieces.push_back(header_);
  if (overflows_) pieces.push_back(description_);
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.nbytes() == 0) continue;
    pieces.push_back({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  return pieces;
}

void OutgoingMessage::Clear() { tensors_.clear(); }

std::vector<at::IValue> IncomingMessage::TakeValues() {
  tensors_.clear();
  return std::move(values_);
}

std::vector<Bytes> IncomingMessage::OverflowPieces() {
  int64_t size = 0;
  std::memcpy(&size, header_.data(), sizeof(size));
  description_.resize(static_cast<size_t>(size));
  if (description_.size() > kInlineBytes) return {Bytes(description_)};
  std::memcpy(description_.data(), header_.data() + sizeof(size), description_.size());
  return {};
}

std::vector<Bytes> IncomingMessage::TensorPieces() {
  values_.clear();
  tensors_.clear();
  requires_grad_.clear();
  Reader reader(description_, tensors_, requires_grad_);
  const int64_t count = reader.Word();
  values_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values_.push_back(reader.Read());
  std::vector<Bytes> pieces;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.nbytes() == 0) continue;
    pieces.push_back({static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  }
  return pieces;
}

void IncomingMessage::Receive(Communicator& communicator, int peer, Clock::time_point deadline) {
  const auto receive = [&](std::vector<Bytes> pieces) {
    if (!pieces.empty()) communicator.StartReceive(peer, std::move(pieces))->Wait(deadline);
  };
  receive({HeaderPiece()});
  receive(OverflowPieces());
  receive(TensorPieces());
}

}  // namespace autopart
