// Gradients of recurrent networks, and their autocast.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/autocast.h"
#include "ops/rnn/rnn.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::rnn {
namespace {

// Arguments of backward_formula().
struct Point {
  RnnProblem p;
  std::vector<int64_t> lengths;
  std::vector<Tensor> tensors;  // input, hx, cx, parameters; states that are left out are zero
};

Point point_of(const Settings& settings, IntArrayRef batch_sizes, std::vector<Tensor> tensors,
               const char* gradient) {
  TORCH_CHECK_NOT_IMPLEMENTED(settings.dropout == 0 || settings.num_layers == 1,
                              "torch_cudnn_ext::", name_of(settings), ": ", gradient,
                              " is not computed with dropout, since the mask is not known outside "
                              "of the algorithm; wanted dropout=0, got ",
                              settings.dropout);
  RnnProblem p = settings.problem();
  sizes_of(tensors[0], batch_sizes, TensorList(tensors).slice(3), settings).set(p, tensors[0]);
  std::vector<int64_t> lengths = batch_sizes.vec();
  if (lengths.empty()) lengths.assign(static_cast<size_t>(p.steps()), p.batch());
  if (!tensors[1].defined()) tensors[1] = at::zeros(rnn_h(p).sizes, tensors[0].options());
  if (!tensors[2].defined() && settings.is_lstm()) {
    tensors[2] = at::zeros(rnn_c(p).sizes, tensors[0].options());
  }
  return {p, std::move(lengths), std::move(tensors)};
}

struct RnnBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtRnnBackwardBackward";
  static constexpr size_t kInputs = kAny;  // the three gradients, input, hx, cx, parameters
  Settings settings;
  std::vector<int64_t> batch_sizes;

  auto attributes() { return std::tuple_cat(settings.attributes(), std::tie(batch_sizes)); }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    Point at =
        point_of(settings, batch_sizes, saved.slice(3).vec(), "the gradient of its gradient");
    std::vector<Tensor> inputs = saved.slice(0, 3).vec();
    inputs.insert(inputs.end(), at.tensors.begin(), at.tensors.end());
    return gradients_of_formula(
        [&](const std::vector<Tensor>& in) {
          return backward_formula(at.p, at.lengths, {in.begin() + 3, in.end()},
                                  {in.begin(), in.begin() + 3});
        },
        inputs, grads, needed);
  }
};

std::vector<TensorRef> differentiable(const Inputs& in) {
  std::vector<TensorRef> list{in.input, or_undefined(in.hx), or_undefined(in.cx)};
  list.insert(list.end(), in.params.begin(), in.params.end());
  return list;
}

BackwardArgs::Result backward_autograd(c10::DispatchKeySet keys, const BackwardArgs& args) {
  std::vector<TensorRef> inputs{or_undefined(args.grad_output), or_undefined(args.grad_hy),
                                or_undefined(args.grad_cy)};
  for (const Tensor& t : differentiable(args.in)) inputs.emplace_back(t);
  return run_with_gradient<RnnBackwardGradient>(
      inputs, 4, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto&) {
        node.gradient.settings = args.s;
        node.gradient.batch_sizes = args.in.batch_sizes.vec();
        for (const Tensor& t : inputs) save_input(node, t);
      });
}

// Saved: input, hx, cx, the reserve, its writer, parameters, and the output.
struct RnnGradient {
  static constexpr const char* kName = "TorchCudnnExtRnnBackward";
  static constexpr size_t kInputs = kAny;  // input, hx, cx, parameters
  Settings settings;
  std::vector<int64_t> batch_sizes;
  std::optional<std::string> policy;
  bool retain_variables = true;

  auto attributes() { return std::tuple_cat(settings.attributes(), std::tie(batch_sizes, policy)); }

