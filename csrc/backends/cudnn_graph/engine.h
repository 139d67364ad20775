// Engines, engine knobs, heuristic lists and plans of any operation graph. Knows nothing of the
// operator. An error that cuDNN reports is thrown as Failure.
#pragma once

#include <c10/util/StringUtil.h>

#include <memory>
#include <optional>
#include <vector>

#include "backends/cudnn_graph/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"
#include "core/errors.h"
#include "replay/replay.h"

namespace torch_cudnn_ext::graph {

// An operation graph and its parts. Tensors are known by their role.
struct OperationGraph {
  std::vector<Descriptor> parts, operations;
  std::optional<Descriptor> graph;
  std::optional<Descriptor> device_properties;  // for a target
  bool float32_products = false;                // tensor cores then mean TF32
};

// A tensor descriptor; the role is its unique id.
Descriptor make_tensor(const TensorSpec& spec, Role role, int64_t alignment);
// The result that an operation writes over a mutated tensor (SlotSpec::is_mutated). It is the same
// memory under another id, since a graph has no cycles.
Descriptor make_updated(const TensorSpec& spec, Role role, int64_t alignment);
// A tensor that one operation of a graph passes to another; `number` distinguishes several.
Descriptor make_intermediate(const TensorSpec& spec, int number);

// A float32 number that each run sets, such as &Bindings::epsilon. As a tensor its sizes are ones.
using Scalar = double Bindings::*;
Descriptor make_scalar(const std::vector<Scalar>& scalars, Scalar scalar, int dims);

// `parts` are what the operations refer to; operations must be finalised.
OperationGraph make_graph(const Device& device, std::vector<Descriptor> parts,
                          std::vector<Descriptor> operations);

// The source of a candidate that no heuristic list names.
constexpr const char* kDefaultKnobs = "default knobs";

// Heuristic lists A, B and FALLBACK, then every engine with default engine knobs; no duplicates.
std::vector<Candidate> candidates(const OperationGraph& graph);

// Variations of an algorithm's engine knobs that the engine accepts as a configuration.
std::vector<Algorithm> neighbours(const OperationGraph& graph, const Algorithm& algorithm);

// An engine that is known, but not built: building may run a compiler.
struct UnbuiltEngine {
  Descriptor descriptor;
  Notes notes;
};
UnbuiltEngine find_engine(const OperationGraph& graph, const Algorithm& algorithm);

struct Engine {
  Descriptor plan;
  Notes notes;
  int64_t workspace_bytes;
};
Engine build_engine(const OperationGraph& graph, const UnbuiltEngine& engine,
                    const Algorithm& algorithm);

// Runs an execution plan on tensors by role.
class EnginePlan : public ReplayedPlan {
 public:
  // `scalars` in the order that make_scalar was given them.
  EnginePlan(Algorithm algorithm, Engine engine, std::vector<SlotSpec> slots,
             std::vector<Scalar> scalars = {});
  ~EnginePlan() override;
  void run(Bindings& bindings) override;

 private:
  // A finalised pack cannot be filled again. Packs are kept, since addresses often repeat.
  struct Pack {
    ReplayKey key;
    std::vector<float> scalars;  // the pack points at these
    Descriptor descriptor;
  };
  const Descriptor& pack_for(const ReplayKey& key, const Bindings& bindings);

  Descriptor plan_;
  const std::vector<SlotSpec> slots_;
  const std::vector<Scalar> scalars_;
  std::vector<Pack> packs_;
  size_t next_pack_ = 0;
};

// The functions that `register_graphs` registers, composed from those of one operator.
template <class P, auto why_unsupported, auto make_operation_graph, auto make_plan>
struct Graphs {
  static std::optional<Unsupported> why_unsupported_on(const P& p, const Device& device) {
    if (!device.has_gpu_backends()) return Unsupported{"cuDNN runs on CUDA devices only"};
    if (auto reason = why_unsupported(p)) return reason;
    return unsupported_by_erratum(p, "graph", device);
  }

  static std::vector<Candidate> candidates(const P& p, const Device& device) {
    std::vector<Candidate> carrier{{{"graph", "eng0", {}}, kDefaultKnobs}};  // says why
    if (why_unsupported_on(p, device)) return carrier;
    try {
      return graph::candidates(make_operation_graph(p, device));
    } catch (const Failure&) {
      return carrier;  // building it says why
    }
  }

  // The notes of an engine that is not built; nullopt if building says why it is unsupported.
  static std::optional<Notes> notes(const P& p, const Algorithm& algorithm, const Device& device) {
    if (why_unsupported_on(p, device)) return std::nullopt;
    try {
      return find_engine(make_operation_graph(p, device), algorithm).notes;
    } catch (const Failure&) {
      return std::nullopt;
    }
  }

  static BuildResult build(const P& p, const Algorithm& algorithm, const Device& device) {
    if (auto reason = why_unsupported_on(p, device)) return *reason;
    try {
      OperationGraph graph = make_operation_graph(p, device);
      UnbuiltEngine engine = find_engine(graph, algorithm);
      auto erratum = unsupported_by_erratum(p, algorithm, engine.notes, device);
      if (erratum) return *erratum;
      add_notes_of_errata(engine.notes, p, algorithm, device);
      return make_plan(p, algorithm, build_engine(graph, engine, algorithm));
    } catch (const Failure& failure) {
      return failure.unsupported(device);
    }
  }

  static std::vector<Algorithm> neighbours(const P& p, const Algorithm& algorithm,
                                           const Device& device) {
    try {
      return graph::neighbours(make_operation_graph(p, device), algorithm);
    } catch (const Failure& failure) {
      warn(c10::str("knob search around ", algorithm.text(), " ended: ", failure.what));
      return {};
    }
  }
};

// Registers one operator for the graph API, by three functions of its problems:
//   why_unsupported       (p) -> the reason if no graph can be made, else nullopt
//   make_operation_graph  (p, device) -> OperationGraph, or throws Failure
//   make_plan             (p, algorithm, engine) -> its plan
template <class P, auto why_unsupported, auto make_operation_graph, auto make_plan>
RegisterBackendOperator<P> register_graphs() {
  using Made = Graphs<P, why_unsupported, make_operation_graph, make_plan>;
  return {"graph", Made::candidates, Made::build, Made::neighbours, Made::notes};
}

}  // namespace torch_cudnn_ext::graph
