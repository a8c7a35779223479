// What the cost of an operator call depends on, apart from the values of its tensors: operator,
// all non-tensor arguments, and of every tensor operand shape, dtype, strides, whether it needs a
// gradient and whether it is a parameter; also device kind, threads and grad mode. Calls with equal
// signatures cost the same and save the same operands for backward, so each is looked at once.
//
//   aten::linear(%0, %1, %2) %0=f32[8,128]+g %1=f32[512,128]+g:parameter ... | grad, 1 thread
//
// A signature holds a runnable copy of the node over its own numbering: operand i is value i.
#ifndef AUTOPART_PROFILER_SIGNATURE_H_
#define AUTOPART_PROFILER_SIGNATURE_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <absl/status/statusor.h>

#include "profiler/op_graph.h"

namespace autopart {

struct OperandSpec {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes, strides;
  bool requires_grad = false;
  enum class Role {
    kActivation,
    kWeight,    // memory of a parameter, buffer or constant: held anyway, never counted as saved
    kParameter  // the same, and a parameter itself (a leaf of the gradient graph)
  } role = Role::kActivation;

  int64_t Bytes() const;         // what a dense copy takes
  int64_t StorageBytes() const;  // what sizes and strides reach
  bool operator==(const OperandSpec&) const = default;
};

struct OperatorSignature {
  Node node;                          // operands are values 0 .. n-1
  std::vector<OperandSpec> operands;  // distinct tensors that the node reads, in order of reading
  std::vector<int> operand_values;    // value of the graph that operand i is (not in the text)
  std::vector<OperandSpec> results;   // outputs that are tensors; those that are not have no sizes
  std::vector<bool> result_is_tensor;
  int num_values = 0;  // slots that running `node` needs
  bool grad = true;    // forward keeps what backward needs
  std::string text;    // printable; equal texts, equal signatures
};

// Bytes that a tensor of these sizes and strides needs.
int64_t StorageBytes(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides);

// The values of a graph that are no tensors.
struct KnownValues {
  // values[v]: a number, a string, a list of those; lists of tensors hold meta tensors.
  std::vector<c10::IValue> values;
  // Which value of the graph a meta tensor within a list stands for, where it is one.
  std::unordered_map<const c10::TensorImpl*, int> stand_ins;
};

// Signatures of a graph's nodes. Borrows both arguments for its lifetime.
class Signatures {
 public:
  Signatures(const OpGraph& graph, const KnownValues& known);

  // grad: the node runs under grad mode. FAILED_PRECONDITION, naming node and value, where the
  // graph lacks shapes.
  absl::StatusOr<OperatorSignature> Of(const Node& node, bool grad) const;

 private:
  const OpGraph& graph_;
  const KnownValues& known_;
  std::vector<OperandSpec::Role> roles_;  // of each value
};

// Tensors of the operands' shapes. On real devices: 0.5, or `integer_fill`. Tensors that require
// grad but are no parameters are results of a gradient function, as they are when a model runs.
std::vector<at::Tensor> MakeOperands(const OperatorSignature& signature, at::Device device,
                                     int integer_fill = 0);

}  // namespace autopart

#endif  // AUTOPART_PROFILER_SIGNATURE_H_
