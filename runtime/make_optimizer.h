// The optimizer that a plan names.
#ifndef AUTOPART_RUNTIME_MAKE_OPTIMIZER_H_
#define AUTOPART_RUNTIME_MAKE_OPTIMIZER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/optimizer.h"

namespace autopart {

// "sgd", "sgd-momentum" (0.9), "adam", "adamw" (weight decay 0.01).
std::vector<std::string> OptimizerNames();

// Throws std::invalid_argument for another name, listing the known ones.
std::unique_ptr<Optimizer> MakeOptimizer(const std::string& name, double learning_rate,
                                         const std::map<std::string, at::Tensor>& parameters);

}  // namespace autopart

#endif  // AUTOPART_RUNTIME_MAKE_OPTIMIZER_H_
