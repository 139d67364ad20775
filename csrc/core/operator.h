// What the core must know of one operator family in addition to its Problem. The family registers
// it. Names no family.
#pragma once

#include <ATen/Context.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

struct Cost {
  double flops;             // multiply and add count as two
  double bytes;             // every input read once, every output written once
  double reduction_length;  // terms summed into one output element
};

// The bytes of all slots together. Cost's bytes are these if nothing is read twice.
double bytes_of(const std::vector<SlotSpec>& slots);

// Whether a GPU reads and writes so many bytes in less time than the host needs for a call, so that
// the host's time decides: on an H200 PyTorch's pooling takes 10 us of it, cuDNN's 16.
inline bool is_short_work(int64_t bytes) {
  constexpr int64_t kBytes = 2 << 20;
  return bytes <= kBytes;
}

// The columns of the table of operators that are not computed.
struct OperatorDescription {
  std::string entry_points;  // of cuDNN
  std::string layouts;
  std::string limits;
  std::vector<std::string> examples;  // problem texts of common forwards
  std::string dtypes = "f64, f32, f16, bf16";
};

// A tensor field of a problem text, and the dimension that is the batch.
struct BatchSize {
  std::string field;
  int dim;
};

class Operator {
 public:
  virtual ~Operator() = default;
  virtual const char* family() const = 0;
  virtual std::vector<std::string> passes() const = 0;
  virtual OperatorDescription description() const { return {}; }
  virtual std::vector<BatchSize> batch_sizes() const { return {{"x", 0}}; }
  // The switch of PyTorch's that sets this operator's float32 precision. An operator that sums no
  // products has none, since TF32 does not concern it.
  virtual std::optional<at::Float32Op> float32_op() const { return std::nullopt; }
  // Whether torch.backends.cudnn.depthwise_kernel selects among PyTorch's own kernels.
  virtual bool obeys_depthwise_kernel() const { return false; }
  // The algorithms of cuDNN's classic API for a pass, and whether each has a math type.
  virtual std::vector<LegacyName> legacy_names(const std::string&) const { return {}; }
  virtual bool has_math_types() const { return false; }
  virtual std::vector<SlotSpec> slots(const Problem& problem) const = 0;
  virtual Cost cost(const Problem& problem) const = 0;
  // Whether the problem adds to its output, so that the content before the call matters.
  virtual bool accumulates(const Problem& problem) const = 0;
  // Sets alpha and beta of scratch bindings, if the problem does not fix them.
  virtual void set_scalars(const Problem& problem, Bindings& bindings) const = 0;
  // Completes scratch inputs, which hold normally distributed numbers, or zeros if they are
  // integers. Some inputs must lie in a range, or be what a forward saves.
  virtual void prepare_scratch(const Problem& problem, Bindings& bindings) const = 0;
  // The results in float64 by role, on the device of the bindings. An output that is missing has a
  // format of its algorithm's own and is not compared.
  virtual Bindings reference(const Problem& problem, const Bindings& bindings) const = 0;
  // What is wrong with random results, which have no reference; empty if nothing is. The bindings
  // hold the inputs and results of all passes so far.
  virtual std::string fault(const Problem& problem, const Bindings& bindings) const = 0;
  // Relative error (see core/tune/correctness.h) above which a result is wrong.
  virtual double tolerance(const Problem& problem, const Notes& notes) const = 0;
  // Backends (`graph`) or algorithms (`legacy:max`) in the order in which a GPU tries them without
  // measuring: the first plan that builds runs.
  virtual std::vector<std::string> heuristic_order(const Problem& problem) const = 0;
  // Coupled passes share one algorithm, since the backward reads a reserve that only the algorithm
  // of its forward understands. `coupled` gives the problems that follow a forward over the same
  // bindings, in the order in which they run; `forward_of` gives the forward of one of those.
  virtual std::vector<Problem> coupled(const Problem& problem) const = 0;
  virtual std::optional<Problem> forward_of(const Problem& problem) const = 0;
  // Whether algorithms may draw from PyTorch's generator.
  virtual bool is_random(const Problem& problem) const = 0;
  // Whether the passes of the family are always coupled, so that one algorithm is chosen for all.
  virtual bool is_always_coupled() const { return false; }
};

