// Kernels, schema and gradient of conversions between layouts and types. The gradient is the
// conversion back, by the same operator.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/SmallVector.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "ops/autograd.h"
#include "ops/call.h"
#include "ops/schema.h"

namespace torch_cudnn_ext::transform {
namespace {

struct TransformArgs {
  static constexpr const char* kName = "transform";
  using Result = Tensor;
  const Tensor& input;
  std::optional<at::ScalarType> dtype;
  std::optional<at::MemoryFormat> memory_format;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, dtype, memory_format, policy); }
};

// The memory format of the result. Raises if the input cannot have it: the schema takes any integer
// as a memory format.
at::MemoryFormat checked_format(const TransformArgs& a) {
  using at::MemoryFormat;
  MemoryFormat format = a.memory_format.value_or(MemoryFormat::Preserve);
  c10::SmallVector<MemoryFormat, 3> known{MemoryFormat::Preserve, MemoryFormat::Contiguous};
  if (a.input.dim() == 4) known.push_back(MemoryFormat::ChannelsLast);
  if (a.input.dim() == 5) known.push_back(MemoryFormat::ChannelsLast3d);
  if (std::find(known.begin(), known.end(), format) != known.end()) return format;
  bool has_name = format >= MemoryFormat::Contiguous && format < MemoryFormat::NumOptions;
  TORCH_CHECK_VALUE(false, "torch_cudnn_ext::", a.kName, ": memory_format is ",
                    has_name ? c10::str(format) : c10::str(static_cast<int>(format)),
                    ", wanted one of ", c10::Join(", ", known), " for input of sizes ",
                    a.input.sym_sizes());
}

// An empty result.
Tensor forward_meta(const TransformArgs& a) {
  check_dtype(a.kName, "input", a.input);
  at::ScalarType dtype = a.dtype.value_or(a.input.scalar_type());
  check_dtype(a.kName, "dtype", dtype);
  return at::empty_like(a.input, a.input.options().dtype(dtype), checked_format(a));
}

std::optional<TransformProblem> problem_of(const Tensor& x, const Tensor& y) {
  return TransformProblem::of(x.sizes(), x.scalar_type(), x.strides(), y.scalar_type(),
                              y.strides());
}

Tensor forward(const TransformArgs& a) {
  Tensor y = forward_meta(a);
  if (y.numel() == 0) return y;
  c10::OptionalDeviceGuard guard(a.input.device());
  Tensor x = a.input;
  auto p = problem_of(x, y);
  if (!p) {  // an input that no problem describes is first copied into the result's layout
    x = at::empty_strided(y.sizes(), y.strides(), x.options()).copy_(x);
    p = problem_of(x, y);
  }
  p->alignment = alignment_of({&x, &y});
  Bindings bindings;
  bindings[Role::x] = strided_view(x, p->x.sizes, p->x.strides);
  bindings[Role::y] = strided_view(y, p->y.sizes, p->y.strides);
  run_problem(*p, a.policy, x, bindings);
  return y;
}

struct TransformGradient {
  static constexpr const char* kName = "TorchCudnnExtTransformBackward";
  static constexpr size_t kInputs = 1;
  at::ScalarType dtype = at::kFloat;  // these are the input's
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  std::optional<std::string> policy;

  auto attributes() { return std::tie(dtype, memory_format, policy); }
  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_op(TransformArgs{grads[0], dtype, memory_format, policy})};
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const TransformArgs& a) {
  return run_with_gradient<TransformGradient>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient = {a.input.scalar_type(), format_of(a.input),
                         policy_to_save(TransformProblem::kFamily, a.policy)};
      });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m, {"transform(Tensor input, *, ScalarType? dtype=None, MemoryFormat? memory_format=None, "
             "str? policy=None) -> Tensor"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<forward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels<forward_meta>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) { register_kernels<forward_autograd>(m); }

}  // namespace torch_cudnn_ext::transform
