// Precompiled for every torch translation unit: the headers that cost seconds each.
// Never torch/torch.h (24 s a file), and never included by a header.
#ifndef AUTOPART_CMAKE_TORCH_PCH_H_
#define AUTOPART_CMAKE_TORCH_PCH_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/library.h>

#endif  // AUTOPART_CMAKE_TORCH_PCH_H_
