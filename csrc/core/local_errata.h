// Local errata: algorithms that cost a process that measured them on this machine. Knows neither
// files nor processes: whoever remembers such algorithms sets them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/algorithm.h"
#include "core/device.h"
#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

struct LocalErratum {
  std::string device;     // its fingerprint
  std::string problem;    // the canonical line
  std::string algorithm;  // with its options
  std::string reason;     // why it is unsupported
};

// Replaces all. Plans that were built before are not affected.
void set_local_errata(std::vector<LocalErratum> errata);

// Why a local erratum makes the algorithm unsupported; nullopt if none does. Asked before a plan is
// built.
std::optional<Unsupported> unsupported_by_local_erratum(const Problem& problem,
                                                        const Algorithm& algorithm,
                                                        const Device& device);

}  // namespace torch_cudnn_ext
