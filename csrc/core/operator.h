// What the core must know of one operator family beyond its Problem: registered by ops/<op>.cpp.
#pragma once

#include <ATen/Context.h>

#include <memory>
#include <optional>
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

// Of all slots together: Cost's bytes, where nothing is read twice.
double bytes_of(const std::vector<SlotSpec>& slots);

// What the table of operators says of a family, beyond what can be asked.
struct OperatorDescription {
  std::string entry_points;  // of cuDNN
  std::string layouts;
  std::string limits;
  std::vector<std::string> examples;  // problem lines of common forwards
  std::string dtypes = "f64, f32, f16, bf16";
};

// A tensor field of a problem line, and which of its sizes is the batch.
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
  // Which of PyTorch's switches of float32 precision speaks of this operator; none where no
  // products are summed, so that TF32 does not come up.
  virtual std::optional<at::Float32Op> float32_op() const { return std::nullopt; }
  // The classic API's algorithms of a pass, and whether each comes with a math type.
  virtual std::vector<LegacyName> legacy_names(const std::string&) const { return {}; }
  virtual bool has_math_types() const { return false; }
  virtual std::vector<SlotSpec> slots(const Problem& problem) const = 0;
  virtual Cost cost(const Problem& problem) const = 0;
  // Accumulates into the output, so its content before the call matters.
  virtual bool accumulates(const Problem& problem) const = 0;
  // Sets alpha and beta of scratch bindings, where the problem leaves them open.
  virtual void set_scalars(const Problem& problem, Bindings& bindings) const = 0;
  // Completes scratch inputs, which are normally distributed (and zero where they hold integers):
  // some must be what a forward would have left, or keep to a range.
  virtual void prepare_scratch(const Problem& problem, Bindings& bindings) const = 0;
  // The results in float64 by role, on the device of the bindings. An output that is left out is
  // of an algorithm's own format, and not compared.
  virtual Bindings reference(const Problem& problem, const Bindings& bindings) const = 0;
  // What is wrong with random results, which no reference foretells; empty when nothing is. The
  // bindings hold all that the passes so far were given and made.
  virtual std::string fault(const Problem& problem, const Bindings& bindings) const = 0;
  // Relative error (see measure.h) above which a result is wrong.
  virtual double tolerance(const Problem& problem, const Notes& notes) const = 0;
  // Backends (`graph`) or algorithms (`legacy:max`) in the order in which they are asked on a GPU
  // without measuring: the first plan that builds runs.
  virtual std::vector<std::string> heuristic_order(const Problem& problem) const = 0;
  // Coupled passes share one algorithm, since a backward reads what only its forward's algorithm
  // understands. Of a forward: the problems that follow it, in the order in which they run, over
  // the same bindings. Of one of those: its forward.
  virtual std::vector<Problem> coupled(const Problem& problem) const = 0;
  virtual std::optional<Problem> forward_of(const Problem& problem) const = 0;
  // Whether algorithms may draw from PyTorch's generator.
  virtual bool is_random(const Problem& problem) const = 0;
  // Whether the passes of the family are always coupled, so that one choice is all there is.
  virtual bool has_one_choice() const { return false; }
};

// The same in terms of the family's own struct, which tells the family and its passes.
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

// Of one whose forward, where it trains, leaves what only its own algorithm's backward reads.
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
// "conv_fwd": its family and pass; throws ValueError.
std::pair<const Operator*, std::string> find_pass(const std::string& op);
std::vector<const Operator*> all_operators();
void register_operator(std::unique_ptr<Operator> op);

// Registers by being made, at namespace scope.
template <class Op>
struct RegisterOperator {
  RegisterOperator() { register_operator(std::make_unique<Op>()); }
};

}  // namespace torch_cudnn_ext
