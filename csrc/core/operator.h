// What the core must know of one operator family beyond its Problem: registered by ops/<op>.cpp.
#pragma once

#include <ATen/Context.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan.h"

namespace torch_cudnn_ext {

struct Cost {
  double flops;             // multiply and add count as two
  double bytes;             // every input read once, every output written once
  double reduction_length;  // terms summed into one output element
};

class Operator {
 public:
  virtual ~Operator() = default;
  virtual std::string family() const = 0;
  virtual std::vector<std::string> passes() const = 0;
  // Which of PyTorch's switches of float32 precision speaks of this operator.
  virtual at::Float32Op float32_op() const = 0;
  virtual std::vector<LegacyName> legacy_names(const std::string& pass) const = 0;
  virtual std::vector<SlotSpec> slots(const Problem& problem) const = 0;
  virtual Cost cost(const Problem& problem) const = 0;
  // Accumulates into the output, so its content before the call matters.
  virtual bool accumulates(const Problem& problem) const = 0;
  virtual int64_t alignment(const Problem& problem) const = 0;
  // The result in float64, on the device of the bindings.
  virtual at::Tensor reference(const Problem& problem, const Bindings& bindings) const = 0;
  // Relative error (see measure.h) above which a result is wrong.
  virtual double tolerance(const Problem& problem, const Notes& notes) const = 0;
  // Backends in the order in which they are asked without measuring: the first plan that builds
  // runs.
  virtual std::vector<std::string> heuristic_order(const Problem& problem,
                                                   const Device& device) const = 0;
  // Problems that must share one algorithm with this one, in the order in which they run.
  virtual std::vector<Problem> coupled(const Problem&) const { return {}; }
};

const Operator& operator_of(const Problem& problem);
const Operator& find_operator(std::string_view family);  // throws ValueError
std::vector<const Operator*> all_operators();
void register_operator(std::unique_ptr<Operator> op);

}  // namespace torch_cudnn_ext
