// An algorithm made ready for one problem, what is known about it, and the tensors that it runs on.
// Knows neither backends nor how a plan is selected.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/algorithm.h"
#include "core/base/tensor_spec.h"
#include "core/device.h"
#include "problems/problem.h"
#include "problems/role.h"

namespace torch_cudnn_ext {

struct SlotSpec {
  Role role;
  TensorSpec spec;
  bool is_output;
  bool is_mutated = false;  // an input that the run changes, such as running statistics
  bool on_host = false;     // in host memory on every device, such as lengths
};

// Whether a plan may repeat what it recorded instead of calling its library.
// graphs: as a CUDA graph, for tensors at the same addresses, after enough calls to pay for the
// recording. kernels: kernel by kernel, for tensors at any addresses; as a graph if that is not
// possible. graphs_at_once and kernels_at_once: in that way alone, from the second call on.
enum class Replay : uint8_t { never, graphs, kernels, graphs_at_once, kernels_at_once };

// Tensors by role. A plan allocates an output that is undefined.
struct Bindings {
  std::array<at::Tensor, static_cast<size_t>(Role::kCount)> tensors;
  double alpha = 1, beta = 0;
  // For normalisation; momentum is the weight of the new value.
  double epsilon = 1e-5, momentum = 0.1;
  Replay replay = Replay::never;

  at::Tensor& operator[](Role role) { return tensors[static_cast<size_t>(role)]; }
  const at::Tensor& operator[](Role role) const { return tensors[static_cast<size_t>(role)]; }
};

// What cuDNN says about an algorithm on a problem, or our own table if cuDNN says nothing.
enum class Note : uint8_t {
  tensor_core,
  tf32,          // lowers float32 numerics
  down_convert,  // inputs or partial sums in a smaller type
  reduced_range,
  low_accuracy,  // float32 products, but a result as inexact as with TF32
  fft,
  winograd,
  nondeterministic,
  runtime_compilation,
  fused,  // one engine computes the operation and its epilogue
  kCount
};

class Notes {
 public:
  Notes() = default;
  Notes(std::initializer_list<Note> notes) {
    for (Note note : notes) add(note);
  }
  void add(Note note) { bits_ |= 1u << static_cast<int>(note); }
  void add(const Notes& other) { bits_ |= other.bits_; }
  bool has(Note note) const { return bits_ >> static_cast<int>(note) & 1; }
  std::vector<std::string> texts() const;

 private:
  uint32_t bits_ = 0;
};
Notes notes_from_texts(const std::vector<std::string>& texts);  // throws ValueError

class Plan {
 public:
  Plan(Algorithm algorithm, Notes notes, std::optional<int64_t> workspace_bytes)
      : algorithm(std::move(algorithm)), notes(notes), workspace_bytes(workspace_bytes) {}
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Runs on the current stream. The workspace comes from PyTorch's allocator and is freed at the
  // end.
  virtual void run(Bindings& bindings) = 0;

  const Algorithm algorithm;
  const Notes notes;
  const std::optional<int64_t> workspace_bytes;  // nullopt: unknown before a run
};

// A plan that is one function, for algorithms without state.
class FunctionPlan : public Plan {
 public:
  using Body = std::function<void(Bindings&)>;
  FunctionPlan(Algorithm algorithm, Notes notes, std::optional<int64_t> workspace_bytes, Body body)
      : Plan(std::move(algorithm), notes, workspace_bytes), body_(std::move(body)) {}
  void run(Bindings& bindings) override { body_(bindings); }

 private:
  const Body body_;
};

// A function as a plan whose workspace is unknown before a run.
inline std::shared_ptr<Plan> make_plan(const Algorithm& algorithm, Notes notes,
                                       FunctionPlan::Body body) {
  return std::make_shared<FunctionPlan>(algorithm, notes, std::nullopt, std::move(body));
}

// Makes a computed tensor the output of a role. It is copied into the tensor that is bound to the
// role; if there is none, it is bound itself, in the type and layout of `spec`.
void give(Bindings& bindings, Role role, const TensorSpec& spec, const at::Tensor& result);

std::string memory_text(const std::optional<int64_t>& bytes);  // "1024 bytes", or "unknown"

// Keeps what a captured graph reads when it is replayed.
void retain_until_exit(std::shared_ptr<const void> object);
// A captured graph runs the plan's code, and may be replayed when nothing else keeps the plan.
void retain_for_graph(const std::shared_ptr<Plan>& plan, const Device& device);

// The tensor that a plan writes to: the one that is bound to the role, or a new one on the device
// of `like`.
at::Tensor& output_tensor(Bindings& bindings, Role role, const TensorSpec& spec,
                          const at::Tensor& like);

// Why there is no plan of an algorithm.
struct Unsupported {
  std::string reason;
  bool needs_driver = false;  // only the missing driver is the reason
  bool transient = false;     // a later attempt may succeed, such as when memory was short
};

using BuildResult = std::variant<std::shared_ptr<Plan>, Unsupported>;

// A plan that the constraints of a policy admit.
struct AdmissiblePlan {
  std::shared_ptr<Plan> plan;
  std::optional<int64_t> workspace_bytes;
  std::vector<std::shared_ptr<Plan>> coupled;  // of the problems that share its algorithm
};

}  // namespace torch_cudnn_ext
