// Puts an operation graph together: its tensors, its elementwise functions and the operations on
// them. Knows nothing of the operator.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "backends/cudnn_graph/engine.h"
#include "problems/common.h"

namespace torch_cudnn_ext::graph {

// A parameter of the function, such as {CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1}.
using PointwiseAttribute = std::pair<cudnnBackendAttributeName_t, double>;

inline Descriptor make_function(cudnnPointwiseMode_t mode, c10::ScalarType compute,
                                std::initializer_list<PointwiseAttribute> attributes = {}) {
  Descriptor function(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, cudnn_type(compute));
  for (const auto& [name, value] : attributes) {
    function.set(name, CUDNN_TYPE_DOUBLE, 1, &value);
  }
  function.finalise("the elementwise function is not valid");
  return function;
}

// Collects the operations of a graph and the parts that they refer to, each known by its place.
class Builder {
 public:
  size_t keep(Descriptor part) {
    parts_.push_back(std::move(part));
    return parts_.size() - 1;
  }
  const Descriptor& operator[](size_t place) const { return parts_[place]; }

  void add(Descriptor operation, const char* invalid) {
    operation.finalise(invalid);
    operations_.push_back(std::move(operation));
  }

  // y = function(x), or function(x, b); b broadcasts over x.
  void pointwise(size_t function, size_t x, std::optional<size_t> b, size_t y) {
    Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parts_[function])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, parts_[x]);
    if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, parts_[*b]);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, parts_[y]);
    add(std::move(operation), "cuDNN has no such elementwise operation");
  }

  // dx = dy function'(x).
  void gradient(size_t function, size_t dy, size_t x, size_t dx) {
    Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, parts_[function])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, parts_[dy])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, parts_[x])
        .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, parts_[dx]);
    add(std::move(operation), "cuDNN has no such elementwise gradient");
  }

  OperationGraph make(const Device& device) {
    return make_graph(device, std::move(parts_), std::move(operations_));
  }

 private:
  std::vector<Descriptor> parts_, operations_;
};

// Operations one after the other. The last of `steps` writes y, those before it intermediates.
class Chain : public Builder {
 public:
  Chain(int steps, TensorSpec y, c10::ScalarType compute, int64_t alignment,
        std::vector<Scalar> scalars = {})
      : steps_(steps),
        y_(y),
        compute_(compute),
        alignment_(alignment),
        scalars_(std::move(scalars)) {}

  size_t tensor(const TensorSpec& spec, Role role) {
    return keep(make_tensor(spec, role, alignment_));
  }
  size_t scalar(Scalar which) { return keep(make_scalar(scalars_, which, y_.sizes.size())); }
  // The tensor that the next operation writes.
  size_t result() {
    if (++made_ == steps_) return tensor(y_, Role::y);
    return keep(make_intermediate({compute_, y_.sizes, y_.strides}, made_));
  }
  // The result of an elementwise function of x, or of x and b.
  size_t follow(cudnnPointwiseMode_t mode, size_t x, std::optional<size_t> b = std::nullopt,
                std::initializer_list<PointwiseAttribute> attributes = {}) {
    size_t y = result();
    pointwise(keep(make_function(mode, compute_, attributes)), x, b, y);
    return y;
  }
  void activate(Activation activation, size_t x) {
    switch (activation) {
      case Activation::none:
        return;
      case Activation::relu:
        follow(CUDNN_POINTWISE_RELU_FWD, x);
        return;
      case Activation::relu6:
        follow(CUDNN_POINTWISE_RELU_FWD, x, {}, {{CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, 6}});
        return;
      case Activation::sigmoid:
        follow(CUDNN_POINTWISE_SIGMOID_FWD, x);
        return;
      case Activation::tanh:
        follow(CUDNN_POINTWISE_TANH_FWD, x);
        return;
      case Activation::silu:
        follow(CUDNN_POINTWISE_SWISH_FWD, x);
        return;
      case Activation::gelu:
        follow(CUDNN_POINTWISE_GELU_FWD, x);
        return;
      case Activation::gelu_tanh:
        follow(CUDNN_POINTWISE_GELU_APPROX_TANH_FWD, x);
        return;
    }
  }

 private:
  const int steps_;
  const TensorSpec y_;
  const c10::ScalarType compute_;
  const int64_t alignment_;
  const std::vector<Scalar> scalars_;
  int made_ = 0;
};

}  // namespace torch_cudnn_ext::graph