// An operator in terms of its family's struct, which tells the family and its passes.
template <class P>
class OperatorOf : public Operator {
 public:
  const char* family() const final { return P::kFamily; }
  std::vector<std::string> passes() const final { return passes_of(P{}); }

  virtual std::vector<SlotSpec> slots(const P& p) const = 0;
  virtual Cost cost(const P& p) const = 0;
  virtual bool accumulates(const P&) const { return false; }
  virtual void set_scalars(const P&, Bindings&) const {}
  virtual void prepare_scratch(const P&, Bindings&) const {}
  virtual Bindings reference(const P& p, const Bindings& bindings) const = 0;
  virtual std::string fault(const P&, const Bindings&) const { return ""; }
  virtual double tolerance(const P& p, const Notes& notes) const = 0;
  virtual std::vector<std::string> heuristic_order(const P& p) const = 0;
  virtual std::vector<Problem> coupled(const P&) const { return {}; }
  virtual std::optional<Problem> forward_of(const P&) const { return std::nullopt; }
  virtual bool is_random(const P&) const { return false; }

  std::vector<SlotSpec> slots(const Problem& p) const final { return slots(std::get<P>(p)); }
  Cost cost(const Problem& p) const final { return cost(std::get<P>(p)); }
  bool accumulates(const Problem& p) const final { return accumulates(std::get<P>(p)); }
  void set_scalars(const Problem& p, Bindings& b) const final { set_scalars(std::get<P>(p), b); }
  void prepare_scratch(const Problem& p, Bindings& b) const final {
    prepare_scratch(std::get<P>(p), b);
  }
  Bindings reference(const Problem& p, const Bindings& b) const final {
    return reference(std::get<P>(p), b);
  }
  std::string fault(const Problem& p, const Bindings& b) const final {
    return fault(std::get<P>(p), b);
  }
  double tolerance(const Problem& p, const Notes& notes) const final {
    return tolerance(std::get<P>(p), notes);
  }
  std::vector<std::string> heuristic_order(const Problem& p) const final {
    return heuristic_order(std::get<P>(p));
  }
  std::vector<Problem> coupled(const Problem& p) const final { return coupled(std::get<P>(p)); }
  std::optional<Problem> forward_of(const Problem& p) const final {
    return forward_of(std::get<P>(p));
  }
  bool is_random(const Problem& p) const final { return is_random(std::get<P>(p)); }
};

// An operator whose training forward saves a reserve that only the same algorithm's backward can
// read.
template <class P>
class CoupledOperatorOf : public OperatorOf<P> {
 public:
  std::vector<Problem> coupled(const P& p) const final {
    if (p.pass == Pass::bwd || !p.train) return {};
    return {of_pass(p, Pass::bwd)};
  }
  std::optional<Problem> forward_of(const P& p) const final {
    if (p.pass == Pass::fwd || !p.train) return std::nullopt;
    return of_pass(p, Pass::fwd);
  }

 private:
  static P of_pass(P p, Pass pass) {
    p.pass = pass;
    return p;
  }
};

const Operator& operator_of(const Problem& problem);
const Operator& find_operator(std::string_view family);  // throws ValueError
// The operator and the pass of a name such as "conv_fwd"; throws ValueError.
std::pair<const Operator*, std::string> find_pass(const std::string& op);
std::vector<const Operator*> all_operators();
void register_operator(std::unique_ptr<Operator> op);

// A constant of this type at namespace scope registers the operator.
template <class Op>
struct RegisterOperator {
  RegisterOperator() { register_operator(std::make_unique<Op>()); }
};

}  // namespace torch_cudnn_ext
