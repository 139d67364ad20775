// What is known of a norm without data: whether its arguments are valid, the sizes and the layout
// of its results.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/base/enum_text.h"
#include "ops/layer_norm/layer_norm.h"
#include "torch/compat.h"

namespace torch_cudnn_ext::layer_norm {
namespace {

constexpr EnumName<LayerNormKind> kOperators[] = {{LayerNormKind::layer, "layer_norm"},
                                                  {LayerNormKind::rms, "rms_norm"},
                                                  {LayerNormKind::instance, "instance_norm"},
                                                  {LayerNormKind::group, "group_norm"}};

void check_parameter(const char* op, const char* name, const OptionalTensor& t,
                     const Tensor& input) {
  if (!t) return;
  bool of_channels = t->dim() == 1 && t->sym_size(0) == input.sym_size(1);
  TORCH_CHECK_VALUE(of_channels, "torch_cudnn_ext::", op, ": ", name, " has ", t->sym_numel(),
                    " elements in ", t->dim(), " dimensions, wanted ", input.sym_size(1),
                    " in one");
  auto dtype = t->scalar_type();
  bool narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  TORCH_CHECK_VALUE(dtype == input.scalar_type() || (narrow && dtype == at::kFloat),
                    "torch_cudnn_ext::", op, ": ", name, " is ", dtype, ", wanted input's dtype ",
                    input.scalar_type(), narrow ? " or Float" : "");
  check_device(op, name, *t, "input", input);
}

}  // namespace

LayerNormKind kind_of(std::string_view text) {
  return layer_norm_kind_from_text("norm: kind", text);
}

void check_arguments(LayerNormKind kind, const Tensor& input, const OptionalTensor& weight,
                     const OptionalTensor& bias) {
  const char* op = enum_text(kOperators, kind);
  check_dtype(op, "input", input);
  check_parameter(op, "weight", weight, input);
  check_parameter(op, "bias", bias, input);
  TORCH_CHECK_VALUE(!weight || !bias || weight->scalar_type() == bias->scalar_type(),
                    "torch_cudnn_ext::", op, ": bias is ", bias->scalar_type(),
                    ", wanted weight's dtype ", weight->scalar_type());
  TORCH_CHECK_VALUE(weight || !bias || bias->scalar_type() == input.scalar_type(),
                    "torch_cudnn_ext::", op, ": bias is ", bias->scalar_type(),
                    ", wanted input's dtype ", input.scalar_type(), " since there is no weight");
}

bool gives_nhwc_gradient(LayerNormKind kind, const Tensor& input) {
  bool keeps = kGroupNormKeepsLayout || input.key_set().has_backend(c10::BackendComponent::CPUBit);
  return kind == LayerNormKind::group && keeps && !input.is_contiguous() &&
         input.transpose(1, 2).is_contiguous();
}

Tensor nothing(const Tensor& like) { return at::empty({0}, like.options()); }

namespace {

Tensors3 normalize_meta(const NormalizeArgs& args) {
  const Tensor& input = args.input;
  LayerNormKind kind = kind_of(args.kind);
  check_arguments(kind, input, args.weight, args.bias);
  SymView v = view_of(kind, input, args.groups);
  LayerNormProblem p;
  p.kind = kind;
  p.x = {input.scalar_type(), {1, 1}, {1, 1}};
  if (args.weight) p.w = args.weight->scalar_type();
  auto options = input.options().dtype(p.statistics().dtype);
  auto flat = [&](bool is_there) {
    return is_there ? at::empty_symint({v.batch * v.groups}, options) : nothing(input);
  };
  return {at::empty_symint(input.sym_sizes(), input.options()),
          flat(args.statistics && p.has_mean()), flat(args.statistics)};
}

Tensors3 normalize_backward_meta(const NormalizeBackwardArgs& args) {
  const Tensor& input = args.input;
  check_same("normalize_backward", "grad_output", args.grad_output, "input", input);
  const Tensor& w = or_undefined(args.weight);
  auto options = w.defined() ? w.options() : input.options();
  auto parameter = [&](bool is_there) {
    return is_there ? at::empty_symint({input.sym_size(1)}, options) : nothing(input);
  };
  Tensor dx =
      gives_nhwc_gradient(kind_of(args.kind), input)
          ? at::empty_symint(input.transpose(1, 2).sym_sizes(), input.options()).transpose(1, 2)
          : at::empty_symint(input.sym_sizes(), input.options());
  return {dx, parameter(w.defined()), parameter(args.has_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<normalize_meta, normalize_backward_meta>(m);
}

}  // namespace torch_cudnn_ext::layer_norm
