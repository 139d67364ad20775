// The pairs of a version of cuDNN and a GPU on which nearly all tests ran. With others the
// guards against errata stay on, engines are not named by number, and the user is told once.
#pragma once

#include <cstdint>
#include <string>

namespace torch_cudnn_ext {

struct Platform {
  int64_t cudnn;   // 91900 is 9.19.0
  int capability;  // 90 is 9.0
  bool operator==(const Platform&) const = default;
};

struct VerifiedPlatform {
  Platform platform;
  // Whether every engine was seen to do its work on the stream that it is given, with all addresses
  // among its kernels' arguments, so that single kernels can be launched again.
  bool replays_kernels;
  const char* gpus;
};
inline constexpr VerifiedPlatform kVerified[] = {
    {{91900, 90}, true, "H100, H200"},
};

bool is_verified(int64_t cudnn, int capability);
bool replays_kernels(int64_t cudnn, int capability);
std::string platforms_that_replay_kernels();

// What is not verified and what follows from it, in one line; empty for a verified platform.
std::string caution_text(int64_t cudnn, int capability);

}  // namespace torch_cudnn_ext
