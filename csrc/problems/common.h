// What several families share: passes, and what a forward does with its result.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_text.h"

namespace torch_cudnn_ext {

// Convolution and batch norm have passes of their own.
enum class Pass : uint8_t { fwd, bwd };
inline constexpr EnumName<Pass> kPasses[] = {{Pass::fwd, "fwd"}, {Pass::bwd, "bwd"}};
inline const auto& enum_names(Pass) { return kPasses; }

enum class ForwardPass : uint8_t { fwd };  // of families without a backward
inline constexpr EnumName<ForwardPass> kForwardPasses[] = {{ForwardPass::fwd, "fwd"}};
inline const auto& enum_names(ForwardPass) { return kForwardPasses; }

enum class Accumulate : uint8_t { none, add, general };  // (alpha, beta): (1, 0), (1, 1), any
inline constexpr EnumName<Accumulate> kAccumulates[] = {
    {Accumulate::none, "none"}, {Accumulate::add, "add"}, {Accumulate::general, "general"}};
inline const auto& enum_names(Accumulate) { return kAccumulates; }

enum class Activation : uint8_t { none, relu, relu6, sigmoid, tanh, silu, gelu, gelu_tanh };
inline constexpr EnumName<Activation> kActivations[] = {
    {Activation::none, "none"},   {Activation::relu, "relu"},
    {Activation::relu6, "relu6"}, {Activation::sigmoid, "sigmoid"},
    {Activation::tanh, "tanh"},   {Activation::silu, "silu"},
    {Activation::gelu, "gelu"},   {Activation::gelu_tanh, "gelu_tanh"}};
inline const auto& enum_names(Activation) { return kActivations; }
inline Activation activation_from_text(std::string_view what, std::string_view text) {
  return enum_value(kActivations, what, text);
}

}  // namespace torch_cudnn_ext
