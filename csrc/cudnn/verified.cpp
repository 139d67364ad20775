#include "cudnn/verified.h"

#include <c10/util/StringUtil.h>
#include <cudnn.h>

#include <vector>

#include "core/capability.h"
#include "core/caution.h"
#include "core/library_versions.h"

namespace torch_cudnn_ext {

namespace {

const VerifiedPlatform* find_verified(int64_t cudnn, int capability) {
  for (const VerifiedPlatform& row : kVerified) {
    if (row.platform.cudnn == cudnn && row.platform.capability == capability) return &row;
  }
  return nullptr;
}

std::string platform_text(int64_t cudnn, int capability) {
  return c10::str("cuDNN ", version_text(cudnn), " on compute capability ", capability / 10, ".",
                  capability % 10);
}

// The platforms of the rows for which a function holds.
template <class Holds>
std::string platforms_text(Holds holds) {
  std::vector<std::string> texts;
  for (const VerifiedPlatform& row : kVerified) {
    if (holds(row)) texts.push_back(platform_text(row.platform.cudnn, row.platform.capability));
  }
  return c10::Join(", ", texts);
}

const bool registered_version =
    register_library(Library::cudnn, [] { return static_cast<int64_t>(cudnnGetVersion()); });

const bool registered_caution = set_caution([](const Device& device) {
  return caution_text(library_version(Library::cudnn), capability_of(device));
});

}  // namespace

bool is_verified(int64_t cudnn, int capability) {
  return find_verified(cudnn, capability) != nullptr;
}

bool replays_kernels(int64_t cudnn, int capability) {
  const VerifiedPlatform* found = find_verified(cudnn, capability);
  return found != nullptr && found->replays_kernels;
}

std::string platforms_that_replay_kernels() {
  return platforms_text([](const VerifiedPlatform& row) { return row.replays_kernels; });
}

std::string caution_text(int64_t cudnn, int capability) {
  if (is_verified(cudnn, capability)) return "";
  return c10::str(
      "torch_cudnn_ext was not verified with ", platform_text(cudnn, capability), ", only with ",
      platforms_text([](const VerifiedPlatform&) { return true; }),
      ": guards against known errata stay on, and untuned calls name no engine by its number. To "
      "silence this: warnings.filterwarnings('ignore', category="
      "torch_cudnn_ext.UnverifiedVersionWarning)");
}

}  // namespace torch_cudnn_ext
