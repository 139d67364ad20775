// Group norm from an instance norm without parameters: a plan of the view [batch, groups,
// channels / groups * space] is followed by the scale and shift of each channel. Shared by both
// cuDNN backends, neither of which has a group norm.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "core/plan.h"

namespace torch_cudnn_ext {

inline LayerNormProblem instances_of_groups(const LayerNormProblem& p) {
  auto v = p.view();
  LayerNormProblem q = p;
  q.kind = LayerNormKind::instance;
  q.groups = 1;
  q.w = q.bias = std::nullopt;
  q.x.sizes = {v.batch, v.groups, v.length()};
  q.x.strides = contiguous_strides(q.x.sizes);
  return q;
}

// Bytes of the temporaries of a gradient in addition to the plan's: the weighted dy, and what dw is
// summed from.
inline int64_t group_norm_temporaries(const LayerNormProblem& p) {
  if (p.pass == Pass::fwd || !p.w) return 0;
  c10::ScalarType compute = compute_dtype(p.x.dtype);
  int64_t widened = p.x.numel() * static_cast<int64_t>(c10::elementSize(compute));
  return p.x.nbytes() + (p.x.dtype == compute ? widened : 2 * widened);
}

class GroupNormPlan : public Plan {
 public:
  GroupNormPlan(const LayerNormProblem& p, std::shared_ptr<Plan> instances)
      : Plan(instances->algorithm, instances->notes,
             instances->workspace_bytes.value() + group_norm_temporaries(p)),
        p_(p),
        view_(instances_of_groups(p).x),
        instances_(std::move(instances)) {}

  void run(Bindings& b) override {
    Bindings inner;
    inner.epsilon = b.epsilon;
    inner.replay = b.replay;
    inner[Role::x] = b[Role::x].view(view_.sizes);
    p_.pass == Pass::fwd ? forward(b, inner) : backward(b, inner);
  }

 private:
  void forward(Bindings& b, Bindings& inner) {
    if (b[Role::y].defined()) inner[Role::y] = b[Role::y].view(view_.sizes);
    instances_->run(inner);
    if (p_.stats) {
      give(b, Role::mean, p_.statistics(), inner[Role::mean]);
      give(b, Role::invstd, p_.statistics(), inner[Role::invstd]);
    }
    b[Role::y] = inner[Role::y].view(p_.x.sizes);
    at::Tensor& y = b[Role::y];
    if (p_.w && p_.bias) {
      at::addcmul_out(y, of_channels(b[Role::bias]), y, of_channels(b[Role::w]));
    } else if (p_.w) {
      y.mul_(of_channels(b[Role::w]));
    } else if (p_.bias) {
      y.add_(of_channels(b[Role::bias]));
    }
  }

  void backward(Bindings& b, Bindings& inner) {
    auto v = p_.view();
    const at::Tensor &x = b[Role::x], &dy = b[Role::dy];
    auto compute = compute_dtype(p_.x.dtype);
    at::Tensor g = dy;
    if (p_.w) {
      at::Tensor w = b[Role::w];
      if (p_.x.dtype == at::kHalf) {
        // Float16 products may overflow though the gradient does not. So the instance norm scales
        // by the largest weight of a group.
        w = w.view({v.groups, -1}).to(compute);
        at::Tensor largest = w.abs().amax(1, true);
        largest.masked_fill_(largest == 0, 1);
        w = (w / largest).to(p_.x.dtype).view({v.channels});
        inner[Role::w] = largest.view({v.groups});
      }
      g = (dy * of_channels(w)).to(p_.x.dtype);
    }
    inner[Role::dy] = g.view(view_.sizes);
    inner[Role::mean] = b[Role::mean].to(compute);
    inner[Role::invstd] = b[Role::invstd].to(compute);
    if (b[Role::dx].defined()) inner[Role::dx] = b[Role::dx].view(view_.sizes);
    instances_->run(inner);
    b[Role::dx] = inner[Role::dx].view(p_.x.sizes);
    if (!p_.w && !p_.bias) return;
    // Both are computed from sums over space, of dy and of its products with x.
    at::Tensor sums = dy.sum(2, false, compute);
    if (p_.bias) give(b, Role::dbias, p_.parameters(*p_.bias), sums.sum(0).to(*p_.bias));
    if (!p_.w) return;
    at::Tensor products = (dy.to(compute) * x).sum(2);
    Dims sizes{v.batch, v.groups, v.channels / v.groups}, each{v.batch, v.groups, 1};
    at::Tensor centred = products.view(sizes) - inner[Role::mean].view(each) * sums.view(sizes);
    at::Tensor dw = (centred * inner[Role::invstd].view(each)).sum(0).view({v.channels});
    give(b, Role::dw, p_.parameters(*p_.w), dw.to(*p_.w));
  }

  static at::Tensor of_channels(const at::Tensor& t) { return t.view({1, t.size(0), 1}); }

  const LayerNormProblem p_;
  const TensorSpec view_;
  const std::shared_ptr<Plan> instances_;
};

}  // namespace torch_cudnn_ext
