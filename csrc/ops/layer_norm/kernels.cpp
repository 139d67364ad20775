// Norms of tensors that have data: makes the Problem of a call and runs it.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "ops/known_kernel.h"
#include "ops/layer_norm/layer_norm.h"

namespace torch_cudnn_ext::layer_norm {
namespace {

// cuDNN normalises instances of nhwc tensors as they are; all else is contiguous.
bool is_nhwc(LayerNormKind kind, const Tensor& t) {
  return kind == LayerNormKind::instance && !t.is_contiguous() && t.transpose(1, 2).is_contiguous();
}

Tensor laid_out(const Tensor& t, bool nhwc) {
  return nhwc ? t.transpose(1, 2).contiguous().transpose(1, 2) : t.contiguous();
}

LayerNormProblem make_problem(Pass pass, LayerNormKind kind, const Tensor& x, int64_t groups,
                              const Tensor& w) {
  LayerNormProblem p;
  p.pass = pass;
  p.kind = kind;
  p.x = spec_of(x);
  p.groups = groups;
  if (w.defined()) p.w = w.scalar_type();
  return p;
}

void execute_norm(LayerNormProblem& p, OptionalPolicy policy, Bindings& bindings) {
  p.canonicalise();
  run_problem(p, policy, bindings[Role::x], bindings);
}

Tensors3 run_normalize_whole(const NormalizeArgs& args) {
  Tensors3 results = run_normalize(args);
  for (Tensor* t : {&std::get<1>(results), &std::get<2>(results)}) {
    if (!t->defined()) *t = nothing(args.input);
  }
  return results;
}

Tensors3 normalize(const NormalizeArgs& args) {
  return KnownKernel<LayerNormProblem, run_normalize_whole>::call(args);
}

}  // namespace

Tensors3 run_normalize(const NormalizeArgs& args) {
  const Tensor& input = args.input;
  LayerNormKind kind = kind_of(args.kind);
  check_arguments(kind, input, args.weight, args.bias);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor x = laid_out(input, is_nhwc(kind, input));
  Tensor w = contiguous_or_undefined(args.weight), b = contiguous_or_undefined(args.bias);
  LayerNormProblem p = make_problem(Pass::fwd, kind, x, args.groups, w);
  if (b.defined()) p.bias = b.scalar_type();
  p.stats = args.statistics;
  Bindings bindings;
  if (input.numel() == 0) {
    bindings[Role::y] = at::empty(x.sizes(), x.options());
    TensorSpec spec = p.statistics();
    auto options = x.options().dtype(spec.dtype);
    bindings[Role::mean] = at::zeros(spec.sizes, options);
    bindings[Role::invstd] = at::zeros(spec.sizes, options);
  } else {
    bindings[Role::x] = x;
    bindings[Role::w] = w;
    bindings[Role::bias] = b;
    bindings.epsilon = args.epsilon;
    p.alignment = alignment_of({&x, &w, &b});
    execute_norm(p, args.policy, bindings);
  }
  return {bindings[Role::y].contiguous(),
          args.statistics && p.has_mean() ? bindings[Role::mean] : Tensor(),
          args.statistics ? bindings[Role::invstd] : Tensor()};
}

namespace {

Tensors3 run_normalize_backward(const NormalizeBackwardArgs& args) {
  const Tensor& input = args.input;
  LayerNormKind kind = kind_of(args.kind);
  check_same("normalize_backward", "grad_output", args.grad_output, "input", input);
  c10::OptionalDeviceGuard guard(input.device());
  bool nhwc = is_nhwc(kind, input);
  Tensor x = laid_out(input, nhwc), dy = laid_out(args.grad_output, nhwc);
  Tensor w = contiguous_or_undefined(args.weight);
  TORCH_CHECK_VALUE(!w.defined() || w.numel() == x.size(1),
                    "torch_cudnn_ext::normalize_backward: weight has ", w.numel(),
                    " elements, wanted ", x.size(1));
  LayerNormProblem p = make_problem(Pass::bwd, kind, x, args.groups, w);
  if (args.has_bias) p.bias = p.w.value_or(p.x.dtype);
  Bindings bindings;
  if (input.numel() == 0) {
    bindings[Role::dx] = at::empty(x.sizes(), x.options());
    auto options = w.defined() ? w.options() : x.options();
    bindings[Role::dw] = at::zeros({x.size(1)}, options);
    bindings[Role::dbias] = at::zeros({x.size(1)}, options);
  } else {
    bindings[Role::x] = x;
    bindings[Role::dy] = dy;
    bindings[Role::w] = w;
    auto bind = [&](Role role, const char* name, const Tensor& statistic) {
      TORCH_CHECK_VALUE(statistic.numel() == p.view().count(),
                        "torch_cudnn_ext::normalize_backward: ", name, " has ", statistic.numel(),
                        " elements, wanted ", p.view().count());
      bindings[role] = statistic.contiguous();
    };
    if (p.has_mean()) bind(Role::mean, "mean", args.mean);
    bind(Role::invstd, "invstd", args.invstd);
    bindings.epsilon = args.epsilon;
    p.alignment = alignment_of({&x, &dy, &w, &bindings[Role::mean], &bindings[Role::invstd]});
    execute_norm(p, args.policy, bindings);
  }
  Tensor dx = bindings[Role::dx].contiguous();
  if (gives_nhwc_gradient(kind, input)) {
    dx = at::empty_strided(dx.sizes(), channels_last_strides(dx.sizes()), dx.options()).copy_(dx);
  }
  return {dx, p.w ? bindings[Role::dw] : nothing(input),
          p.bias ? bindings[Role::dbias] : nothing(input)};
}

}  // namespace

Tensors3 normalize_backward(const NormalizeBackwardArgs& args) {
  return KnownKernel<LayerNormProblem, run_normalize_backward>::call(args);
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<normalize, normalize_backward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<normalize, normalize_backward>(m); }

}  // namespace torch_cudnn_ext::layer_norm
