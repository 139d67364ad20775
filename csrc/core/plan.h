// An algorithm made ready for one problem, what is known about it, and the tensors it runs on.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/algorithm.h"
#include "core/device.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// A gradient's role is that of its tensor with a d before it; convolution, whose passes are made of
// the same three tensors, has no need of them.
enum class Role : uint8_t {
  x,
  w,
  y,
  bias,
  z,  // added to the result
  dx,
  dw,
  dy,
  dbias,
  dz,
  mean,
  invstd,
  running_mean,
  running_var,
  hx,
  cx,
  hy,
  cy,
  dhx,
  dcx,
  dhy,
  dcy,
  batch_sizes,  // int64 on the host: of each time step, as in PyTorch's PackedSequence
  reserve,      // what a forward leaves for its backward, in a format of the algorithm's own
  indices,
  grid,
  dgrid,
  targets,
  input_lengths,   // in host memory
  target_lengths,  // in host memory
  kCount
};
const char* role_text(Role role);
Role role_from_text(const std::string& text);  // throws ValueError

// What a pass of convolution computes.
inline Role result_role(ConvolutionPass pass) {
  if (pass == ConvolutionPass::fwd) return Role::y;
  return pass == ConvolutionPass::bwd_data ? Role::x : Role::w;
}

struct SlotSpec {
  Role role;
  TensorSpec spec;
  bool is_output;
  bool is_mutated = false;  // an input that the run changes, such as running statistics
  bool on_host = false;     // wherever the others are: lengths
};

// Whether a plan may do what it did before, rather than call its library (replay/replay.h): where
// it was called often enough to pay for recording that; or from the second time on, on the same
// addresses as a network's next steps would, or on any by its kernels.
enum class Replay : uint8_t { never, where_it_pays, at_once, kernels_at_once };

// Tensors by role. An output may be undefined: then the plan fills it.
struct Bindings {
  std::array<at::Tensor, static_cast<size_t>(Role::kCount)> tensors;
  double alpha = 1, beta = 0;
  double epsilon = 1e-5, momentum = 0.1;  // of normalisation; momentum is the new value's share
  Replay replay = Replay::never;

  at::Tensor& operator[](Role role) { return tensors[static_cast<size_t>(role)]; }
  const at::Tensor& operator[](Role role) const { return tensors[static_cast<size_t>(role)]; }
};

// What cuDNN, or our own table where cuDNN is silent, says about an algorithm on a problem.
enum class Note : uint8_t {
  tensor_core,
  tf32,          // lowers float32 numerics
  down_convert,  // inputs or partial sums in a smaller type
  reduced_range,
  low_accuracy,  // float32 products, but a result no better than TF32's
  fft,
  winograd,
  nondeterministic,
  runtime_compilation,
  fused,  // one engine computes the convolution and what follows it: bias, z, relu
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

  // On the current stream. The workspace comes from PyTorch's allocator and is given back at once.
  virtual void run(Bindings& bindings) = 0;

  const Algorithm algorithm;
  const Notes notes;
  const std::optional<int64_t> workspace_bytes;  // nullopt: not known before a run
};

// A plan that is one function, for algorithms that need no state of their own.
class FunctionPlan : public Plan {
 public:
  using Body = std::function<void(Bindings&)>;
  FunctionPlan(Algorithm algorithm, Notes notes, std::optional<int64_t> workspace_bytes, Body body)
      : Plan(std::move(algorithm), notes, workspace_bytes), body_(std::move(body)) {}
  void run(Bindings& bindings) override { body_(bindings); }

 private:
  const Body body_;
};

// A plan whose workspace is not known before a run.
inline std::shared_ptr<Plan> make_plan(const Algorithm& algorithm, Notes notes,
                                       FunctionPlan::Body body) {
  return std::make_shared<FunctionPlan>(algorithm, notes, std::nullopt, std::move(body));
}

// Makes a computed tensor the output of a role: copied into the tensor that is bound there, or
// bound itself, in the layout that the problem says.
void give(Bindings& bindings, Role role, const TensorSpec& spec, const at::Tensor& result);

// "1024 bytes", or "unknown".
std::string memory_text(const std::optional<int64_t>& bytes);

// Until the process ends: what a captured graph reads when it is replayed.
void retain_until_exit(std::shared_ptr<const void> object);

// What a plan writes to: the tensor that is bound to a role, or a new one, placed as `like`.
at::Tensor& output_tensor(Bindings& bindings, Role role, const TensorSpec& spec,
                          const at::Tensor& like);

// Adds one number to each channel, which is dimension 1.
void add_bias(at::Tensor& result, const at::Tensor& bias);
// What follows a convolution, in place: z, relu.
void add_z_and_clamp(const ConvolutionProblem& p, at::Tensor& result, const Bindings& bindings);
// The bias before them too.
void add_epilogue(const ConvolutionProblem& p, at::Tensor& result, const Bindings& bindings);

// Why an algorithm cannot be had. `needs_driver` is set where only the missing driver is at fault.
struct Unsupported {
  std::string reason;
  bool needs_driver = false;
  bool transient = false;  // may be otherwise at another time, as where memory was short
};

using BuildResult = std::variant<std::shared_ptr<Plan>, Unsupported>;

// A plan that the constraints of a policy admit.
struct AdmissiblePlan {
  std::shared_ptr<Plan> plan;
  std::optional<int64_t> workspace_bytes;
  std::vector<std::shared_ptr<Plan>> coupled;  // of the problems that share its algorithm
};

}  // namespace torch_cudnn_ext
