// The writer of a reserve: which algorithm a forward ran, and under which policy. It is one of the
// forward's results, so it reaches the backward as the reserve does: saved by autograd or in a
// compiled graph, copied, offloaded or pickled.
//
// A writer is a tensor of sizes [0, number]. It has no elements, so it takes no memory, and its
// sizes are known on the host, also while a stream is captured. The number stands for the policy of
// the backward in every process. Number 0 stands for none: no algorithm ran, as for an empty input
// or under a tracer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torch_cudnn_ext {

// The number of a policy. This process remembers the policy from now on.
int64_t writer_number(const std::string& policy);

// A writer on the device of `like`.
at::Tensor make_writer(int64_t number, const at::Tensor& like);

// The policy that a writer stands for; nullopt for number 0. Throws ValueError if it is not a
// writer, or if this process does not know its number. `op` begins the message.
std::optional<std::string_view> policy_of_writer(std::string_view op, const at::Tensor& writer);

}  // namespace torch_cudnn_ext
