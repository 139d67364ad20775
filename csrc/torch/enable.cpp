// enable() and disable(): the overrides enter and leave PyTorch's dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "core/errors.h"
#include "core/select/recording.h"
#include "problems/problem.h"
#include "torch/compat.h"
#include "torch/compiled_graphs.h"
#include "torch/internals.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext {

namespace {

std::mutex mutex;  // guards what follows

auto& table() {
  static auto* overrides = new std::vector<Override>();
  return *overrides;
}
// The registrations, while enabled. Never destroyed at exit, when the dispatcher may be gone.
auto& libraries() {
  static auto* list = new std::vector<std::unique_ptr<torch::Library>>();
  return *list;
}
auto& declined_counts() {
  static auto* counts = new std::map<std::string, int64_t>();
  return *counts;
}

// PyTorch warns that a kernel of its own is replaced, which is what is meant.
class NoWarnings : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

c10::OperatorHandle find_aten(const std::string& op) {
  size_t dot = op.find('.');
  std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + op.substr(0, dot)).c_str(),
                                                        overload.c_str());
}

// The tracer has recorded PyTorch's operator before it comes to ours.
void warn_of_trace() {
  warn(
      "torch.jit.trace: what is traced while torch_cudnn_ext is enabled holds PyTorch's own "
      "operators, without policies and pins; trace what torch_cudnn_ext.convert(model, policy=...) "
      "gives, whose operators keep theirs");
}

}  // namespace

void add_override(Override override) {
  std::lock_guard<std::mutex> lock(mutex);
  table().push_back(std::move(override));
}

void enable_overrides(CompiledUse compiled) {
  std::lock_guard<std::mutex> lock(mutex);
  TORCH_CHECK(libraries().empty(),
              "enable: torch_cudnn_ext is enabled already; call disable() "
              "first, or use knobs and knobs.flags, which act at once");
  NoWarnings handler;
  c10::WarningUtils::WarningHandlerGuard quiet(&handler);
  std::vector<std::unique_ptr<torch::Library>> made;
  for (const Override& override : table()) {
    override.former->emplace(registered_kernel(find_aten(override.op), override.key));
    made.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", override.key,
                                                    __FILE__, __LINE__));
    made.back()->impl(override.op.c_str(), override.kernel());
  }
  CompiledGraphs::set_use(compiled);
  libraries() = std::move(made);
}

void disable_overrides() {
  std::lock_guard<std::mutex> lock(mutex);
  TORCH_CHECK(!libraries().empty(), "disable: torch_cudnn_ext is not enabled");
  libraries().clear();
}

bool overrides_enabled() {
  std::lock_guard<std::mutex> lock(mutex);
  return !libraries().empty();
}

std::vector<std::string> overridden_ops() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<std::string> ops;
  for (const Override& override : table()) {
    if (std::find(ops.begin(), ops.end(), override.op) == ops.end()) ops.push_back(override.op);
  }
  return ops;
}

void count_declined(const char* op, const std::string& reason) {
  std::string text = c10::str(op, ": ", reason);
  record_call({nullptr, text});
  constexpr size_t kMost = 256;  // texts may tell sizes, which need not come to an end
  std::lock_guard<std::mutex> lock(mutex);
  auto& counts = declined_counts();
  bool full = counts.size() >= kMost && counts.count(text) == 0;
  ++counts[full ? c10::str(op, ": another reason") : text];
}

std::map<std::string, int64_t> declined() {
  std::lock_guard<std::mutex> lock(mutex);
  return declined_counts();
}

void reset_declined() {
  std::lock_guard<std::mutex> lock(mutex);
  declined_counts().clear();
}

std::optional<std::string> why_tensor_is_declined(c10::DispatchKeySet keys, const char* name,
                                                  const at::Tensor& t) {
  if (!t.defined()) return std::nullopt;
  if (is_jit_tracing()) warn_of_trace();
  if (t.layout() != at::kStrided) return c10::str(name, " has the layout ", t.layout());
  if (has_names(t)) return c10::str(name, " has named dimensions");
  switch (t.scalar_type()) {
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kDouble:
      break;
    default:
      return c10::str(name, " is ", t.scalar_type());
  }
  // vmap, alone or around func.grad, which PyTorch's own operators run on a batch at once.
  if (t.key_set().has_any(kFuncTransformKeys)) return "a transform of torch.func";
  // Such as DTensor, which knows how to split PyTorch's operators only. A mode makes any call have
  // the key.
  if (keys.has(c10::DispatchKey::Python)) {
    bool of_mode =
        has_dispatch_mode() && (is_tracing() || !t.key_set().has(c10::DispatchKey::Python));
    if (!of_mode) return "a tensor is of a class with __torch_dispatch__";
  }
  return std::nullopt;
}

std::optional<std::string> why_any_is_declined(c10::DispatchKeySet keys,
                                               std::initializer_list<NamedTensor> tensors) {
  for (const auto& [name, t] : tensors) {
    if (auto reason = why_tensor_is_declined(keys, name, t)) return reason;
    if (has_tangent(t)) {
      return c10::str(name, " has a tangent (forward-mode AD)");
    }
  }
  return std::nullopt;
}

std::optional<std::string> why_dtypes_are_declined(const at::Tensor& input,
                                                   std::initializer_list<NamedTensor> tensors) {
  at::ScalarType dtype = input.scalar_type();
  for (const auto& [name, t] : tensors) {
    if (t.defined() && t.scalar_type() != dtype && t.scalar_type() != compute_dtype(dtype)) {
      return c10::str(name, " is ", t.scalar_type(), " for input of ", dtype);
    }
  }
  return std::nullopt;
}

}  // namespace torch_cudnn_ext
