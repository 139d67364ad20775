// Owners of the classic API's descriptors, one template for all handle types, and what every plan
// of that API needs.
#pragma once

#include <c10/util/StringUtil.h>

#include <climits>
#include <optional>
#include <string>
#include <vector>

#include "core/algorithm.h"
#include "core/backend.h"
#include "core/operator.h"
#include "cudnn/handle.h"
#include "cudnn/status.h"
#include "replay/replay.h"

namespace torch_cudnn_ext::legacy {

template <class Handle, cudnnStatus_t (*create)(Handle*), cudnnStatus_t (*destroy)(Handle)>
class Descriptor {
 public:
  Descriptor() { check_cudnn(create(&handle_), "creating a descriptor"); }
  ~Descriptor() { destroy(handle_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using TensorDescriptor =
    Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
               cudnnDestroyConvolutionDescriptor>;

inline std::vector<int> as_ints(const Dims& values) {
  std::vector<int> out;
  for (int64_t value : values) {
    TORCH_CHECK(value <= INT_MAX, "the classic API holds sizes and strides in 32 bits, not ",
                value);
    out.push_back(static_cast<int>(value));
  }
  return out;
}

inline void set(const TensorDescriptor& descriptor, const TensorSpec& spec) {
  TORCH_CHECK(spec.numel() <= INT_MAX, "the classic API counts elements in 32 bits, not ",
              spec.numel());
  check_cudnn(
      cudnnSetTensorNdDescriptor(descriptor.get(), cudnn_type(spec.dtype), spec.sizes.size(),
                                 as_ints(spec.sizes).data(), as_ints(spec.strides).data()),
      "cudnnSetTensorNdDescriptor");
}

// alpha or beta, as the calls take it: a pointer to a double for float64 data, else to a float.
class Scale {
 public:
  Scale(double value, c10::ScalarType dtype)
      : is_double_(dtype == c10::ScalarType::Double),
        double_(value),
        float_(static_cast<float>(value)) {}
  const void* get() const { return is_double_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  const bool is_double_;
  const double double_;
  const float float_;
};

// The address of a result. Its tensor is made if none is bound.
inline void* output(Bindings& bindings, Role role, const TensorSpec& spec, const at::Tensor& like) {
  at::Tensor& tensor = bindings[role];
  if (!tensor.defined()) tensor = empty_on_cuda(spec, like);
  return tensor.data_ptr();
}

// Why batch normalisation cannot train on so many channels, a bound that PyTorch found; empty if it
// can.
inline std::string too_many_channels(int64_t channels) {
  if (channels <= 65535) return "";
  return c10::str("cuDNN takes at most 65535 channels when training, and here are ", channels);
}

// The math type that an algorithm's options name; nullptr if they name none.
inline const MathType* find_math(const Algorithm& algorithm) {
  const std::string* text = algorithm.option("math");
  return text == nullptr ? nullptr : find_math_type(*text);
}

// cuDNN's number of an algorithm in a pass; nullopt if the pass does not have an algorithm of this
// name.
inline std::optional<int> find_value(const Problem& problem, const Algorithm& algorithm) {
  for (const LegacyName& name : operator_of(problem).legacy_names(pass_of(problem))) {
    if (algorithm.name == name.name) return name.value;
  }
  return std::nullopt;
}

// Every algorithm name of the pass, for operators that try them in the order of the enumeration.
template <class P>
std::vector<Candidate> every_name(const P& p, const Device&) {
  std::vector<Candidate> list;
  for (const LegacyName& name : operator_of(p).legacy_names(pass_of(p))) {
    list.push_back({{"legacy", name.name, {}}, "enumeration"});
  }
  return list;
}

// The candidates of operators for which the classic API has one call.
template <class P>
std::vector<Candidate> only_default(const P&, const Device&) {
  return {{{"legacy", "default", {}}, "enumeration"}};
}
inline std::optional<Unsupported> why_not_default(const Algorithm& algorithm) {
  if (algorithm.name == "default" && algorithm.options.empty()) return std::nullopt;
  return Unsupported{
      c10::str("the classic API has one way, legacy:default, not ", algorithm.text())};
}

// Why the classic API cannot be called on this device; nullopt if it can.
inline std::optional<Unsupported> why_unsupported(const Device& device) {
  if (device.is_cuda()) return std::nullopt;
  return Unsupported{"the classic API answers only with a GPU at hand", true};
}

}  // namespace torch_cudnn_ext::legacy
