// Elementwise operations of a graph: what is computed of one element, or of two.
#pragma once

#include <initializer_list>
#include <utility>

#include "backends/cudnn_graph/descriptor.h"

namespace torch_cudnn_ext::graph {

// A number that the function takes, such as {CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1}.
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

// y = function(x).
inline Descriptor make_pointwise(const Descriptor& function, const Descriptor& x,
                                 const Descriptor& y) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y)
      .finalise("cuDNN has no such elementwise operation");
  return operation;
}

// y = function(x, b); b may have sizes of 1 where x has more.
inline Descriptor make_pointwise(const Descriptor& function, const Descriptor& x,
                                 const Descriptor& b, const Descriptor& y) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y)
      .finalise("cuDNN has no such elementwise operation");
  return operation;
}

// dx = dy function'(x).
inline Descriptor make_pointwise_gradient(const Descriptor& function, const Descriptor& dy,
                                          const Descriptor& x, const Descriptor& dx) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx)
      .finalise("cuDNN has no such elementwise gradient");
  return operation;
}

}  // namespace torch_cudnn_ext::graph