  // The output, by the algorithm that gave it. What dropout drew cannot be had again.
  Tensor remade(TensorList before) const {
    if (settings.dropout > 0 && settings.num_layers > 1) return Tensor();
    c10::NoGradGuard no_grad;
    constexpr bool kForBackward = false;
    return std::get<0>(
        call_op(ForwardArgs{before[0], batch_sizes, optional_of(before[1]), optional_of(before[2]),
                            before.slice(5), settings, kForBackward, policy}));
  }

  // Gradients of x, hx, cx and w.
  std::vector<Tensor> all(const variable_list& grads, TensorList saved, TensorList params) {
    variable_list three = grads;
    three.resize(3);
    // An operator of lists of tensors has no rule for batches.
    bool batched = std::any_of(three.begin(), three.end(), [&](const Tensor& t) {
      return t.defined() && t.key_set().has_any(kBatchedKeys);
    });
    if (batched) {
      std::vector<Tensor> tensors = saved.slice(0, 3).vec();
      tensors.insert(tensors.end(), params.begin(), params.end());
      Point at = point_of(settings, batch_sizes, std::move(tensors), "a batch of its gradients");
      std::optional<NoSavedTensorHooks> no_hooks;
      if (!c10::GradMode::is_enabled()) no_hooks.emplace();
      return backward_formula(at.p, at.lengths, std::move(at.tensors), three);
    }
    // cuDNN writes into the reserve, and whoever traces a graph may run it more than once.
    bool again = retain_variables || has_dispatch_mode();
    Tensor reserve = again ? saved[3].clone() : saved[3];
    auto [dx, dhx, dcx, dw] = call_op(
        BackwardArgs{optional_of(three[0]), optional_of(three[1]), optional_of(three[2]), saved[0],
                     batch_sizes, optional_of(saved[1]), optional_of(saved[2]), params,
                     saved.back(), reserve, optional_of(saved[4]), settings, policy});
    return {dx, dhx, dcx, dw};
  }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    std::vector<Tensor> params(saved.begin() + 5, saved.end() - 1);
    variable_list gradients = all(grads, saved, params);
    Tensor dw = std::move(gradients[3]);
    for (size_t i = 0; i < 3; ++i) {
      if (!needed[i]) gradients[i] = Tensor();
    }
    gradients.resize(3 + params.size());
    std::vector<SymInt> counts;
    for (const Tensor& t : in_order_of_w(params)) counts.push_back(t.sym_numel());
    std::vector<Tensor> parts = dw.split_with_sizes_symint(counts);
    size_t next = 0;
    for (int64_t dims : {2, 1}) {
      for (size_t i = 0; i < params.size(); ++i) {
        if (params[i].dim() != dims) continue;
        const Tensor& part = parts[next++];
        if (needed[3 + i]) gradients[3 + i] = part.view_symint(params[i].sym_sizes());
      }
    }
    return gradients;
  }
};

ForwardArgs::Result forward_autograd(c10::DispatchKeySet keys, const ForwardArgs& given) {
  ForwardArgs args = given;
  std::vector<TensorRef> inputs = differentiable(args.in);
  bool wanted = std::any_of(inputs.begin(), inputs.end(),
                            [](const Tensor& t) { return t.defined() && t.requires_grad(); });
  args.for_backward |= wanted && at::GradMode::is_enabled();
  return run_with_gradient<RnnGradient>(
      inputs, args.s.is_lstm() ? 3 : 2, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto& out) {
        node.gradient.settings = args.s;
        node.gradient.batch_sizes = args.in.batch_sizes.vec();
        for (size_t i = 0; i < 3; ++i) save_input(node, inputs[i].get());
        save_input(node, out[3]);
        save_writer(node, "_rnn", RnnProblem::kFamily, args.policy, out[4]);
        for (const Tensor& t : args.in.params) save_input(node, t);
        save_result(node, out[0]);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, backward_autograd>(m);
}
// As PyTorch's _cudnn_rnn: everything that is float32 is cast, cell states included.
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<autocast<at::kCPU, ForwardArgs>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<autocast<at::kCUDA, ForwardArgs>>(m);
}

}  // namespace torch_cudnn_ext::rnn
