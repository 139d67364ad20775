#include "core/local_errata.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace torch_cudnn_ext {

namespace {

struct Known {
  std::mutex mutex;
  std::vector<LocalErratum> errata;
  std::atomic<bool> is_empty{true};  // read without the mutex
};
Known& known() {
  static auto* made = new Known();
  return *made;
}

}  // namespace

void set_local_errata(std::vector<LocalErratum> errata) {
  std::lock_guard<std::mutex> lock(known().mutex);
  known().errata = std::move(errata);
  known().is_empty = known().errata.empty();
}

std::optional<Unsupported> unsupported_by_local_erratum(const Problem& problem,
                                                        const Algorithm& algorithm,
                                                        const Device& device) {
  if (known().is_empty) return std::nullopt;
  std::string line = problem_text(problem), name = algorithm.text();
  std::string fingerprint = fingerprint_of(device);
  std::lock_guard<std::mutex> lock(known().mutex);
  const auto& errata = known().errata;
  auto found = std::find_if(errata.begin(), errata.end(), [&](const LocalErratum& one) {
    return one.algorithm == name && one.problem == line && one.device == fingerprint;
  });
  if (found == errata.end()) return std::nullopt;
  return Unsupported{found->reason};
}

}  // namespace torch_cudnn_ext
