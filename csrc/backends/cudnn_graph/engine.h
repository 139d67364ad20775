// Engines, their knobs, heuristic lists and plans of any operation graph. Knows nothing of the
// operator.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backends/cudnn_graph/descriptor.h"
#include "core/backend.h"

namespace torch_cudnn_ext::graph {

// An operation graph with what it is made of. Tensors are known by their role.
struct OperationGraph {
  Device device;
  std::vector<Descriptor> parts;
  std::optional<Descriptor> graph;
  std::optional<Descriptor> device_properties;  // for a target
  bool float32_products = false;                // tensor cores then mean TF32
};

// A tensor descriptor; the role is its unique id.
Descriptor make_tensor(const TensorSpec& spec, Role role, int64_t alignment);
OperationGraph make_graph(const Device& device, std::vector<Descriptor> parts,
                          const Descriptor& operation);

// Heuristic lists A, B and FALLBACK, then every engine with default knobs; without duplicates.
std::vector<Candidate> candidates(const OperationGraph& graph);

// Variations of an algorithm's knobs that the engine accepts as a configuration.
std::vector<Algorithm> neighbours(const OperationGraph& graph, const Algorithm& algorithm);

struct Engine {
  Descriptor plan;
  Notes notes;
  int64_t workspace_bytes;
};
Engine make_engine(const OperationGraph& graph, const Algorithm& algorithm);  // throws Failure

// Runs an execution plan on tensors by role.
class EnginePlan : public Plan {
 public:
  EnginePlan(Algorithm algorithm, Engine engine, std::vector<SlotSpec> slots);
  void run(Bindings& bindings) override;

 private:
  // A finalised pack cannot be filled again, but tensors often come back to the same addresses.
  struct Pack {
    std::vector<void*> pointers;  // in the order of slots_, then the workspace
    Descriptor descriptor;
  };
  const Descriptor& pack_for(const std::vector<void*>& pointers);

  const Descriptor plan_;
  const std::vector<SlotSpec> slots_;
  std::vector<Pack> packs_;
  size_t next_pack_ = 0;
  std::vector<void*> pointers_;
};

}  // namespace torch_cudnn_ext::graph
