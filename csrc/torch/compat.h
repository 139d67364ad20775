// Differences between the versions of PyTorch, from 2.11 to 2.15, in one place. The code compiles
// with each of them; PyTorch's own types select the branch.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <memory>
#include <type_traits>

namespace torch_cudnn_ext {

// Nodes of autograd are counted by shared_ptr in 2.11 and by intrusive_ptr in 2.15.
constexpr bool kNodesAreIntrusive =
    std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>;
template <class Node>
using NodePtr =
    std::conditional_t<kNodesAreIntrusive, c10::intrusive_ptr<Node>, std::shared_ptr<Node>>;

template <class Node>
NodePtr<Node> make_node() {
  if constexpr (kNodesAreIntrusive) {
    return c10::make_intrusive<Node>();
  } else {
    return std::shared_ptr<Node>(new Node(), [](auto* node) { deleteNode(node); });
  }
}

// A pointer that shares the ownership of a node which others own already.
template <class Node>
NodePtr<torch::autograd::Node> pointer_to(Node& node) {
  if constexpr (kNodesAreIntrusive) {
    return c10::intrusive_ptr<torch::autograd::Node>::reclaim_copy(&node);
  } else {
    return node.shared_from_this();
  }
}

// Tensors of 2.15 have no names.
template <class T>
auto has_names(const T& t, int) -> decltype(t.has_names()) {
  return t.has_names();
}
template <class T>
bool has_names(const T&, long) {
  return false;
}
inline bool has_names(const at::Tensor& t) { return has_names(t, 0); }

// torch.backends.cudnn.depthwise_kernel, which came with 2.15: whose kernel at::convolution runs.
enum class DepthwiseKernel : uint8_t { automatic, cudnn, native };
template <class Context>
auto depthwise_kernel(const Context& context, int)
    -> decltype(context.cudnnDepthwiseKernel(), DepthwiseKernel{}) {
  using Kernel = decltype(context.cudnnDepthwiseKernel());
  switch (context.cudnnDepthwiseKernel()) {
    case Kernel::CUDNN:
      return DepthwiseKernel::cudnn;
    case Kernel::NATIVE:
      return DepthwiseKernel::native;
    default:
      return DepthwiseKernel::automatic;
  }
}
template <class Context>
DepthwiseKernel depthwise_kernel(const Context&, long) {
  return DepthwiseKernel::automatic;
}
inline DepthwiseKernel depthwise_kernel() { return depthwise_kernel(at::globalContext(), 0); }

// From 2.15 on group norm keeps channels_last on every device, before on the CPU alone.
constexpr bool kGroupNormKeepsLayout = TORCH_VERSION_MINOR >= 15;

}  // namespace torch_cudnn_ext
