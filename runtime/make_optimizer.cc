#include "runtime/make_optimizer.h"

#include <stdexcept>

namespace autopart {

std::vector<std::string> OptimizerNames() { return {"sgd", "sgd-momentum", "adam", "adamw"}; }

std::unique_ptr<Optimizer> MakeOptimizer(const std::string& name, double learning_rate,
                                         const std::map<std::string, at::Tensor>& parameters) {
  SgdOptions sgd;
  sgd.lr = learning_rate;
  AdamOptions adam;
  adam.lr = learning_rate;
  if (name == "sgd") return std::make_unique<Sgd>(parameters, sgd);
  if (name == "sgd-momentum") {
    sgd.momentum = 0.9;
    return std::make_unique<Sgd>(parameters, sgd);
  }
  if (name == "adam") return std::make_unique<Adam>(parameters, adam);
  if (name == "adamw") {
    adam.weight_decay = 0.01;
    adam.decoupled_weight_decay = true;
    return std::make_unique<Adam>(parameters, adam);
  }
  std::string known;
  for (const std::string& one : OptimizerNames()) known += (known.empty() ? "" : ", ") + one;
  throw std::invalid_argument("the optimizer '" + name + "' is none of: " + known);
}

}  // namespace autopart
